package rest

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"leat/auth"
	"leat/broker"
)

// taken is a lease as a client reads it.
type taken struct {
	LeaseID       string           `json:"lease_id"`
	Topic         string           `json:"topic"`
	Partition     int32            `json:"partition"`
	FirstOffset   int64            `json:"first_offset"`
	NextOffset    int64            `json:"next_offset"`
	Deadline      int64            `json:"deadline"`
	LeaseMS       int64            `json:"lease_ms"`
	DeliveryCount int              `json:"delivery_count"`
	Records       []jsontext.Value `json:"records"`
}

func leasesOf(t testing.TB, a *answer) []taken {
	t.Helper()
	var list struct {
		Leases []taken `json:"leases"`
	}
	if err := json.Unmarshal(a.want(t, 200, "").body, &list); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	return list.Leases
}

func (d *door) take(group, body string) *answer {
	d.t.Helper()
	return d.do("POST", groupsPath+url.PathEscape(group)+"/leases", body, "Content-Type", mediaJSON)
}

// takeOne takes the one lease that there must be.
func (d *door) takeOne(group, body string) taken {
	d.t.Helper()
	a := d.take(group, body)
	list := leasesOf(d.t, a)
	if len(list) != 1 {
		d.t.Fatalf("%d leases, want 1: %.500s", len(list), a.body)
	}
	return list[0]
}

// of sends a request about a lease. An empty body is none.
func (d *door) of(group, lease, verb, body string) *answer {
	d.t.Helper()
	path := groupsPath + url.PathEscape(group) + "/leases/" + lease + ":" + verb
	if body == "" {
		return d.do("POST", path, nil)
	}
	return d.do("POST", path, body, "Content-Type", mediaJSON)
}

// work adds records to partition 0 of t, one a batch.
func (d *door) work(topic string, n int) {
	d.t.Helper()
	for i := range n {
		d.do("POST", "/v1/topics/"+topic+"/partitions/0/records", fmt.Sprintf(`[{"key":"k","value":%d,"timestamp":%d}]`, i, 1000+i), "Content-Type", mediaJSON).want(d.t, 200, "")
	}
}

// Work is taken, acked in part and in whole, extended and given back; the group
// shows it, and each state change is what the next take finds.
func TestLeaseLife(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	d.work("t", 5)
	if got := leasesOf(t, d.take("g", `{"topics":["t"],"from":"latest"}`)); len(got) != 0 {
		t.Fatalf("from latest gives %+v", got)
	}
	before := time.Now().UnixMilli()
	l := d.takeOne("h", `{"topics":["t"],"max_records":3,"lease_ms":20000}`)
	if l.Topic != "t" || l.Partition != 0 || l.FirstOffset != 0 || l.NextOffset != 3 || l.LeaseMS != 20000 || l.DeliveryCount != 1 || len(l.Records) != 3 {
		t.Fatalf("lease %+v", l)
	}
	if l.Deadline < before+19000 || l.Deadline > time.Now().UnixMilli()+21000 {
		t.Errorf("deadline %d, now %d", l.Deadline, before)
	}
	if got := string(l.Records[2]); got != `{"partition":0,"offset":2,"timestamp":1002,"key_str":"k","value":2,"headers":[]}` {
		t.Errorf("record %s", got)
	}
	if got := leasesOf(t, d.take("h", `{"topics":["t"]}`)); len(got) != 0 {
		t.Fatalf("a partition has two leases: %+v", got)
	}
	d.do("GET", "/v1/groups/h", nil).want(t, 200, "").contains(t, `"type":"lease","state":"Stable"`,
		`"leases":[{"topic":"t","partition":0,"first_offset":0,"next_offset":3,`, `"state":"live"`)
	d.do("DELETE", "/v1/groups/h", nil).want(t, 409, "group_not_empty")
	d.seek("h", `{"offsets":[{"topic":"t","partition":0,"offset":4}]}`).want(t, 409, "group_not_empty")

	d.of("h", l.LeaseID, "ack", `{"upto":"1"}`).want(t, 200, "").contains(t, `"first_offset":1,"next_offset":3,"committed_offset":1,"state":"live"`)
	d.of("h", l.LeaseID, "extend", "").want(t, 200, "").contains(t, `"state":"live"`)
	d.of("h", l.LeaseID, "extend", `{"lease_ms":60000}`).want(t, 200, "").contains(t, `"state":"live"`)
	d.of("h", l.LeaseID, "release", `{"upto":2,"delay_ms":0}`).want(t, 200, "").contains(t, `"committed_offset":2,"state":"ended"`)
	for _, verb := range []string{"ack", "extend", "release"} {
		d.of("h", l.LeaseID, verb, "").want(t, 409, "lease_lost")
	}
	l = d.takeOne("h", `{"topics":["t"]}`)
	if l.FirstOffset != 2 || l.NextOffset <= 2 || l.DeliveryCount != 2 || int64(len(l.Records)) != l.NextOffset-2 {
		t.Fatalf("after a release up to 2: %+v", l)
	}
	d.of("h", l.LeaseID, "ack", "").want(t, 200, "")
	if l = d.takeOne("h", `{"topics":["t"]}`); l.NextOffset != 5 || l.DeliveryCount != 1 {
		t.Fatalf("after an ack: %+v", l)
	}
	d.of("h", l.LeaseID, "ack", "").want(t, 200, "").contains(t, `"committed_offset":5,"state":"ended"`)
	d.of("h", l.LeaseID, "ack", "{}").want(t, 200, "").contains(t, `"already_committed":true`)
	d.do("GET", "/v1/groups/h", nil).want(t, 200, "").contains(t, `"type":"lease","state":"Empty"`, `"leases":[]`)
	if got := offsetsOf(t, d.do("GET", "/v1/groups/h/offsets", nil)); got != "t/0=5" {
		t.Errorf("offsets %s", got)
	}
	if got := d.groupNames("?type=lease"); got != "g h" {
		t.Errorf("groups of leases: %s", got)
	}

	// Nobody works now, so the offsets can be set; the next take begins there.
	d.seek("h", `{"offsets":[{"topic":"t","from":"earliest"}]}`).want(t, 200, "")
	l = d.takeOne("h", `{"topics":["t"],"max_records":1}`)
	if l.FirstOffset != 0 || l.DeliveryCount != 1 {
		t.Errorf("after a seek: %+v", l)
	}
	d.of("h", l.LeaseID, "release", `{"delay_ms":60000}`).want(t, 200, "").contains(t, `"state":"delayed"`)
	if got := leasesOf(t, d.take("h", `{"topics":["t"]}`)); len(got) != 0 {
		t.Errorf("a delayed partition is handed out: %+v", got)
	}
	d.do("DELETE", "/v1/groups/h", nil).want(t, 204, "")
	d.of("h", l.LeaseID, "ack", "").want(t, 409, "lease_lost")
}

// A bad request for work, or about a lease, is told precisely and changes nothing.
func TestBadLeaseRequests(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	d.work("t", 3)
	for _, tc := range []struct {
		body, code string
		status     int
		parameter  string
	}{
		{``, "empty_body", 400, ""},
		{`[]`, "malformed_body", 400, ""},
		{`{"topics":["t"]`, "malformed_body", 400, ""},
		{`{"topics":["t"],"lease":1}`, "malformed_body", 400, ""},
		{`{"topics":"t"}`, "malformed_body", 400, ""},
		{`{"topics":[1]}`, "malformed_body", 400, ""},
		{`{"topics":["t"],"lease_ms":"1000"}`, "malformed_body", 400, ""},
		{`{"topics":["t"],"lease_ms":1000.5}`, "malformed_body", 400, ""},
		{`{"topics":["t"],"wait_ms":9223372036854775808}`, "malformed_body", 400, ""},
		{`{}`, "invalid_parameter", 400, "topics"},
		{`{"topics":[]}`, "invalid_parameter", 400, "topics"},
		{`{"topics":[` + strings.Repeat(`"t",`, 64) + `"t"]}`, "invalid_parameter", 400, "topics"},
		{`{"topics":["t"],"from":"now"}`, "invalid_parameter", 400, "from"},
		{`{"topics":["t"],"max_partitions":0}`, "invalid_parameter", 400, "max_partitions"},
		{`{"topics":["t"],"max_partitions":65}`, "invalid_parameter", 400, "max_partitions"},
		{`{"topics":["t"],"max_records":-1}`, "invalid_parameter", 400, "max_records"},
		{`{"topics":["t"],"max_records":100001}`, "invalid_parameter", 400, "max_records"},
		{`{"topics":["t"],"max_bytes":33554433}`, "invalid_parameter", 400, "max_bytes"},
		{`{"topics":["t"],"max_bytes":0}`, "invalid_parameter", 400, "max_bytes"},
		{`{"topics":["t"],"lease_ms":999}`, "invalid_parameter", 400, "lease_ms"},
		{`{"topics":["t"],"lease_ms":900001}`, "invalid_parameter", 400, "lease_ms"},
		{`{"topics":["t"],"lease_ms":0}`, "invalid_parameter", 400, "lease_ms"},
		{`{"topics":["t"],"lease_ms":-1000}`, "invalid_parameter", 400, "lease_ms"},
		{`{"topics":["t"],"wait_ms":-1}`, "invalid_parameter", 400, "wait_ms"},
		{`{"topics":["t"],"wait_ms":20001}`, "invalid_parameter", 400, "wait_ms"},
		{`{"topics":["t"],"max_deliveries":0}`, "invalid_parameter", 400, "max_deliveries"},
		{`{"topics":["t"],"dead_letter_topic":"a/b"}`, "invalid_topic", 400, ""},
		{`{"topics":["t"],"dead_letter_topic":"t"}`, "invalid_request", 400, ""},
		{`{"topics":["t","t"]}`, "invalid_request", 400, ""},
		{`{"topics":[""]}`, "invalid_topic", 400, ""},
		{`{"topics":["t","u"]}`, "unknown_topic", 404, ""},
	} {
		p := d.take("g", tc.body).want(t, tc.status, tc.code).problem(t)
		if p.Parameter != tc.parameter {
			t.Errorf("%s: parameter %q, want %q", tc.body, p.Parameter, tc.parameter)
		}
	}
	for _, query := range []string{"as=xml", "as=", "wait=1"} {
		d.do("POST", "/v1/groups/g/leases?"+query, `{"topics":["t"]}`, "Content-Type", mediaJSON).want(t, 400, "invalid_parameter")
	}
	d.do("POST", "/v1/groups/g/leases", `{"topics":["t"]}`, "Content-Type", "text/plain").want(t, 415, "unsupported_media_type")
	d.do("POST", "/v1/groups/g/leases", `{"topics":["t"]}`, "Content-Type", mediaJSON, "Accept", "text/html").want(t, 406, "not_acceptable")
	d.do("GET", "/v1/groups/g", nil).want(t, 404, "unknown_group")

	l := d.takeOne("g", `{"topics":["t"],"max_records":2}`)
	for _, tc := range []struct {
		verb, body, code string
		status           int
		parameter        string
	}{
		{"ack", `{"upto":"tank"}`, "invalid_parameter", 400, "upto"},
		{"ack", `{"upto":-5}`, "invalid_parameter", 400, "upto"},
		{"ack", `{"upto":1.5}`, "invalid_parameter", 400, "upto"},
		{"ack", `{"upto":9223372036854775808}`, "invalid_parameter", 400, "upto"},
		{"ack", `{"upto":null}`, "invalid_parameter", 400, "upto"},
		{"ack", `{"upto":3}`, "invalid_request", 400, ""},
		{"ack", `{"upto":1,"x":1}`, "malformed_body", 400, ""},
		{"ack", `{"lease_ms":1000}`, "malformed_body", 400, ""},
		{"ack", `[]`, "malformed_body", 400, ""},
		{"ack", `{`, "malformed_body", 400, ""},
		{"extend", `{"lease_ms":999}`, "invalid_parameter", 400, "lease_ms"},
		{"extend", `{"lease_ms":900001}`, "invalid_parameter", 400, "lease_ms"},
		{"extend", `{"lease_ms":"30000"}`, "malformed_body", 400, ""},
		{"extend", `{"upto":1}`, "malformed_body", 400, ""},
		{"release", `{"delay_ms":-1}`, "invalid_parameter", 400, "delay_ms"},
		{"release", `{"delay_ms":900001}`, "invalid_parameter", 400, "delay_ms"},
		{"release", `{"upto":"x"}`, "invalid_parameter", 400, "upto"},
		{"release", `{"upto":9}`, "invalid_request", 400, ""},
		{"release", `{"dead_letter":1}`, "malformed_body", 400, ""},
		{"release", `{"dead_letter":true}`, "no_dead_letter", 422, ""},
	} {
		p := d.of("g", l.LeaseID, tc.verb, tc.body).want(t, tc.status, tc.code).problem(t)
		if p.Parameter != tc.parameter {
			t.Errorf("%s %s: parameter %q, want %q", tc.verb, tc.body, p.Parameter, tc.parameter)
		}
	}
	raw, err := base64.RawURLEncoding.DecodeString(l.LeaseID)
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)-1] ^= 1
	forged := base64.RawURLEncoding.EncodeToString(raw)
	for _, verb := range []string{"ack", "extend", "release"} {
		d.of("g", forged, verb, "").want(t, 409, "lease_lost")
		d.of("other", l.LeaseID, verb, "").want(t, 409, "lease_lost")
		for _, bad := range []string{"x", "%00", l.LeaseID + "A", l.LeaseID[1:], strings.Repeat("A", len(l.LeaseID)), "%FF"} {
			d.of("g", bad, verb, "").want(t, 400, "bad_lease")
		}
		d.of("%", "x", verb, "").want(t, 400, "bad_lease")
		d.do("POST", "/v1/groups/g/leases/"+l.LeaseID+":"+verb, "{}", "Content-Type", "text/plain").want(t, 415, "unsupported_media_type")
		d.do("POST", "/v1/groups/g/leases/"+l.LeaseID+":"+verb+"?x=1", nil).want(t, 400, "invalid_parameter")
		if a := d.do("GET", "/v1/groups/g/leases/"+l.LeaseID+":"+verb, nil); a.StatusCode != http.StatusMethodNotAllowed || a.Header.Get("Allow") != "POST" {
			t.Errorf("GET %s: %d, Allow %q", verb, a.StatusCode, a.Header.Get("Allow"))
		}
	}
	d.do("POST", "/v1/groups/g/leases/"+l.LeaseID+":nack", nil).want(t, 404, "not_found")
	d.do("POST", "/v1/groups/g/leases/"+l.LeaseID, nil).want(t, 404, "not_found")
	d.do("POST", "/v1/groups/%FF/leases", `{"topics":["t"]}`, "Content-Type", mediaJSON).want(t, 400, "invalid_group")
	// Nothing of all that has touched the lease.
	d.of("g", l.LeaseID, "ack", `{"upto":2}`).want(t, 200, "").contains(t, `"committed_offset":2,"state":"ended"`)
}

// The records of a lease are cut to it, whatever batches they are stored in, and
// come in the form that was asked for.
func TestLeaseRecords(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1, "compression.type", "zstd")
	var body strings.Builder
	for i := range 100 {
		fmt.Fprintf(&body, "{\"value\":{\"n\":%d}}\n", i)
	}
	d.do("POST", "/v1/topics/t/records", body.String(), "Content-Type", mediaNDJSON).want(t, 200, "")
	for want := int64(0); want < 100; {
		l := d.takeOne("g", `{"topics":["t"],"max_records":30}`)
		if l.FirstOffset != want || l.NextOffset > min(want+30, 100) || len(l.Records) != int(l.NextOffset-l.FirstOffset) || len(l.Records) == 0 {
			t.Fatalf("at %d: [%d, %d) with %d records", want, l.FirstOffset, l.NextOffset, len(l.Records))
		}
		for i, rec := range l.Records {
			if !strings.Contains(string(rec), fmt.Sprintf(`"offset":%d,`, want+int64(i))) || !strings.Contains(string(rec), fmt.Sprintf(`"value":{"n":%d}`, want+int64(i))) {
				t.Fatalf("record %d of the lease at %d: %s", i, want, rec)
			}
		}
		// The middle of a batch is a place to go on from too.
		upto := min(want+7, l.NextOffset)
		d.of("g", l.LeaseID, "release", fmt.Sprintf(`{"upto":%d}`, upto)).want(t, 200, "")
		want = upto
	}
	for form, member := range map[string]string{"": `"value":{"n":0}`, "?as=json": `"value":{"n":0}`, "?as=string": `"value_str":"{\"n\":0}"`, "?as=base64": `"value_b64":"eyJuIjowfQ=="`} {
		group := "f" + strings.TrimPrefix(form, "?as=")
		d.do("POST", "/v1/groups/"+group+"/leases"+form, `{"topics":["t"],"max_records":1}`, "Content-Type", mediaJSON).want(t, 200, "").contains(t, member)
	}
}

// A take waits for records, and for a partition that becomes free; Prefer: wait
// does the same as wait_ms. Without either it does not wait.
func TestLeaseWait(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	began := time.Now()
	if got := leasesOf(t, d.take("g", `{"topics":["t"]}`)); len(got) != 0 {
		t.Fatalf("%+v", got)
	}
	waiting := func(headers ...string) <-chan []taken {
		got := make(chan []taken, 1)
		body := `{"topics":["t"],"wait_ms":20000}`
		if len(headers) > 0 {
			body = `{"topics":["t"]}`
		}
		go func() {
			a := d.do("POST", "/v1/groups/g/leases", body, append(headers, "Content-Type", mediaJSON)...)
			got <- leasesOf(t, a)
		}()
		return got
	}
	first := waiting()
	d.work("t", 1)
	l := <-first
	if len(l) != 1 {
		t.Fatalf("%+v", l)
	}
	second := waiting("Prefer", "wait=15")
	d.work("t", 1)
	d.of("g", l[0].LeaseID, "ack", "").want(t, 200, "")
	if l = <-second; len(l) != 1 || l[0].FirstOffset != 1 {
		t.Fatalf("%+v", l)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("woken after %v", took)
	}
	if got := leasesOf(t, d.take("g", `{"topics":["t"],"wait_ms":0}`)); len(got) != 0 {
		t.Fatalf("%+v", got)
	}
}

// Members of the Kafka protocol and leases do not mix, whichever came first.
func TestLeaseTypeConflict(t *testing.T) {
	d := openDoor(t, func(s *setup) { s.configs["group.initial.rebalance.delay.ms"] = "0" })
	d.topic("t", 1)
	d.work("t", 1)
	d.member("m")
	d.take("m", `{"topics":["t"]}`).want(t, 409, "group_type_conflict")
	l := d.takeOne("g", `{"topics":["t"]}`)
	r := &broker.JoinRequest{
		Member:       broker.GroupMember{Session: 30 * time.Second, RebalanceTimeout: 30 * time.Second},
		ProtocolType: "consumer", Protocols: []broker.GroupProtocol{{Name: "range"}},
	}
	if reply := d.broker.JoinGroup(t.Context(), auth.Anonymous, "g", r); !errors.Is(reply.Err, broker.ErrGroupTypeConflict) {
		t.Errorf("join: %v", reply.Err)
	}
	d.of("g", l.LeaseID, "ack", "").want(t, 200, "")
}

// A drain answers those who wait for work at once with nothing, hands out no more,
// and tells clients not to come back on the connection; calls about leases go on.
func TestLeaseDrain(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	d.topic("u", 1)
	d.work("u", 1)
	l := d.takeOne("g", `{"topics":["u"]}`)
	got := make(chan *answer, 1)
	go func() { got <- d.take("g", `{"topics":["t"],"wait_ms":20000}`) }()
	d.untilWaits(1)
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := d.server.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	a := <-got
	if leases := leasesOf(t, a); len(leases) != 0 || !a.Close || time.Since(began) > 5*time.Second {
		t.Errorf("%d leases, close %v, after %v", len(leases), a.Close, time.Since(began))
	}
	if st, err := d.broker.AckLease(t.Context(), auth.Anonymous, "g", l.LeaseID, -1); err != nil || st.Committed != 1 {
		t.Errorf("ack after the drain: %+v, %v", st, err)
	}
}

// untilWaits returns once so many requests wait at the server.
func (d *door) untilWaits(n int) {
	d.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		d.server.drain.Lock()
		waits := len(d.server.drain.waits)
		d.server.drain.Unlock()
		if waits >= n {
			return
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("%d requests wait, want %d", waits, n)
		}
		<-time.After(time.Millisecond)
	}
}

// Lag is told in records and seconds, of what the group has offsets of, or of all
// of a topic.
func TestGroupLag(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 3)
	d.do("GET", "/v1/groups/g/lag", nil).want(t, 404, "unknown_group")
	old := time.Now().Add(-time.Minute).UnixMilli()
	for i := range 4 {
		d.do("POST", "/v1/topics/t/partitions/0/records", fmt.Sprintf(`[{"value":1,"timestamp":%d}]`, old+int64(i)*10000), "Content-Type", mediaJSON).want(t, 200, "")
	}
	d.seek("g", `{"offsets":[{"topic":"t","partition":0,"offset":1},{"topic":"t","partition":2,"offset":0}]}`).want(t, 200, "")
	var got groupLag
	a := d.do("GET", "/v1/groups/g/lag", nil).want(t, 200, "")
	if err := json.Unmarshal(a.body, &got); err != nil {
		t.Fatal(err)
	}
	if got.Lag != 3 || got.LagSeconds < 49 || got.LagSeconds > 80 || len(got.Items) != 2 || *got.Items[0].Lag != 3 || *got.Items[0].CommittedOffset != 1 ||
		*got.Items[0].HighWatermark != 4 || *got.Items[0].LogStartOffset != 0 || got.Items[1].Partition != 2 || *got.Items[1].Lag != 0 || got.Items[1].LagSeconds != 0 {
		t.Errorf("%s", a.body)
	}
	d.do("GET", "/v1/groups/g/lag?topic=t", nil).want(t, 200, "").contains(t, `{"topic":"t","partition":1,"committed_offset":null,"log_start_offset":0,"high_watermark":0,"lag":0,"lag_seconds":0}`)
	page := d.do("GET", "/v1/groups/g/lag?limit=1", nil).want(t, 200, "").contains(t, `"lag":3`, `"partition":0`)
	if err := json.Unmarshal(page.body, &got); err != nil || got.Next == nil || len(got.Items) != 1 {
		t.Fatalf("%s", page.body)
	}
	d.do("GET", "/v1/groups/g/lag?page_token="+*got.Next, nil).want(t, 200, "").contains(t, `"lag":3`, `"partition":2`, `"next_page_token":null`)
	d.do("GET", "/v1/groups/g/lag?topic=u", nil).want(t, 404, "unknown_topic")
	d.do("GET", "/v1/groups/g/lag?topics=t", nil).want(t, 400, "invalid_parameter")
}
