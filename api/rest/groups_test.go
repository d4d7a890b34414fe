package rest

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"leat/auth"
	"leat/broker"
)

// seek sets offsets of a group.
func (d *door) seek(group, body string, headers ...string) *answer {
	d.t.Helper()
	return d.do("PUT", groupsPath+url.PathEscape(group)+"/offsets", body, append(headers, "Content-Type", mediaJSON)...)
}

// member makes a group have a member, which stays.
func (d *door) member(group string) {
	d.t.Helper()
	r := &broker.JoinRequest{
		Member:       broker.GroupMember{Session: 30 * time.Second, RebalanceTimeout: 30 * time.Second, ClientID: "app", Host: "/127.0.0.1"},
		ProtocolType: "consumer", Protocols: []broker.GroupProtocol{{Name: "range"}},
	}
	reply := d.broker.JoinGroup(d.t.Context(), auth.Anonymous, group, r)
	if reply.Err != nil {
		d.t.Fatal(reply.Err)
	}
}

// A group is made by its first offsets, listed, shown and deleted; one with
// members is left alone.
func TestGroupLife(t *testing.T) {
	d := openDoor(t, func(s *setup) { s.configs["group.initial.rebalance.delay.ms"] = "0" })
	d.topic("t", 2)
	d.do("GET", "/v1/groups", nil).want(t, 200, "").contains(t, `{"items":[],"next_page_token":null}`)
	for _, path := range []string{"/v1/groups/g", "/v1/groups/g/offsets"} {
		d.do("GET", path, nil).want(t, 404, "unknown_group")
	}
	d.do("DELETE", "/v1/groups/g", nil).want(t, 404, "unknown_group")
	d.seek("g", `{"offsets":[]}`).want(t, 200, "").contains(t, `{"items":[]}`)
	d.do("GET", "/v1/groups/g", nil).want(t, 404, "unknown_group")

	d.seek("g", `{"offsets":[{"topic":"t","partition":1,"offset":7}]}`).want(t, 200, "")
	d.do("GET", "/v1/groups/g", nil).want(t, 200, "").contains(t, `"group":"g","type":"classic","state":"Empty"`, `"members":[]`)
	d.member("m")
	d.do("GET", "/v1/groups/m", nil).want(t, 200, "").contains(t, `"protocol_type":"consumer"`, `"client_id":"app","client_host":"/127.0.0.1"`, `"instance_id":null`)
	d.do("DELETE", "/v1/groups/m", nil).want(t, 409, "group_not_empty")
	d.seek("m", `{"offsets":[{"topic":"t","partition":1,"offset":7}]}`).want(t, 409, "group_not_empty")
	d.do("GET", "/v1/groups/m/offsets", nil).want(t, 200, "").contains(t, `{"items":[],"next_page_token":null}`)

	for query, want := range map[string]string{
		"": "g m", "?state=Empty": "g", "?state=stable,empty,CompletingRebalance": "g m", "?type=classic": "g m", "?type=lease": "", "?limit=1": "g",
	} {
		if got := d.groupNames(query); got != want {
			t.Errorf("groups%s: %q, want %q", query, got, want)
		}
	}
	for _, query := range []string{"state=", "state=Dead", "state=Empty,", "type=", "type=consumer", "limit=0", "page_token=!", "page_token=", "page_token=_w", "x=1"} {
		d.do("GET", "/v1/groups?"+query, nil).want(t, 400, "invalid_parameter")
	}
	d.do("DELETE", "/v1/groups/g", nil).want(t, 204, "")
	d.do("GET", "/v1/groups/g/offsets", nil).want(t, 404, "unknown_group")
}

// groupNames are the ids in the answer to a list of groups.
func (d *door) groupNames(query string) string {
	d.t.Helper()
	var list struct {
		Items []groupInfo `json:"items"`
	}
	if err := json.Unmarshal(d.do("GET", "/v1/groups"+query, nil).want(d.t, 200, "").body, &list); err != nil {
		d.t.Fatal(err)
	}
	var names []string
	for _, g := range list.Items {
		names = append(names, g.Group)
	}
	return strings.Join(names, " ")
}

// Any id that the Kafka protocol can name is a group's, and comes back as it was;
// what is none is told so.
func TestGroupPaths(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	ids := []string{"a", "a/b", "/", "..", ".", "%", "a b", "grüppe-日本", strings.Repeat("x", 300), "a:ack", "a\x00b", "a?b#c", "+", "offsets", strings.Repeat("ü", 5000), "{group}"}
	for i, id := range ids {
		path := groupsPath + url.PathEscape(id)
		if id == "." || id == ".." {
			path = groupsPath + strings.ReplaceAll(id, ".", "%2E")
		}
		d.do("PUT", path+"/offsets", fmt.Sprintf(`{"offsets":[{"topic":"t","partition":0,"offset":%d}]}`, i), "Content-Type", mediaJSON).want(t, 200, "")
		d.do("GET", path+"/offsets", nil).want(t, 200, "").contains(t, fmt.Sprintf(`"offset":%d,`, i))
		var g groupInfo
		if err := json.Unmarshal(d.do("GET", path, nil).want(t, 200, "").body, &g); err != nil || g.Group != id {
			t.Errorf("group %.40q came back as %.40q: %v", id, g.Group, err)
		}
	}
	if groups, err := d.broker.ListGroups(t.Context(), auth.Anonymous, nil); err != nil || len(groups) != len(ids) {
		t.Errorf("%d groups of %d: %v", len(groups), len(ids), err)
	}
	got, token := 0, ""
	for {
		var list struct {
			Items []groupInfo `json:"items"`
			Next  *string     `json:"next_page_token"`
		}
		if err := json.Unmarshal(d.do("GET", "/v1/groups?limit=3"+token, nil).want(t, 200, "").body, &list); err != nil {
			t.Fatal(err)
		}
		got += len(list.Items)
		if list.Next == nil {
			break
		}
		token = "&page_token=" + *list.Next
	}
	if got != len(ids) {
		t.Errorf("pages have %d groups of %d", got, len(ids))
	}
	for _, bad := range []string{"", "%FF", "%C3", strings.Repeat("x", 32768)} {
		for _, rest := range []string{"", "/offsets"} {
			if bad+rest != "" {
				d.do("GET", groupsPath+bad+rest, nil).want(t, 400, "invalid_group")
			}
		}
	}
	d.do("GET", "/v1/groups/", nil).want(t, 404, "not_found")
	d.do("GET", "/v1/groups/a/", nil).want(t, 404, "not_found")
	if a := d.do("POST", "/v1/groups/a/offsets", nil); a.StatusCode != http.StatusMethodNotAllowed || a.Header.Get("Allow") != "GET, HEAD, PUT" {
		t.Errorf("POST: %d, Allow %q", a.StatusCode, a.Header.Get("Allow"))
	}
	if head := d.do("HEAD", "/v1/groups/a/offsets", nil); head.StatusCode != http.StatusOK || head.Header.Get("ETag") == "" || len(head.body) > 0 {
		t.Errorf("HEAD: %d %v", head.StatusCode, head.Header)
	}
}

// Offsets are set by number, as a number or a string, by time and by place; what
// is not named stays.
func TestSeek(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 3)
	d.topic("u", 1)
	for i := range 5 {
		d.do("POST", "/v1/topics/t/partitions/1/records", fmt.Sprintf(`[{"value":1,"timestamp":%d}]`, 1000*(i+1)), "Content-Type", mediaJSON).want(t, 200, "")
	}
	for _, tc := range []struct{ body, set, all string }{
		{`{"topic":"t","partition":0,"offset":7}`, "t/0=7", "t/0=7"},
		{`{"topic":"t","partition":0,"offset":"9223372036854775807","metadata":"Ü","leader_epoch":3}`, "t/0=9223372036854775807", "t/0=9223372036854775807"},
		{`{"topic":"u","partition":0,"offset":0}`, "u/0=0", "t/0=9223372036854775807 u/0=0"},
		{`{"topic":"t","from":"earliest"}`, "t/0=0 t/1=0 t/2=0", "t/0=0 t/1=0 t/2=0 u/0=0"},
		{`{"topic":"t","partition":1,"from":"latest"}`, "t/1=5", "t/0=0 t/1=5 t/2=0 u/0=0"},
		{`{"topic":"t","ts":2001}`, "t/0=0 t/1=2 t/2=0", "t/0=0 t/1=2 t/2=0 u/0=0"},
		{`{"topic":"t","ts":"1970-01-01T00:00:04Z","partition":1}`, "t/1=3", "t/0=0 t/1=3 t/2=0 u/0=0"},
		{`{"topic":"t","partition":1,"ts":"9999999"}`, "t/1=5", "t/0=0 t/1=5 t/2=0 u/0=0"},
		{`{"topic":"t","partition":1,"from":"tail:2"}`, "t/1=3", "t/0=0 t/1=3 t/2=0 u/0=0"},
		{`{"topic":"t","partition":1,"from":"ts:1000"},{"topic":"u","partition":0,"offset":"4"}`, "t/1=0 u/0=4", "t/0=0 t/1=0 t/2=0 u/0=4"},
	} {
		a := d.seek("g", `{"offsets":[`+tc.body+`]}`).want(t, 200, "")
		if got := offsetsOf(t, a); got != tc.set {
			t.Errorf("%s sets %s, want %s", tc.body, got, tc.set)
		}
		all := d.do("GET", "/v1/groups/g/offsets", nil).want(t, 200, "")
		if got := offsetsOf(t, all); got != tc.all {
			t.Errorf("after %s: %s, want %s", tc.body, got, tc.all)
		}
		if all.Header.Get("ETag") != a.Header.Get("ETag") {
			t.Errorf("after %s: tag %s, then %s", tc.body, a.Header.Get("ETag"), all.Header.Get("ETag"))
		}
	}
	if got := offsetsOf(t, d.do("GET", "/v1/groups/g/offsets?topic=u", nil)); got != "u/0=4" {
		t.Errorf("of u: %s", got)
	}
	var pages []string
	for token := ""; ; {
		a := d.do("GET", "/v1/groups/g/offsets?limit=3"+token, nil).want(t, 200, "")
		pages = append(pages, offsetsOf(t, a))
		var list struct {
			Next *string `json:"next_page_token"`
		}
		if err := json.Unmarshal(a.body, &list); err != nil {
			t.Fatal(err)
		}
		if list.Next == nil {
			break
		}
		token = "&page_token=" + *list.Next
	}
	if got := strings.Join(pages, " | "); got != "t/0=0 t/1=0 t/2=0 | u/0=4" {
		t.Errorf("pages: %s", got)
	}
	for _, query := range []string{"page_token=!", "page_token=dA", "limit=0", "partition=0"} {
		d.do("GET", "/v1/groups/g/offsets?"+query, nil).want(t, 400, "invalid_parameter")
	}
	d.do("GET", "/v1/groups/g/offsets?topic=a/b", nil).want(t, 400, "invalid_topic")
}

// offsetsOf puts the offsets of an answer into a line.
func offsetsOf(t *testing.T, a *answer) string {
	t.Helper()
	var list struct {
		Items []groupOffset `json:"items"`
	}
	if err := json.Unmarshal(a.body, &list); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	var out []string
	for _, o := range list.Items {
		out = append(out, fmt.Sprintf("%s/%d=%d", o.Topic, o.Partition, o.Offset))
	}
	return strings.Join(out, " ")
}

// Case 31: an offset that is none is a 400 that says where, and a request with one
// bad item changes nothing; nothing to set is no error.
func TestBadSeeks(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 2)
	good := `{"topic":"t","partition":1,"offset":5}`
	d.seek("g", `{"offsets":[`+good+`]}`).want(t, 200, "")
	for _, tc := range []struct {
		item   string
		status int
		code   string
		member string
	}{
		{`{"topic":"t","partition":0,"offset":"tank"}`, 400, "invalid_parameter", "/offset"},
		{`{"topic":"t","partition":0,"offset":""}`, 400, "invalid_parameter", "/offset"},
		{`{"topic":"t","partition":0,"offset":-5}`, 400, "invalid_parameter", "/offset"},
		{`{"topic":"t","partition":0,"offset":"-5"}`, 400, "invalid_parameter", "/offset"},
		{`{"topic":"t","partition":0,"offset":1.5}`, 400, "invalid_parameter", "/offset"},
		{`{"topic":"t","partition":0,"offset":1e3}`, 400, "invalid_parameter", "/offset"},
		{`{"topic":"t","partition":0,"offset":9223372036854775808}`, 400, "invalid_parameter", "/offset"},
		{`{"topic":"t","partition":0,"offset":"9223372036854775808"}`, 400, "invalid_parameter", "/offset"},
		{`{"topic":"t","partition":0,"offset":"+1"}`, 400, "invalid_parameter", "/offset"},
		{`{"topic":"t","partition":0,"offset":" 1"}`, 400, "invalid_parameter", "/offset"},
		{`{"topic":"t","partition":0,"offset":null}`, 400, "invalid_parameter", "/offset"},
		{`{"topic":"t","partition":0,"offset":true}`, 400, "invalid_parameter", "/offset"},
		{`{"topic":"t","partition":0,"offset":[1]}`, 400, "invalid_parameter", "/offset"},
		{`{"topic":"t","partition":0}`, 400, "invalid_parameter", "/offset"},
		{`{"topic":"t","offset":1}`, 400, "invalid_parameter", "/partition"},
		{`{"topic":"t","partition":0,"offset":1,"from":"latest"}`, 400, "invalid_parameter", "/offset"},
		{`{"topic":"t","partition":0,"from":"latest","ts":1}`, 400, "invalid_parameter", "/offset"},
		{`{"topic":"t","partition":0,"from":"soon"}`, 400, "invalid_parameter", "/from"},
		{`{"topic":"t","partition":0,"ts":-1}`, 400, "invalid_parameter", "/ts"},
		{`{"topic":"t","partition":0,"ts":"today"}`, 400, "invalid_parameter", "/ts"},
		{`{"topic":"t","partition":0,"ts":null}`, 400, "invalid_parameter", "/ts"},
		{`{"topic":"t","partition":0,"ts":1,"leader_epoch":1}`, 400, "invalid_parameter", "/leader_epoch"},
		{`{"topic":"t","partition":0,"offset":1,"leader_epoch":-2}`, 400, "invalid_parameter", "/leader_epoch"},
		{`{"topic":"t","partition":-1,"offset":1}`, 400, "invalid_partition", ""},
		{`{"topic":"t","partition":2,"offset":1}`, 404, "unknown_partition", ""},
		{`{"topic":"t","partition":2,"from":"latest"}`, 404, "unknown_partition", ""},
		{`{"topic":"u","partition":0,"offset":1}`, 404, "unknown_topic", ""},
		{`{"topic":"a/b","partition":0,"offset":1}`, 400, "invalid_topic", ""},
		{`{"partition":0,"offset":1}`, 400, "invalid_topic", ""},
		{`{"topic":"t","from":"earliest"}`, 400, "invalid_request", ""}, // partition 1 twice
		{`{"topic":"t","partition":0,"offset":1,"metadata":"` + strings.Repeat("x", 4097) + `"}`, 422, "offset_metadata_too_large", ""},
	} {
		p := d.seek("g", `{"offsets":[`+`{"topic":"t","partition":1,"offset":6},`+tc.item+`]}`).want(t, tc.status, tc.code).problem(t)
		if len(p.Errors) != 1 || p.Errors[0].Index == nil || *p.Errors[0].Index != 1 || p.Errors[0].Pointer != "/offsets/1"+tc.member {
			t.Errorf("%.100s: errors %+v", tc.item, p.Errors)
		}
	}
	for body, code := range map[string]string{
		``: "empty_body", `[]`: "malformed_body", `{}`: "malformed_body", `null`: "malformed_body", `{"offsets":null}`: "malformed_body",
		`{"offsets":{}}`: "malformed_body", `{"offsets":[1]}`: "malformed_body", `{"offset":[]}`: "malformed_body",
		`{"offsets":[{"topic":"t","partition":1,"offset":5,"x":1}]}`: "malformed_body", `{"offsets":[{"topic":"t","partition":1.5,"offset":5}]}`: "malformed_body",
		`{"offsets":[{"topic":"t","partition":"1","offset":5}]}`: "malformed_body", `{"offsets":[{"topic":"t","topic":"t","partition":1,"offset":5}]}`: "malformed_body",
		`{"offsets":[` + good + `]`: "malformed_body", `{"offsets":[{"topic":1}]}`: "malformed_body",
	} {
		d.seek("g", body).want(t, 400, code)
	}
	d.do("PUT", "/v1/groups/g/offsets", `{"offsets":[]}`, "Content-Type", "text/plain").want(t, 415, "unsupported_media_type")
	d.seek("g", `{"offsets":[]}`).want(t, 200, "")
	if got := offsetsOf(t, d.do("GET", "/v1/groups/g/offsets", nil)); got != "t/1=5" {
		t.Errorf("bad requests changed the offsets: %s", got)
	}
	d.do("GET", "/v1/groups/h", nil).want(t, 404, "unknown_group")
}

// If-Match keeps a seek from undoing what was committed since; If-None-Match: *
// only makes the first.
func TestSeekConditions(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 2)
	body := func(offset int) string {
		return fmt.Sprintf(`{"offsets":[{"topic":"t","partition":0,"offset":%d}]}`, offset)
	}
	d.seek("g", body(1), "If-Match", "*").want(t, 412, "precondition_failed")
	d.do("GET", "/v1/groups/g", nil).want(t, 404, "unknown_group")
	tag := d.seek("g", body(1), "If-None-Match", "*").want(t, 200, "").Header.Get("ETag")
	d.seek("g", body(2), "If-None-Match", "*").want(t, 412, "precondition_failed")
	d.seek("g", body(2), "If-Match", `"x"`).want(t, 412, "precondition_failed")
	d.seek("g", body(2), "If-Match", tag).want(t, 200, "")
	d.seek("g", body(3), "If-Match", tag).want(t, 412, "precondition_failed")
	tag = d.do("GET", "/v1/groups/g/offsets?limit=1", nil).want(t, 200, "").Header.Get("ETag")
	d.do("GET", "/v1/groups/g/offsets", nil, "If-None-Match", tag).want(t, 304, "")
	if _, err := d.broker.CommitOffsets(t.Context(), auth.Anonymous, "g", broker.MemberRef{Generation: -1}, -1, []broker.CommitOffset{{Topic: "t", Partition: 1, Offset: 9, LeaderEpoch: -1}}); err != nil {
		t.Fatal(err)
	}
	d.do("GET", "/v1/groups/g/offsets", nil, "If-None-Match", tag).want(t, 200, "")
	d.seek("g", body(3), "If-Match", tag).want(t, 412, "precondition_failed")
	d.seek("g", `{"offsets":[]}`, "If-Match", tag).want(t, 412, "precondition_failed")
	d.seek("g", body(3), "If-Match", "*").want(t, 200, "")

	now := d.do("GET", "/v1/groups/g/offsets", nil).Header.Get("ETag")
	const writers = 8
	answers := make(chan error, writers)
	for i := range writers {
		go func() {
			c := conditions{match: &tagList{tags: []string{now}}}
			_, err := d.broker.SeekGroup(t.Context(), auth.Anonymous, "g", &broker.GroupSeek{
				Offsets: []broker.CommitOffset{{Topic: "t", Offset: int64(100 + i), LeaderEpoch: -1}},
				If:      func(all []broker.CommittedOffset) error { return c.check(offsetsTag(all), true) },
			})
			answers <- err
		}()
	}
	done := 0
	for range writers {
		if err := <-answers; err == nil {
			done++
		}
	}
	if done != 1 {
		t.Errorf("%d of %d seeks with one tag were done", done, writers)
	}
}
