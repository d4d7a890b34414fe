package ws

import (
	"strings"
	"testing"
	"time"

	"leat/auth"
	"leat/broker"
)

// set changes a config of the server while it runs.
func (d *door) set(name, value string) {
	d.t.Helper()
	err := d.broker.AlterBrokerConfigs(d.t.Context(), auth.Anonymous, d.broker.NodeID(), []broker.ConfigChange{{Name: name, Value: &value}}, false)
	if err != nil {
		d.t.Fatal(err)
	}
}

// A client beyond the quota for what it sends is told, has its message taken all
// the same, and is read again once that is paid for.
func TestProduceQuota(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	c := d.dial()
	d.set("quota.producer.default", "100000")
	begun := time.Now()
	c.send(`{'type':'produce','id':1,'topic':'t','records':[{'value':"%s"}]}`, strings.Repeat("v", 150_000))
	c.send(`{'type':'ping','id':2}`)
	p := c.problem("quota_rate")
	if p.Limit != 100_000 || p.RetryAfterMS < 400 || p.RetryAfterMS > 550 || !p.Retriable {
		t.Errorf("%+v", p)
	}
	if a := c.want("produced"); a.Count != 1 || time.Since(begun) > 400*time.Millisecond {
		t.Errorf("%s after %v", a.text, time.Since(begun))
	}
	c.want("pong")
	if took := time.Since(begun); took < 400*time.Millisecond {
		t.Errorf("the client was read again after %v", took)
	}
}

// What a client is sent comes no faster than its quota lets it, and answers do
// not wait for that.
func TestFetchQuota(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	c := d.dial()
	for range 10 {
		d.append("t", 0, strings.Repeat("v", 20_000))
	}
	d.set("quota.consumer.default", "100000")
	begun := time.Now()
	c.send(`{'type':'subscribe','sub':'s','topic':'t','from':'earliest','batch':{'max_bytes':30000}}`)
	c.want("subscribed")
	for n := 0; n < 10; {
		n += len(c.want("data").Records)
		if n == 10 {
			c.send(`{'type':'ping'}`)
		}
	}
	if took := time.Since(begun); took < 600*time.Millisecond || took > 10*time.Second {
		t.Errorf("200 KB at 100 KB/s took %v", took)
	}
	pinged := time.Now()
	c.want("pong")
	if took := time.Since(pinged); took > 100*time.Millisecond {
		t.Errorf("an answer took %v", took)
	}
}
