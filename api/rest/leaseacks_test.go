package rest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// Acks that come with a take are told one by one and in order, whatever is wrong
// with some of them; the take gets its work, also the partition that was acked.
func TestTakeWithAcks(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	d.work("t", 3)
	const take = `{"topics":["t"],"max_records":1,"ack":%s}`
	ids := func(all ...string) string {
		text, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(take, text)
	}
	l := d.takeOne("g", `{"topics":["t"],"max_records":1}`)
	never := l.LeaseID[:40] + "AAAA" + l.LeaseID[44:]
	a := d.take("g", ids(l.LeaseID, `"x`, never, l.LeaseID)).want(t, 200, "")
	a.contains(t, `"first_offset":1,"next_offset":2,`,
		`"acks":[{"lease_id":"`+l.LeaseID+`","topic":"t","partition":0,"committed_offset":1},{"lease_id":"\"x","error":{"code":"bad_lease","status":400,"retriable":false,`,
		`{"lease_id":"`+never+`","error":{"code":"lease_lost","status":409,`, `{"lease_id":"`+l.LeaseID+`","topic":"t","partition":0,"committed_offset":1,"already_committed":true}]}`)
	next := leasesOf(t, a)[0]
	// Nothing else is told where nothing was acked.
	if text := string(d.take("g", fmt.Sprintf(take, "[]")).want(t, 200, "").body); text != "{\"leases\":[]}\n" {
		t.Errorf("%s", text)
	}
	last := leasesOf(t, d.take("g", ids(next.LeaseID)).want(t, 200, "").contains(t, `"committed_offset":2}]`))[0]
	d.take("g", ids(last.LeaseID)).want(t, 200, "").contains(t, `{"leases":[],"acks":[{"lease_id":"`+last.LeaseID+`","topic":"t","partition":0,"committed_offset":3}]}`)
	d.take("g", ids(strings.Split(strings.Repeat("x,", 65), ",")...)).want(t, 400, "invalid_parameter")
	d.take("none", `{"topics":["none"],"ack":["x"]}`).want(t, 404, "unknown_topic")
}
