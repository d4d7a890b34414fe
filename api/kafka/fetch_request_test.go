package kafka

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/broker"
)

// asked is what a request decodes to, by kmsg.
func asked(req *kmsg.FetchRequest) *fetchCall {
	fc := &fetchCall{session: req.SessionEpoch}
	fc.query.MaxWait = time.Duration(req.MaxWaitMillis) * time.Millisecond
	fc.query.MinBytes, fc.query.MaxBytes = int(req.MinBytes), min(int(req.MaxBytes), maxFetchBytes)
	fc.query.ReadCommitted = req.IsolationLevel == 1
	for i := range req.Topics {
		in := &req.Topics[i]
		fc.topics = append(fc.topics, fetchTopic{name: in.Topic, id: in.TopicID, partitions: len(in.Partitions)})
		for j := range in.Partitions {
			p := &in.Partitions[j]
			fc.query.Partitions = append(fc.query.Partitions, broker.FetchPartition{
				Topic: in.Topic, TopicID: in.TopicID, Partition: p.Partition,
				Offset: p.FetchOffset, Epoch: p.CurrentLeaderEpoch, MaxBytes: int(p.PartitionMaxBytes),
			})
		}
	}
	return fc
}

// checkFetchDecoder decodes a body in both ways, twice by the same call, and
// reports whether it was taken.
func checkFetchDecoder(t *testing.T, body []byte, version int16) bool {
	t.Helper()
	req := kmsg.NewPtrFetchRequest()
	req.Version = version
	wantErr := req.ReadFrom(body)
	in := new(interner)
	var cl call
	for range 2 {
		fc := fetchCalls.Get().(*fetchCall)
		if err := fc.decode(in, body, version); (err != nil) != (wantErr != nil) {
			t.Fatalf("version %d: error %v, kmsg's is %v: %x", version, err, wantErr, body)
		}
		if want := asked(req); wantErr == nil {
			q, w := fc.query, want.query
			if !slices.Equal(q.Partitions, w.Partitions) || !slices.Equal(fc.topics, want.topics) || fc.session != want.session ||
				q.MaxWait != w.MaxWait || q.MinBytes != w.MinBytes || q.MaxBytes != w.MaxBytes || q.ReadCommitted != w.ReadCommitted {
				t.Fatalf("version %d: %+v, kmsg has %+v: %x", version, fc, want, body)
			}
		}
		cl.state = fc
		endFetch(&cl)
	}
	return wantErr == nil
}

// fullFetchRequest has something in every field and tag of a version.
func fullFetchRequest(version int16) *kmsg.FetchRequest {
	req := fetchRequest("first", [16]byte{1}, 3, 1<<40)
	req.Version = version
	req.ReplicaID, req.MaxWaitMillis, req.MinBytes, req.MaxBytes = -1, 500, 1, 1<<30
	req.IsolationLevel, req.SessionID, req.SessionEpoch, req.Rack = 1, 7, 9, "rack"
	req.Topics[0].Partitions = append(req.Topics[0].Partitions, fetchRequest("", [16]byte{}, 1, -1).Topics[0].Partitions[0])
	req.Topics[0].Partitions[1].CurrentLeaderEpoch, req.Topics[0].Partitions[1].LastFetchedEpoch = 5, 6
	req.Topics = append(req.Topics, kmsg.FetchRequestTopic{}, fetchRequest("second", [16]byte{2}, 0, 5).Topics[0])
	req.ForgottenTopics = []kmsg.FetchRequestForgottenTopic{{Topic: "gone", TopicID: [16]byte{3}, Partitions: []int32{1, 2, 3}}, {}}
	if req.IsFlexible() {
		cluster := "cluster"
		req.ClusterID, req.ReplicaState.ID, req.ReplicaState.Epoch = &cluster, 4, 5
		req.Topics[0].Partitions[0].ReplicaDirectoryID = [16]byte{8}
		req.Topics[0].Partitions[0].HighWatermark = 77
		for _, tags := range []*kmsg.Tags{&req.UnknownTags, &req.Topics[0].UnknownTags, &req.Topics[2].Partitions[0].UnknownTags, &req.ForgottenTopics[0].UnknownTags} {
			tags.Set(99, []byte("what"))
			tags.Set(300, nil)
		}
	}
	return req
}

// A Fetch request decodes by hand to what kmsg makes of it, in every version,
// whole, cut short, and with each byte changed.
func TestFetchDecoderEqualsKmsg(t *testing.T) {
	for version := int16(4); version <= 17; version++ {
		body := fullFetchRequest(version).AppendTo(nil)
		if !checkFetchDecoder(t, body, version) {
			t.Fatalf("version %d: refused", version)
		}
		if !checkFetchDecoder(t, append(bytes.Clone(body), "more"...), version) {
			t.Fatalf("version %d: refused with more behind it", version)
		}
		for i := range body {
			if checkFetchDecoder(t, body[:i], version) {
				t.Fatalf("version %d: cut at %d is taken", version, i)
			}
			for _, b := range []byte{0x00, 0x01, 0x7f, 0x80, 0xff, body[i] + 1, body[i] - 1} {
				changed := bytes.Clone(body)
				changed[i] = b
				checkFetchDecoder(t, changed, version)
			}
		}
	}
}

// FuzzFetchDecoder: the decoder by hand and kmsg's take and refuse the same
// bytes and find the same values.
func FuzzFetchDecoder(f *testing.F) {
	for version := int16(4); version <= 17; version++ {
		f.Add(version, fullFetchRequest(version).AppendTo(nil))
		f.Add(version, (&kmsg.FetchRequest{Version: version}).AppendTo(nil))
	}
	f.Add(int16(12), bytes.Repeat([]byte{0xff}, 64))
	f.Add(int16(17), append(make([]byte, 21), 0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0))
	f.Fuzz(func(t *testing.T, version int16, body []byte) {
		if version < 4 || version > 17 {
			version = 4 + (version%14+14)%14
		}
		checkFetchDecoder(t, body, version)
	})
}

// Names that come again cost nothing, and what is remembered is bounded.
func TestInterner(t *testing.T) {
	var in interner
	name := []byte("topic")
	in.name(name)
	if allocs := testing.AllocsPerRun(100, func() { in.name(name) }); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
	for i := range 3 * maxNames {
		p := bytes.Repeat([]byte{byte(i), byte(i >> 8)}, i)
		if got := in.name(p); got != string(p) {
			t.Fatalf("%q for %q", got, p)
		}
		if len(in.known) > maxNames {
			t.Fatalf("%d names", len(in.known))
		}
		for known := range in.known {
			if len(known) > maxName {
				t.Fatalf("a name of %d bytes is kept", len(known))
			}
		}
	}
}
