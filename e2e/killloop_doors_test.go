package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// tryWire is wire for workers whose server may be gone.
func (s *server) tryWire() (*wire, error) {
	nc, err := net.Dial("tcp", s.Kafka)
	if err != nil {
		return nil, err
	}
	return newWire(s.t, nc), nil
}

// produceSocket sends one message at a time over a WebSocket until stop or the server is gone. Nothing is sent twice.
func (l *ledger) produceSocket(s *server, stop <-chan struct{}) {
	nc, err := net.Dial("tcp", s.HTTP)
	if err != nil {
		return
	}
	defer nc.Close() //nolint:errcheck // the server is gone
	if nc.SetDeadline(time.Now().Add(patience)) != nil {
		return
	}
	k, err := openSocket(nc)
	if err != nil {
		return
	}
	for acks := 0; ; acks++ {
		select {
		case <-stop:
			return
		default:
		}
		first := l.take(2)
		if k.send(`{"type":"produce","id":%d,"topic":%q,"acks":%q,"receipts":"summary","records":[{"value_str":%q},{"value_str":%q}]}`,
			first, l.topic, []string{"all", "1"}[acks%2], l.value(first), l.value(first+1)) != nil {
			return
		}
		for {
			m, err := k.next()
			if err != nil {
				return
			}
			if m.Type == "error" {
				s.t.Errorf("%s: %s", l.topic, m.text)
				return
			}
			if m.Type != "produced" {
				continue
			}
			var r receipts
			err = json.Unmarshal([]byte(m.text), &r)
			if err != nil || string(m.ID) != fmt.Sprint(first) || len(r.Partitions) != 1 || r.Partitions[0].Count != 2 {
				s.t.Errorf("%s: %v: %s", l.topic, err, m.text)
				return
			}
			l.answered(first, r.Partitions[0].Base)
			l.answered(first+1, r.Partitions[0].Base+1)
			break
		}
	}
}

// trim deletes what is old in the topic, again and again, until stop or the server is gone.
func (l *ledger) trim(s *server, keep int64, stop <-chan struct{}) {
	w, err := s.tryWire()
	if err != nil {
		return
	}
	defer w.nc.Close() //nolint:errcheck // the server is gone
	for {
		select {
		case <-stop:
			return
		default:
		}
		l.mu.Lock()
		before := l.seen - keep
		for _, offset := range l.acked {
			before = max(before, offset-keep)
		}
		cut := l.cut
		l.cut.high = max(cut.high, before)
		l.mu.Unlock()
		if before <= cut.low {
			after(time.Millisecond)
			continue
		}
		req := kmsg.NewPtrDeleteRecordsRequest()
		req.Version, req.TimeoutMillis = 2, 30_000
		topic, partition := kmsg.NewDeleteRecordsRequestTopic(), kmsg.NewDeleteRecordsRequestTopicPartition()
		topic.Topic, partition.Offset = l.topic, before
		topic.Partitions = append(topic.Partitions, partition)
		req.Topics = append(req.Topics, topic)
		resp, err := w.try(req)
		if err != nil {
			return
		}
		p := resp.(*kmsg.DeleteRecordsResponse).Topics[0].Partitions[0]
		if p.ErrorCode == codeOffsetOutOfRange { // answered with acks=1, and not on disk yet
			continue
		}
		if p.ErrorCode != codeNone || p.LowWatermark < before {
			s.t.Errorf("%s: DeleteRecords before %d: code %d, low watermark %d", l.topic, before, p.ErrorCode, p.LowWatermark)
			return
		}
		l.mu.Lock()
		l.cut.low = max(l.cut.low, p.LowWatermark)
		l.mu.Unlock()
	}
}

// keyed is what one producer wrote to its own compacted topic: for each key only the last value counts.
type keyed struct {
	topic  string
	mu     sync.Mutex
	sent   int
	at     map[int64]keyedValue // what was answered, and what the log was seen to have; no more what was compacted away
	latest map[string]int64     // key -> the largest offset that it was ever at
	seen   int64                // offsets below are in at, or were compacted away
	gone   int                  // how many were compacted away
}

// keyedValue is a record; without a value it is a tombstone.
type keyedValue struct {
	key, value string
	tombstone  bool
}

func newKeyed(topic string) *keyed {
	return &keyed{topic: topic, at: map[int64]keyedValue{}, latest: map[string]int64{}}
}

// note keeps a record. mu must be held.
func (k *keyed) note(offset int64, r keyedValue) {
	k.at[offset] = r
	if last, ok := k.latest[r.key]; !ok || last < offset {
		k.latest[r.key] = offset
	}
}

// produce sends one batch at a time until stop or the server is gone.
func (k *keyed) produce(t *testing.T, s *server, seed uint64, stop <-chan struct{}) {
	w, err := s.tryWire()
	if err != nil {
		return
	}
	defer w.nc.Close() //nolint:errcheck // the server is gone
	rng := rand.New(rand.NewPCG(seed, 1))
	for {
		select {
		case <-stop:
			return
		default:
		}
		now := time.Now().UnixMilli()
		var recs []rec
		for range 1 + rng.IntN(6) {
			k.sent++
			r := rec{ts: now, key: fmt.Appendf(nil, "key-%d", rng.IntN(30))}
			if rng.IntN(8) > 0 {
				r.value = fmt.Appendf(nil, "%d %s", k.sent, strings.Repeat("v", rng.IntN(200)))
			}
			recs = append(recs, r)
		}
		acks := int16(1 - 2*rng.IntN(2))
		p, err := w.tryProduce(k.topic, 0, acks, encode(t, codecs[rng.IntN(len(codecs))].codec, recs))
		if err != nil {
			return
		}
		if p.ErrorCode != codeNone {
			t.Errorf("%s: code %d", k.topic, p.ErrorCode)
			return
		}
		k.mu.Lock()
		for i, r := range recs {
			k.note(p.BaseOffset+int64(i), keyedValue{string(r.key), string(r.value), r.value == nil})
		}
		k.mu.Unlock()
	}
}

// check reads the whole topic: the batches chain, no offset has another value than it ever had, what was compacted away
// does not come back, and each key has the last record that was answered or seen of it, or nothing after a tombstone.
func (k *keyed) check(t *testing.T, s *server) {
	t.Helper()
	w := s.wire()
	defer w.nc.Close() //nolint:errcheck // all is read
	k.mu.Lock()
	defer k.mu.Unlock()
	have, state := map[int64]bool{}, map[string]int64{}
	var next int64
	for _, b := range mustSplit(t, w.fetchAll(k.topic, 0, 0)) {
		// Between two fetches compaction may have put one batch in the place of several, and the next fetch gets all
		// of the one that has its offset: then it begins below, with nothing that was not read just now.
		if b.base() > next {
			t.Fatalf("%s: a batch at offset %d, want %d", k.topic, b.base(), next)
		}
		from := next
		for _, r := range b.records(t) {
			offset := b.base() + int64(r.OffsetDelta)
			if offset < from && have[offset] && k.at[offset] == (keyedValue{string(r.Key), string(r.Value), r.Value == nil}) {
				continue
			}
			if offset < next || offset >= b.next() {
				t.Fatalf("%s: a record at offset %d after %d in a batch of [%d, %d)", k.topic, offset, next, b.base(), b.next())
			}
			next = offset + 1
			got := keyedValue{string(r.Key), string(r.Value), r.Value == nil}
			was, known := k.at[offset]
			if !known && offset < k.seen {
				t.Fatalf("%s: offset %d was compacted away, and is there again as %+v", k.topic, offset, got)
			}
			if known && was != got {
				t.Fatalf("%s: offset %d was %+v, and is %+v", k.topic, offset, was, got)
			}
			k.note(offset, got)
			have[offset], state[got.key] = true, offset
		}
		next = b.next()
	}
	if end := w.end(k.topic, 0); end != next {
		t.Fatalf("%s: end offset %d, want %d", k.topic, end, next)
	}
	for key, last := range k.latest {
		if last >= next {
			t.Fatalf("%s: %s was answered with offset %d, the log ends at %d", k.topic, key, last, next)
		}
		if offset, ok := state[key]; ok && offset < last {
			t.Fatalf("%s: %s is what it was at offset %d, but offset %d is its last", k.topic, key, offset, last)
		} else if !ok && !k.at[last].tombstone {
			t.Fatalf("%s: %s is lost, it was at offset %d", k.topic, key, last)
		}
	}
	for offset, r := range k.at {
		if !have[offset] && k.latest[r.key] > offset {
			delete(k.at, offset)
			k.gone++
		}
	}
	k.seen = next
}

// churn makes and deletes topics, and knows which must be there.
type churn struct {
	mu      sync.Mutex
	made    int
	present map[string]string // topic -> the value that was answered for its partition 0, or ""
	unsure  map[string]bool   // asked to be made or deleted, not answered
	deleted int
	setting span // retention.ms of the topic "configured"
}

func newChurn() *churn { return &churn{present: map[string]string{}, unsure: map[string]bool{}} }

// doubt forgets what is known of a topic until its request is answered.
func (c *churn) doubt(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.present, name)
	c.unsure[name] = true
}

// know says that the topic is there, with a value, or is not.
func (c *churn) know(name, value string, there bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.unsure, name)
	if there {
		c.present[name] = value
	} else {
		c.deleted++
	}
}

// work makes topics, writes to them, changes a config and deletes topics, by the doors in turn, until stop or the
// server is gone.
func (c *churn) work(s *server, stop <-chan struct{}) {
	w, err := s.tryWire()
	if err != nil {
		return
	}
	defer w.nc.Close() //nolint:errcheck // the server is gone
	for {
		for _, step := range []func(*server, *wire) bool{c.makeHTTP, c.configure, c.makeKafka, c.remove} {
			select {
			case <-stop:
				return
			default:
			}
			if !step(s, w) {
				return
			}
		}
	}
}

func (c *churn) name() string {
	c.made++
	name := fmt.Sprint("churn-", c.made)
	c.doubt(name)
	return name
}

func (c *churn) makeHTTP(s *server, _ *wire) bool {
	name := c.name()
	a, err := s.try("POST", "/v1/topics", fmt.Appendf(nil, `{"name":%q,"partitions":2}`, name), "Content-Type: "+typeJSON)
	if err != nil || a.status != 201 {
		return false
	}
	c.know(name, "", true)
	a, err = s.try("POST", "/v1/topics/"+name+"/partitions/0/records?value=line&acks=1", []byte(name+"\n"), "Content-Type: "+typeNDJSON)
	if err != nil || a.status != 200 {
		return false
	}
	c.know(name, name, true)
	return true
}

func (c *churn) makeKafka(s *server, w *wire) bool {
	name := c.name()
	resp, err := w.try(createRequest(name, 2, 1))
	if err != nil {
		return false
	}
	if code := resp.(*kmsg.CreateTopicsResponse).Topics[0].ErrorCode; code != codeNone {
		s.t.Errorf("create %s: code %d", name, code)
		return false
	}
	c.know(name, "", true)
	p, err := w.tryProduce(name, 0, -1, encode(s.t, kgo.NoCompression(), values(time.Now().UnixMilli(), name)))
	if err != nil || p.ErrorCode != codeNone {
		return false
	}
	c.know(name, name, true)
	return true
}

// configure raises a config of the topic "configured".
func (c *churn) configure(s *server, w *wire) bool {
	c.mu.Lock()
	c.setting.high++
	value := fmt.Sprint(c.setting.high)
	c.mu.Unlock()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	req.Version = 1
	r, entry := kmsg.NewIncrementalAlterConfigsRequestResource(), kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeTopic, "configured"
	entry.Name, entry.Value = "retention.ms", &value
	r.Configs = append(r.Configs, entry)
	req.Resources = append(req.Resources, r)
	resp, err := w.try(req)
	if err != nil {
		return false
	}
	if a := resp.(*kmsg.IncrementalAlterConfigsResponse).Resources[0]; a.ErrorCode != codeNone {
		s.t.Errorf("alter configs: code %d %s", a.ErrorCode, text(a.ErrorMessage))
		return false
	}
	c.mu.Lock()
	c.setting.low = c.setting.high
	c.mu.Unlock()
	return true
}

// remove deletes topics while there are many, by either door.
func (c *churn) remove(s *server, w *wire) bool {
	const many = 12
	c.mu.Lock()
	names := slices.Collect(maps.Keys(c.present))
	c.mu.Unlock()
	for i, name := range names[:max(len(names)-many, 0)] {
		c.doubt(name)
		if i%2 == 0 {
			if a, err := s.try("DELETE", "/v1/topics/"+name, nil); err != nil || a.status != 204 {
				return false
			}
			c.know(name, "", false)
			continue
		}
		req := kmsg.NewPtrDeleteTopicsRequest()
		req.Version, req.TimeoutMillis = 5, 30_000
		req.TopicNames = []string{name}
		resp, err := w.try(req)
		if err != nil {
			return false
		}
		if code := resp.(*kmsg.DeleteTopicsResponse).Topics[0].ErrorCode; code != codeNone {
			s.t.Errorf("delete %s: code %d", name, code)
			return false
		}
		c.know(name, "", false)
	}
	return true
}

// check wants every topic that was answered to be there with its record, and every deleted one to be gone. What became
// of the others is settled from here on. It returns how many partitions there are in all.
func (c *churn) check(t *testing.T, s *server) (partitions int) {
	t.Helper()
	w := s.wire()
	defer w.nc.Close() //nolint:errcheck // all is read
	c.mu.Lock()
	defer c.mu.Unlock()
	there := w.partitions()
	for name, value := range c.present {
		if there[name] != 2 {
			t.Fatalf("topic %s was made, and has %d partitions of 2", name, there[name])
		}
		if value == "" {
			continue
		}
		all := mustSplit(t, w.fetchAll(name, 0, 0))
		if len(all) != 1 || all[0].values(t)[0] != value {
			t.Fatalf("topic %s has %d batches, want one with %q", name, len(all), value)
		}
	}
	for name := range c.unsure {
		delete(c.unsure, name)
		if there[name] > 0 {
			c.present[name] = ""
		}
	}
	for name, n := range there {
		partitions += n
		if _, ok := c.present[name]; !ok && strings.HasPrefix(name, "churn-") {
			t.Fatalf("topic %s is there, it was deleted or never made", name)
		}
	}
	// What was not answered may have been done.
	got, err := strconv.ParseInt(w.config("configured", "retention.ms"), 10, 64)
	if err != nil || got < c.setting.low || got > c.setting.high {
		t.Fatalf("retention.ms is %d (%v), was set to %d, and perhaps to %d", got, err, c.setting.low, c.setting.high)
	}
	c.setting.low = got
	return partitions
}

// partitions counts the partitions of each topic.
func (w *wire) partitions() map[string]int {
	w.t.Helper()
	req := kmsg.NewPtrMetadataRequest()
	req.Version = 9
	counts := map[string]int{}
	for _, topic := range w.call(req).(*kmsg.MetadataResponse).Topics {
		counts[text(topic.Topic)] = len(topic.Partitions)
	}
	return counts
}

// config is the value of a topic's config.
func (w *wire) config(topic, name string) string {
	w.t.Helper()
	req := kmsg.NewPtrDescribeConfigsRequest()
	req.Version = 4
	r := kmsg.NewDescribeConfigsRequestResource()
	r.ResourceType, r.ResourceName, r.ConfigNames = kmsg.ConfigResourceTypeTopic, topic, []string{name}
	req.Resources = append(req.Resources, r)
	all := w.call(req).(*kmsg.DescribeConfigsResponse).Resources
	if len(all) != 1 || all[0].ErrorCode != codeNone || len(all[0].Configs) != 1 {
		w.t.Fatalf("%s of %s: %+v", name, topic, all)
	}
	return text(all[0].Configs[0].Value)
}
