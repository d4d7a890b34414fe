package e2e

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"
)

// filteredPage is an answer with a filter.
type filteredPage struct {
	Records []streamRecord `json:"records"`
	Next    int64          `json:"next_offset"`
	Scanned int            `json:"filter_scanned"`
}

// TestFilterDoors proves that a filter leaves the same records through in pages, lines, events and on a socket, and that
// whoever goes on from where an answer or a stream has come to has nothing looked at again.
func TestFilterDoors(t *testing.T) {
	const records, every = 5000, 100
	s := start(t)
	s.createTopic("t", 1)
	numbered := func(from, to int) {
		t.Helper()
		var lines strings.Builder
		for i := from; i < to; i++ {
			fmt.Fprintf(&lines, "{\"value\":{\"n\":%d}}\n", i)
		}
		s.post("/v1/topics/t/partitions/0/records", typeNDJSON, lines.String())
	}
	numbered(0, records)
	const filter = "value.n % 100 == 7"
	path := "/v1/topics/t/partitions/0/records?filter=" + url.QueryEscape(filter)
	next := 7
	check := func(where string, offset int64) {
		t.Helper()
		if offset != int64(next) {
			t.Fatalf("%s: offset %d, want %d", where, offset, next)
		}
		next += every
	}

	scanned := 0
	var page filteredPage
	for page.Next < records {
		at := page.Next
		page = filteredPage{}
		s.get(fmt.Sprintf("%s&offset=%d&max_records=7", path, at)).decode(&page)
		for _, r := range page.Records {
			check("page", r.Offset)
		}
		scanned += page.Scanned
		if page.Next <= at {
			t.Fatalf("%+v", page)
		}
	}
	if next != records+7 || scanned != records {
		t.Errorf("the pages end before %d; %d of %d records were looked at", next, scanned, records)
	}

	next = 7
	lines := s.stream(path+"&from=earliest&stream=true", typeNDJSON)
	for next < records {
		check("NDJSON", lines.wantLine("").Offset)
	}
	next = 7
	events := s.stream(path+"&from=earliest", typeSSE)
	id := ""
	for next < records {
		e := events.wantEvent("")
		r, err := e.records()
		if err != nil {
			t.Fatal(err)
		}
		check("SSE", r[0].Offset)
		id = e.id
	}
	next = 7
	k := s.socket()
	k.say(`{"type":"subscribe","id":1,"sub":"s","topic":"t","from":"earliest","filter":%q}`, filter)
	k.want("subscribed")
	at := int64(0)
	for next < records {
		m := k.want("data")
		if m.Prev != at {
			t.Fatalf("the chain is broken at %d: %s", at, clip(m.text))
		}
		for _, r := range m.Records {
			check("WebSocket", r.Offset)
		}
		at = m.Next
	}

	last, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		t.Fatalf("id %q: %v", id, err)
	}
	numbered(records, records+10)
	page = filteredPage{}
	s.get(fmt.Sprintf("%s&offset=%d", path, last)).decode(&page)
	if len(page.Records) != 1 || page.Records[0].Offset != records+7 || page.Scanned > every+10 || page.Next != records+10 {
		t.Errorf("from %d on: %+v", last, page)
	}
}

// TestFilterHoldsNobodyUp proves that readers whose filter takes as long as one may on each record hold up no other: one
// without a filter gets each of 300 records before the next is written, while they are not through.
func TestFilterHoldsNobodyUp(t *testing.T) {
	const slow, records, rounds = 8, 2000, 300
	s := start(t)
	s.createTopic("heavy", 1)
	s.createTopic("t", 1)
	list := strings.TrimSuffix(strings.Repeat("1,", 300), ",")
	s.post("/v1/topics/heavy/partitions/0/records", typeNDJSON, strings.Repeat(`{"value":[`+list+"]}\n", records))
	filter := url.QueryEscape("value.all(a, value.all(b, a * b == 1)) && value.size() == 0")
	var held []*listener
	for range slow {
		held = append(held, s.stream("/v1/topics/heavy/partitions/0/records?from=earliest&stream=true&filter="+filter, typeNDJSON))
	}
	k := s.socket()
	k.say(`{"type":"subscribe","id":1,"sub":"s","topic":"t","from":"earliest"}`)
	k.want("subscribed")
	for i := range int64(rounds) {
		s.post("/v1/topics/t/partitions/0/records?value=line", typeNDJSON, strconv.FormatInt(i, 10)+"\n")
		k.wantData(0, i, 1)
	}
	for _, l := range held {
		if err := l.nc.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		for {
			got, err := l.readLine()
			if err != nil {
				break // there is no more for now
			}
			if got.Control != "position" || got.NextOffset == nil || *got.NextOffset >= records {
				t.Errorf("a filter was faster than the reader without: %s", clip(got.text))
			}
		}
	}
}
