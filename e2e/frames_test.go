package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// frameLimit is how long a connection whose client has said all may take to be answered and closed.
	frameLimit = 20 * time.Second
	// frameMemory is by how much the process may ever grow over what it had after the first rounds: several of the
	// largest frames may meet, see TestAnswersInProportion. frameRest is what may be left of it when all is over: the
	// tables and the cache of the metadata store, and what is kept to be used again.
	frameMemory = 512 << 20
	frameRest   = 96 << 20
)

// sentinel is what no frame touches: topics with their ends, a group with its offsets.
type sentinel struct {
	ends      [3]int64
	committed [3]int64
}

const (
	sentinelTopic = "watched-over"
	sentinelGroup = "watching-group"
)

func (w *wire) sentinel() (out sentinel) {
	w.t.Helper()
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Version, req.Group = 5, sentinelGroup
	req.Topics = []kmsg.OffsetFetchRequestTopic{{Topic: sentinelTopic, Partitions: []int32{0, 1, 2}}}
	resp := w.call(req).(*kmsg.OffsetFetchResponse)
	for p := range out.ends {
		out.ends[p] = w.end(sentinelTopic, int32(p))
		out.committed[p] = resp.Topics[0].Partitions[p].Offset
	}
	return out
}

// plant makes the sentinel, and the topics that the frames may do anything to.
func (w *wire) plant() sentinel {
	w.t.Helper()
	w.create(sentinelTopic, 3, 1)
	commit := kmsg.NewPtrOffsetCommitRequest()
	commit.Version, commit.Group, commit.Generation = 7, sentinelGroup, -1
	t := kmsg.NewOffsetCommitRequestTopic()
	t.Topic = sentinelTopic
	for p := range int32(3) {
		for range p + 1 {
			w.mustProduce(sentinelTopic, p, encode(w.t, kgo.NoCompression(), values(time.Now().UnixMilli(), "a", "b")))
		}
		at := kmsg.NewOffsetCommitRequestTopicPartition()
		at.Partition, at.Offset, at.LeaderEpoch = p, int64(p)+1, -1
		t.Partitions = append(t.Partitions, at)
	}
	commit.Topics = append(commit.Topics, t)
	for _, p := range w.call(commit).(*kmsg.OffsetCommitResponse).Topics[0].Partitions {
		if p.ErrorCode != codeNone {
			w.t.Fatalf("commit: code %d", p.ErrorCode)
		}
	}
	got := w.sentinel()
	if want := (sentinel{[3]int64{2, 4, 6}, [3]int64{1, 2, 3}}); got != want {
		w.t.Fatalf("%+v, want %+v", got, want)
	}
	return got
}

// tidy removes what the frames made and makes anew what they removed. It returns the ids of the topics.
func (w *wire) tidy() (ids [][16]byte) {
	w.t.Helper()
	meta := kmsg.NewPtrMetadataRequest()
	meta.Version = 12
	drop := kmsg.NewPtrDeleteTopicsRequest()
	drop.Version = 3
	for _, t := range w.call(meta).(*kmsg.MetadataResponse).Topics {
		if name := *t.Topic; name != sentinelTopic && !t.IsInternal {
			drop.TopicNames = append(drop.TopicNames, name)
		}
	}
	w.call(drop)
	list := kmsg.NewPtrListGroupsRequest()
	groups := kmsg.NewPtrDeleteGroupsRequest()
	for _, g := range w.call(list).(*kmsg.ListGroupsResponse).Groups {
		if g.Group != sentinelGroup {
			groups.Groups = append(groups.Groups, g.Group)
		}
	}
	w.call(groups) // those with members stay until these have expired
	for name, configs := range map[string][]string{"fuzz": nil, "fuzz-keyed": {"cleanup.policy", "compact"}} {
		topic := w.call(createRequest(name, 2, 1, configs...)).(*kmsg.CreateTopicsResponse).Topics[0]
		if topic.ErrorCode != codeNone {
			w.t.Fatalf("create %s: code %d", name, topic.ErrorCode)
		}
		ids = append(ids, topic.TopicID)
	}
	return ids
}

// bombard sends frames over one connection, says that no more comes, and reads until the server closes it. An error is
// that it does not.
func bombard(addr string, all [][]byte, slow bool) error {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer nc.Close() //nolint:errcheck // nothing is left to lose
	if err := nc.SetDeadline(time.Now().Add(frameLimit)); err != nil {
		return err
	}
	var work sync.WaitGroup
	work.Go(func() {
		for _, p := range all {
			for step := len(p); len(p) > 0; p = p[min(step, len(p)):] {
				if slow {
					step = 1
				}
				if _, err := nc.Write(p[:min(step, len(p))]); err != nil {
					return // it is closed already
				}
			}
		}
		_ = nc.(*net.TCPConn).CloseWrite() // likewise
	})
	_, err = io.Copy(io.Discard, nc)
	work.Wait()
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return fmt.Errorf("neither answered nor closed within %v", frameLimit)
	}
	return nil
}

// volley is what one connection sends.
func (f *frames) volley() (all [][]byte, slow bool) {
	add := func(p []byte) {
		if !lawful(p) {
			all = append(all, p)
		}
	}
	switch n := f.IntN(100); {
	case n < 3: // one that is huge
		add(f.huge(1 << (14 + f.IntN(7))))
	case n < 6: // many that are small
		for range 500 {
			p := f.noise(14)
			a := f.apis[f.IntN(len(f.apis))]
			p = slices.Concat([]byte{0, 0, 0, 0, 0, byte(a.key), 0, byte(a.low)}, p[8:12], []byte{0xff, 0xff}, p[:f.IntN(14)])
			add(sized(p))
		}
	case n < 9: // byte by byte
		slow = true
		add(f.frame(f.valid()))
		add(f.spoil(f.frame(f.valid())))
	default: // good ones, the last spoiled
		for range f.IntN(6) {
			add(f.frame(f.valid()))
		}
		p := f.spoil(f.frame(f.valid()))
		for range f.IntN(3) {
			if len(p) > atHeader {
				p = f.spoil(p)
			}
		}
		add(p)
	}
	return all, slow
}

// frameTime is how long to go on, and the seed.
func frameTime(t *testing.T) (time.Duration, uint64) {
	d, seed := 5*time.Second, uint64(1)
	if text := os.Getenv("LEAT_FRAMES"); text != "" {
		var err error
		if d, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
		seed = uint64(time.Now().UnixNano())
	}
	if text := os.Getenv("LEAT_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	return d, seed
}

// TestFuzzedFrames proves that no frame makes the server crash, grow or hang, nor changes what it is not about: good
// requests of every API and version, and what becomes of them when they are spoiled in every way, from many connections.
// LEAT_FRAMES is how long (make frames), LEAT_SEED what to repeat.
func TestFuzzedFrames(t *testing.T) {
	d, seed := frameTime(t)
	t.Logf("seed %d, %v", seed, d)
	s := start(t, "--set", "auto.create.topics.enable=false", "--set", "group.min.session.timeout.ms=100",
		"--set", "group.max.session.timeout.ms=2000", "--set", "group.initial.rebalance.delay.ms=0", "--set", "offsets.topic.num.partitions=4")
	w := s.wire()
	planted := w.plant()
	apis := w.served()
	silent := s.silent()
	const warm = 3
	base, rest, sent := int64(0), int64(0), new(atomic.Int64)
	stop := func() int64 { return 0 }
	for begun, round := time.Now(), uint64(0); round < warm || time.Since(begun) < d; round++ {
		if round == warm {
			base, stop = s.memory(), s.watchMemory()
		}
		s.round(seed+round, apis, w.tidy(), sent)
		if got := w.sentinel(); got != planted {
			t.Fatalf("seed %d: %+v, were %+v", seed+round, got, planted)
		}
		w.fetchAll(sentinelTopic, 2, 0)
	}
	most := stop()
	w.tidy()
	eventually(t, "the memory to come back", func() error {
		s.collect()
		if rest = s.memory() - base; rest > frameRest {
			return fmt.Errorf("%d MiB more than before", rest>>20)
		}
		return nil
	})
	t.Logf("%d frames in %v; memory %d MiB, at most %d MiB, %d MiB more at the end", sent.Load(), d, base>>20, most>>20, rest>>20)
	if most-base > frameMemory {
		t.Errorf("memory grew by %d MiB", (most-base)>>20)
	}
	silent(d)
	if words := s.stderr.String(); strings.Contains(words, "panic") || strings.Contains(words, "goroutine ") {
		t.Errorf("the log shows a panic: %s", tail(words, 4000))
	}
}

// round is a burst from many connections, after which the server must be as well as before.
func (s *server) round(seed uint64, apis []served, ids [][16]byte, sent *atomic.Int64) {
	s.t.Helper()
	const workers, each = 8, 25
	failures := make(chan error, workers)
	var work sync.WaitGroup
	for i := range uint64(workers) {
		f := newFrames(s.t, seed*workers+i, apis, ids)
		work.Go(func() {
			for n := range each {
				all, slow := f.volley()
				sent.Add(int64(len(all)))
				if err := bombard(s.Kafka, all, slow); err != nil {
					failures <- fmt.Errorf("worker %d, connection %d: %w; it was sent %s", i, n, err, shown(all))
					return
				}
			}
		})
	}
	work.Wait()
	close(failures)
	select {
	case <-s.exited:
		s.t.Fatalf("seed %d: the server ended: %v\n%s", seed, s.cmd.ProcessState, tail(s.stderr.String(), 8<<10))
	default:
	}
	for err := range failures {
		s.t.Fatalf("seed %d: %v", seed, err)
	}
}

// shown is the last of the frames.
func shown(all [][]byte) string {
	if len(all) == 0 {
		return "nothing"
	}
	p := all[len(all)-1]
	return fmt.Sprintf("%d frames, the last of %d bytes: %x", len(all), len(p), p[:min(len(p), 200)])
}

// collect has the server collect its garbage.
func (s *server) collect() {
	s.t.Helper()
	resp, err := httpClient.Get("http://" + s.Ops + "/debug/pprof/heap?gc=1")
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := readAnswer(s.t, "/debug/pprof/heap", resp); err != nil {
		s.t.Fatal(err)
	}
}

// silent opens connections that stop in the middle of a frame and stay. What it returns sees, if more than the minute
// has passed that the server gives them, that it has closed them.
func (s *server) silent() (check func(passed time.Duration)) {
	s.t.Helper()
	var all []net.Conn
	for _, cut := range [][]byte{{0}, {0, 0, 0}, {0, 0, 0, 50, 0, 3}, {0, 0, 0, 50, 0, 3, 0, 1, 0, 0, 0, 1, 0xff, 0xff, 0}, {0, 0x10, 0, 0, 0, 0, 0, 9, 0, 0, 0, 1, 0xff, 0xff, 0}} {
		nc, err := net.Dial("tcp", s.Kafka)
		if err != nil {
			s.t.Fatal(err)
		}
		if _, err := nc.Write(cut); err != nil {
			s.t.Fatal(err)
		}
		all = append(all, nc)
	}
	return func(passed time.Duration) {
		for i, nc := range all {
			if passed > 2*time.Minute {
				if err := nc.SetDeadline(time.Now().Add(time.Second)); err != nil {
					s.t.Fatal(err)
				}
				_, err := nc.Read(make([]byte, 1))
				if e, ok := errors.AsType[net.Error](err); err == nil || ok && e.Timeout() {
					s.t.Errorf("connection %d stopped in the middle of a frame and was not closed: %v", i, err)
				}
			}
			_ = nc.Close() // nothing is left to lose
		}
	}
}
