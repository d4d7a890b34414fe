package ws

import (
	"strconv"
	"strings"
	"testing"
)

// A subscription with a filter is sent what it lets through, in frames that
// chain over what it leaves out, and is told how far it came without a record.
func TestFilter(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	d.append("t", 0, numbers(0, 100)...)
	c := d.dial()
	c.send(`{'type':'subscribe','sub':'s','topic':'t','from':'earliest','filter':'value %% 40 == 10'}`)
	c.want("subscribed")
	next := int64(0)
	var seen []string
	take := func(a *answer) {
		t.Helper()
		if a.Prev != next {
			t.Fatalf("the chain is broken at %d: %s", next, a.text)
		}
		next = a.Next
		for _, r := range a.Records {
			seen = append(seen, strconv.FormatInt(r.Offset, 10))
		}
	}
	for len(seen) < 3 {
		take(c.want("data"))
	}
	d.append("t", 0, `"text"`, "130")
	for len(seen) < 4 {
		take(c.want("data"))
	}
	if got := strings.Join(seen, " "); got != "10 50 90 101" || next != 102 {
		t.Errorf("%s, at %d", got, next)
	}

	quiet := d.dial()
	quiet.send(`{'type':'subscribe','sub':'q','topic':'t','from':'earliest','filter':'value == -1'}`)
	quiet.want("subscribed")
	if a := quiet.want("data"); len(a.Records) != 0 || a.Prev != 0 || a.Next != 102 {
		t.Errorf("%s", a.text)
	}
}

// A filter that is none is refused, with what is wrong.
func TestFilterRefused(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	c := d.dial()
	for _, bad := range []struct{ filter, code string }{
		{`''`, "invalid_filter"},
		{`'1 +'`, "invalid_filter"},
		{`'offset'`, "invalid_filter"},
		{`7`, "invalid_parameter"},
		{`'value.all(a, value.all(b, value.all(c, true)))'`, "filter_budget"},
	} {
		c.send(`{'type':'subscribe','sub':'s','topic':'t','filter':%s}`, bad.filter)
		if p := c.problem(bad.code); p.Parameter != "filter" {
			t.Errorf("%s: %+v", bad.filter, p)
		}
	}
}
