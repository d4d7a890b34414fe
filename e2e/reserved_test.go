package e2e

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestReservedTopics proves that no door lets a client change the topic that groups are kept in: more partitions would
// move groups to other shards, and other configs could lose them. The answer says why.
func TestReservedTopics(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	const topic, says = "__consumer_offsets", "is reserved for the server"
	client := s.kgo()
	// The first group makes it.
	offsets := kadm.Offsets{}
	offsets.AddOffset("t", 0, 0, -1)
	if _, err := kadm.NewClient(client).CommitOffsets(t.Context(), "g", offsets); err != nil {
		t.Fatal(err)
	}
	var before struct {
		Partitions int `json:"partitions"`
	}
	s.get("/v1/topics/" + topic).decode(&before)
	merge := "Content-Type: application/merge-patch+json"
	for name, a := range map[string]answer{
		"more partitions": s.do("PATCH", "/v1/topics/"+topic, []byte(`{"partitions":100}`), merge),
		"as many":         s.do("PATCH", "/v1/topics/"+topic, []byte(`{"partitions":16}`), merge),
		"a config":        s.do("PATCH", "/v1/topics/"+topic, []byte(`{"configs":{"cleanup.policy":"delete"}}`), merge),
		"both":            s.do("PATCH", "/v1/topics/"+topic, []byte(`{"partitions":100,"configs":{"cleanup.policy":"delete"}}`), merge),
		"delete":          s.do("DELETE", "/v1/topics/"+topic, nil),
		"records":         s.do("POST", "/v1/topics/"+topic+"/records", []byte(`[{"key":"k","value":1}]`), "Content-Type: "+typeJSON),
		"create":          s.do("POST", "/v1/topics", []byte(`{"name":"`+topic+`"}`), "Content-Type: "+typeJSON),
		"create another":  s.do("POST", "/v1/topics", []byte(`{"name":"__transaction_state"}`), "Content-Type: "+typeJSON),
	} {
		p, err := a.asProblem(400, "invalid_topic")
		if err != nil || !strings.Contains(p.Detail, says) {
			t.Errorf("%s: %v: %s", name, err, a.body)
		}
	}
	for _, dry := range []bool{true, false} {
		req := kmsg.NewPtrCreatePartitionsRequest()
		req.ValidateOnly = dry
		for _, name := range []string{topic, "t"} {
			one := kmsg.NewCreatePartitionsRequestTopic()
			one.Topic, one.Count = name, 100
			req.Topics = append(req.Topics, one)
		}
		resp, err := req.RequestWith(t.Context(), client)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range resp.Topics {
			want := codeNone
			if r.Topic == topic {
				want = codeInvalidTopic
			}
			if r.ErrorCode != want || want != codeNone && !strings.Contains(text(r.ErrorMessage), says) {
				t.Errorf("dry %v, %s: code %d (%s), want %d", dry, r.Topic, r.ErrorCode, text(r.ErrorMessage), want)
			}
		}
	}
	after := before
	if s.get("/v1/topics/" + topic).decode(&after); after != before || before.Partitions != 16 {
		t.Errorf("the topic was %+v, is %+v", before, after)
	}
}
