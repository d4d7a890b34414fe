package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	typeEvent      = "application/cloudevents+json"
	typeEventBatch = "application/cloudevents-batch+json"
)

// cloudEvent is a CloudEvent in JSON.
type cloudEvent struct {
	Version string          `json:"specversion"`
	ID      string          `json:"id"`
	Source  string          `json:"source"`
	Type    string          `json:"type"`
	Media   string          `json:"datacontenttype"`
	Subject string          `json:"subject"`
	Data    json.RawMessage `json:"data"`
}

// asEvent decodes a CloudEvent.
func asEvent(t *testing.T, text string) cloudEvent {
	t.Helper()
	var e cloudEvent
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		t.Fatalf("%v: %s", err, clip(text))
	}
	return e
}

// header is the value of a record's header, "" if there is none.
func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

// TestCloudEventsDoors proves that CloudEvents that came in by HTTP in any mode, or by a Kafka client as the Kafka
// binding has it, in either of its modes, are the same events for a Kafka client and in every form of reading by HTTP;
// and that a record that is none is refused there, or wrapped if that is asked for.
func TestCloudEventsDoors(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	const path = "/v1/topics/t/partitions/0/records"
	text := func(i int) string {
		return fmt.Sprintf(`{"specversion":"1.0","id":"%d","source":"/here","type":"made","subject":"s\u20ac","datacontenttype":"application/json","data":{"n":%d}}`, i, i)
	}
	s.post(path, typeEvent, text(0))
	s.post(path, typeEventBatch, "["+text(1)+","+text(2)+"]")
	s.post(path, typeJSON, `{"n":3}`, "Ce-Specversion: 1.0", "Ce-Id: 3", "Ce-Source: /here", "Ce-Type: made", "Ce-Subject: s%E2%82%AC")
	client := s.kgo(kgo.DefaultProduceTopic("t"), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"t": {0: kgo.NewOffset().At(0)}}))
	binary := &kgo.Record{Value: []byte(`{"n":4}`), Headers: []kgo.RecordHeader{
		{Key: "ce_specversion", Value: []byte("1.0")},
		{Key: "ce_id", Value: []byte("4")},
		{Key: "ce_source", Value: []byte("/here")},
		{Key: "ce_type", Value: []byte("made")},
		{Key: "ce_subject", Value: []byte("s€")},
		{Key: "content-type", Value: []byte("application/json")},
	}}
	structured := &kgo.Record{Value: []byte(text(5)), Headers: []kgo.RecordHeader{{Key: "content-type", Value: []byte(typeEvent + "; charset=UTF-8")}}}
	const events = 6
	if err := client.ProduceSync(t.Context(), binary, structured).FirstErr(); err != nil {
		t.Fatal(err)
	}
	same := func(where string, i int, got cloudEvent) {
		t.Helper()
		want := cloudEvent{"1.0", fmt.Sprint(i), "/here", "made", "application/json", "s€", json.RawMessage(fmt.Sprintf(`{"n":%d}`, i))}
		if got.Data = json.RawMessage(strings.ReplaceAll(string(got.Data), " ", "")); fmt.Sprintf("%+v %s", got, got.Data) != fmt.Sprintf("%+v %s", want, want.Data) {
			t.Errorf("%s: event %d is %+v %s", where, i, got, got.Data)
		}
	}

	var records []*kgo.Record
	for len(records) < events {
		records = append(records, client.PollFetches(t.Context()).Records()...)
	}
	for i, r := range records {
		if strings.HasPrefix(header(r, "content-type"), typeEvent) {
			same("franz-go, structured", i, asEvent(t, string(r.Value)))
			continue
		}
		same("franz-go, binary", i, cloudEvent{
			header(r, "ce_specversion"), header(r, "ce_id"), header(r, "ce_source"), header(r, "ce_type"), header(r, "content-type"), header(r, "ce_subject"), r.Value,
		})
	}

	var batch []cloudEvent
	s.get(path+"?from=earliest", "Accept: "+typeEventBatch).decode(&batch)
	lines := strings.Split(strings.TrimSpace(string(s.get(path+"?from=earliest&ce=strict", "Accept: "+typeNDJSON).body)), "\n")
	if len(batch) != events || len(lines) != events {
		t.Fatalf("%d events in a batch, %d lines", len(batch), len(lines))
	}
	sse := s.stream(path+"?from=earliest&ce=strict", typeSSE)
	for i := range events {
		same("batch", i, batch[i])
		same("NDJSON", i, asEvent(t, lines[i]))
		same("SSE", i, asEvent(t, sse.wantEvent("").data))
		one := fmt.Sprintf("%s/%d", path, i)
		same("one record", i, asEvent(t, string(s.get(one, "Accept: "+typeEvent).body)))
		a := s.get(one + "?ce=binary")
		subject := strings.ReplaceAll(a.header.Get("Ce-Subject"), "%E2%82%AC", "€")
		same("one record, binary", i, cloudEvent{
			a.header.Get("Ce-Specversion"), a.header.Get("Ce-Id"), a.header.Get("Ce-Source"), a.header.Get("Ce-Type"), a.header.Get("Content-Type"), subject, a.body,
		})
	}

	if err := client.ProduceSync(t.Context(), &kgo.Record{Key: []byte("k"), Value: []byte("plain")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	at := fmt.Sprintf("%s?offset=%d", path, events)
	s.do(http.MethodGet, at, nil, "Accept: "+typeEventBatch).refused(http.StatusNotAcceptable, "not_a_cloudevent")
	s.do(http.MethodGet, at+"&ce=strict", nil, "Accept: "+typeNDJSON).refused(http.StatusNotAcceptable, "not_a_cloudevent")
	s.do(http.MethodGet, fmt.Sprintf("%s/%d", path, events), nil, "Accept: "+typeEvent).refused(http.StatusNotAcceptable, "not_a_cloudevent")
	if e := sse.wantEvent("error"); !strings.Contains(e.data, `"not_a_cloudevent"`) {
		t.Errorf("SSE: %s", e.data)
	}
	var wrapped []cloudEvent
	s.get(path+"?from=earliest&ce=wrap", "Accept: "+typeEventBatch).decode(&wrapped)
	if len(wrapped) != events+1 || !slices.EqualFunc(wrapped[:events], batch, func(a, b cloudEvent) bool { return a.ID == b.ID && a.Source == b.Source }) {
		t.Fatalf("%+v", wrapped)
	}
	if w := wrapped[events]; w.Type != "leat.record" || w.Source != "/v1/topics/t/partitions/0" || w.ID != fmt.Sprint(events) || !strings.Contains(string(w.Data), `"value_str":"plain"`) {
		t.Errorf("%+v %s", w, w.Data)
	}
}
