package kafka

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/api"
	"leat/broker"
)

// testSection is a section of a file or of memory.
type testSection struct {
	io.ReaderAt
	f        *os.File
	pos, n   int64
	released int
}

func memSection(p []byte) *testSection {
	return &testSection{ReaderAt: bytes.NewReader(p), n: int64(len(p))}
}

func fileSection(f *os.File, pos, n int64) *testSection {
	return &testSection{ReaderAt: io.NewSectionReader(f, pos, n), f: f, pos: pos, n: n}
}

func (s *testSection) Len() int64              { return s.n }
func (s *testSection) File() (*os.File, int64) { return s.f, s.pos }
func (s *testSection) NextOffset() int64       { return 0 }
func (s *testSection) Release()                { s.released++ }

// writerConn is a connection that only writes.
type writerConn struct {
	net.Conn
	bytes.Buffer
}

func (c *writerConn) Write(p []byte) (int, error) { return c.Buffer.Write(p) }
func (c *writerConn) Read([]byte) (int, error)    { return 0, io.EOF }

func randomBytes(rng *rand.Rand, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(rng.Uint32())
	}
	return p
}

// randomFetch makes a request, the broker's results, and what kmsg would
// answer.
func randomFetch(rng *rand.Rand, version int16) (*kmsg.FetchRequest, []broker.FetchResult, *kmsg.FetchResponse) {
	req, want := kmsg.NewPtrFetchRequest(), kmsg.NewPtrFetchResponse()
	req.Version, want.Version = version, version
	req.IsolationLevel = int8(rng.IntN(2))
	var results []broker.FetchResult
	for range rng.IntN(4) {
		in, out := kmsg.NewFetchRequestTopic(), kmsg.NewFetchResponseTopic()
		in.Topic = fmt.Sprintf("topic-%d", rng.IntN(1000))
		copy(in.TopicID[:], randomBytes(rng, 16))
		out.Topic, out.TopicID = in.Topic, in.TopicID
		for range rng.IntN(5) {
			ip, op := kmsg.NewFetchRequestTopicPartition(), kmsg.NewFetchResponseTopicPartition()
			ip.Partition = rng.Int32()
			op.Partition, op.PreferredReadReplica = ip.Partition, -1
			r := broker.FetchResult{HighWatermark: rng.Int64(), LastStable: rng.Int64(), LogStart: rng.Int64()}
			op.HighWatermark, op.LastStableOffset, op.LogStartOffset = r.HighWatermark, r.LastStable, r.LogStart
			op.RecordBatches = []byte{}
			if req.IsolationLevel == 1 {
				op.AbortedTransactions = []kmsg.FetchResponseTopicPartitionAbortedTransaction{}
			}
			switch rng.IntN(4) {
			case 0:
				r.Err = broker.ErrUnknownPartition
				op.ErrorCode = api.KafkaUnknownTopicOrPartition
				op.HighWatermark, op.LastStableOffset, op.LogStartOffset = -1, -1, -1
				op.AbortedTransactions = nil
			case 1:
			default:
				op.RecordBatches = randomBytes(rng, 1+rng.IntN(2*spliceFrom))
				r.Section = memSection(op.RecordBatches)
			}
			in.Partitions, out.Partitions = append(in.Partitions, ip), append(out.Partitions, op)
			results = append(results, r)
		}
		req.Topics, want.Topics = append(req.Topics, in), append(want.Topics, out)
	}
	return req, results, want
}

// encode answers req with the results, or with an error for all of it.
func encode(t *testing.T, o *output, req *kmsg.FetchRequest, topError int16, results []broker.FetchResult) {
	t.Helper()
	fc := &fetchCall{refused: topError, results: results}
	if err := fc.decode(new(interner), req.AppendTo(nil), req.Version); err != nil {
		t.Fatal(err)
	}
	fc.encode(t.Context(), o, &call{version: req.Version, h: &handler{name: "Fetch"}, srv: New(Options{})})
}

// The answer that is encoded by hand is byte for byte what kmsg encodes, in
// every version, with sections read in and spliced.
func TestFetchEncodingEqualsKmsg(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for version := int16(4); version <= 17; version++ {
		for range 60 {
			req, results, want := randomFetch(rng, version)
			sections := make([]*testSection, 0, len(results))
			for i := range results {
				if s, ok := results[i].Section.(*testSection); ok {
					sections = append(sections, s)
				}
			}
			conn := new(writerConn)
			o := newOutput(conn)
			o.begin(77, version >= 12)
			encode(t, o, req, 0, results)
			if err := o.flush(); err != nil {
				t.Fatal(err)
			}
			frame := binary.BigEndian.AppendUint32(nil, 77)
			if version >= 12 {
				frame = append(frame, 0)
			}
			frame = want.AppendTo(frame)
			frame = append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...)
			if !bytes.Equal(conn.Bytes(), frame) {
				t.Fatalf("version %d: %d bytes differ from kmsg's %d", version, conn.Len(), len(frame))
			}
			for _, s := range sections {
				if s.released == 0 {
					t.Fatalf("version %d: a section was not released", version)
				}
			}
		}
	}
}

// A top-level error is encoded as kmsg does, without topics.
func TestFetchTopLevelError(t *testing.T) {
	for version := int16(7); version <= 17; version++ {
		req := kmsg.NewPtrFetchRequest()
		req.Version = version
		conn := new(writerConn)
		o := newOutput(conn)
		o.begin(1, version >= 12)
		encode(t, o, req, api.KafkaFetchSessionIDNotFound, nil)
		if err := o.flush(); err != nil {
			t.Fatal(err)
		}
		resp := kmsg.NewPtrFetchResponse()
		resp.Version = version
		if decode(t, resp, conn.Bytes()[8:]); resp.ErrorCode != 70 || len(resp.Topics) != 0 {
			t.Errorf("version %d: %+v", version, resp)
		}
	}
}

// A small section that cannot be read makes its partition an error and leaves
// the others whole.
func TestFetchReadError(t *testing.T) {
	for _, version := range []int16{4, 17} {
		req := fetchRequest("t", [16]byte{1}, 0, 0)
		req.Version = version
		req.Topics[0].Partitions = append(req.Topics[0].Partitions, req.Topics[0].Partitions[0])
		broken := memSection([]byte("short"))
		broken.n = 100
		results := []broker.FetchResult{{HighWatermark: 5, Section: broken}, {HighWatermark: 6, Section: memSection([]byte("good"))}}
		conn := new(writerConn)
		o := newOutput(conn)
		o.begin(1, version >= 12)
		encode(t, o, req, 0, results)
		if err := o.flush(); err != nil {
			t.Fatal(err)
		}
		resp := kmsg.NewPtrFetchResponse()
		resp.Version = version
		decode(t, resp, conn.Bytes()[8:])
		bad, good := resp.Topics[0].Partitions[0], resp.Topics[0].Partitions[1]
		if bad.ErrorCode == 0 || bad.HighWatermark != -1 || len(bad.RecordBatches) != 0 {
			t.Errorf("version %d: broken partition %+v", version, bad)
		}
		if good.ErrorCode != 0 || string(good.RecordBatches) != "good" {
			t.Errorf("version %d: good partition %+v", version, good)
		}
		if broken.released != 1 {
			t.Errorf("version %d: broken section released %d times", version, broken.released)
		}
	}
}

// tcpPair is two ends of a loopback connection.
func tcpPair(t *testing.T) (server, client net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	if client, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = server.Close(), client.Close() })
	return server, client
}

func dataFile(t *testing.T, p []byte) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(path, p, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// Sections of a file leave a TCP connection by sendfile, at their own
// positions, between the pieces of the skeleton; small ones and ones of memory
// are copied. The file's own position does not move.
func TestOutputSendfile(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	data := randomBytes(rng, 9<<20)
	f := dataFile(t, data)
	server, client := tcpPair(t)
	o := newOutput(server)
	o.begin(9, false)
	want := binary.BigEndian.AppendUint32(nil, 9)
	var sections []*testSection
	add := func(s *testSection, p []byte) {
		o.buf.b = append(o.buf.b, "piece"...)
		want = append(append(want, "piece"...), p...)
		sections = append(sections, s)
		if err := o.put(s); err != nil {
			t.Fatal(err)
		}
	}
	add(fileSection(f, 1000, 8<<20), data[1000:1000+8<<20])
	add(fileSection(f, 5, 100), data[5:105])
	add(fileSection(f, 7, spliceFrom), data[7:7+spliceFrom])
	add(memSection(data[:1<<20]), data[:1<<20])
	add(fileSection(f, 0, spliceFrom-1), data[:spliceFrom-1])
	add(fileSection(f, int64(len(data)-spliceFrom), spliceFrom), data[len(data)-spliceFrom:])
	o.buf.b = append(o.buf.b, "end"...)
	want = append(want, "end"...)
	done := make(chan error, 1)
	go func() { done <- o.flush() }()
	got := make([]byte, 4+len(want))
	if _, err := io.ReadFull(client, got); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if int(binary.BigEndian.Uint32(got)) != len(want) || !bytes.Equal(got[4:], want) {
		t.Error("other bytes arrived")
	}
	for i, s := range sections {
		if s.released != 1 && s.released != 2 {
			t.Errorf("section %d released %d times", i, s.released)
		}
	}
	if pos, err := f.Seek(0, io.SeekCurrent); err != nil || pos != 0 {
		t.Errorf("the file's position is %d, error %v", pos, err)
	}
	if sent := o.sent.Load(); sent != int64(4+len(want)) {
		t.Errorf("%d bytes counted, %d sent", sent, 4+len(want))
	}
}

// A section that turns out shorter than announced ends the response with an
// error, by sendfile and by copy.
func TestOutputShortSection(t *testing.T) {
	f := dataFile(t, make([]byte, 100<<10))
	server, client := tcpPair(t)
	go func() { _, _ = io.Copy(io.Discard, client) }()
	cut := memSection(make([]byte, 50<<10))
	cut.n = 60 << 10
	for _, s := range []*testSection{fileSection(f, 60<<10, 50<<10), cut} {
		o := newOutput(server)
		o.begin(1, false)
		if err := o.put(s); err != nil {
			t.Fatal(err)
		}
		if err := o.flush(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("error %v", err)
		}
		if s.released == 0 {
			t.Error("not released")
		}
	}
}

// A large response costs no memory for each section.
func TestOutputAllocations(t *testing.T) {
	f := dataFile(t, make([]byte, 1<<20))
	server, client := tcpPair(t)
	drained := make(chan struct{})
	go func() { defer close(drained); _, _ = io.Copy(io.Discard, client) }()
	o := newOutput(server)
	sections := make([]*testSection, 8)
	for i := range sections {
		sections[i] = fileSection(f, int64(i), 64<<10)
	}
	allocs := testing.AllocsPerRun(200, func() {
		o.begin(1, true)
		for _, s := range sections {
			o.buf.b = append(o.buf.b, "piece"...)
			if err := o.put(s); err != nil {
				t.Fatal(err)
			}
		}
		if err := o.flush(); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > 2 {
		t.Errorf("%.1f allocations a response", allocs)
	}
	_ = server.Close()
	<-drained
}
