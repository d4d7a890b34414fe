package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// cut closes the connection of one client, in the middle of whatever goes through.
func (p *proxy) cut(client net.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for nc := range p.mu.conns {
		if nc.RemoteAddr().String() == client.String() {
			_ = nc.Close()
		}
	}
}

// cutter cuts a follower's connections at random places of the way: a few bytes after it has received so many records.
type cutter struct {
	p     *proxy
	f     *follower
	marks []int64 // records received, ascending; the first is the next
	rng   *rand.Rand
	cuts  atomic.Int64
}

// cutConn counts down the bytes to the cut. The proxy makes it, so that what is under way may come or not.
type cutConn struct {
	net.Conn
	c     *cutter
	armed bool
	left  int
}

// cutTimes lets a follower's connections through the proxy be cut n times while it receives total records.
func cutTimes(p *proxy, f *follower, n int, total int64, seed uint64) *cutter {
	c := &cutter{p: p, f: f, rng: rand.New(rand.NewPCG(seed, 3))}
	for range n {
		c.marks = append(c.marks, c.rng.Int64N(total*3/4))
	}
	slices.Sort(c.marks)
	f.dial = func() (net.Conn, error) {
		nc, err := net.Dial("tcp", p.addr)
		if err != nil {
			return nil, err
		}
		return &cutConn{Conn: nc, c: c}, nil
	}
	return c
}

func (nc *cutConn) Read(p []byte) (int, error) {
	c := nc.c
	if !nc.armed && len(c.marks) > 0 && c.f.received.Load() >= c.marks[0] {
		nc.armed, nc.left, c.marks = true, c.rng.IntN(2000), c.marks[1:]
	}
	n, err := nc.Conn.Read(p)
	if nc.armed && nc.left >= 0 {
		if nc.left -= n; nc.left < 0 {
			c.p.cut(nc.LocalAddr())
			c.cuts.Add(1)
		} else if err != nil { // the server was faster
			nc.left = -1
			c.marks = slices.Insert(c.marks, 0, 0)
		}
	}
	return n, err
}

// sourceLines are lines of the Go library's own files: tabs, quotes, empty lines, everything that people write.
func sourceLines(t *testing.T, n int) []string {
	t.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(root)), "src", "net", "http", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if lines = append(lines, strings.TrimSuffix(line, "\n")); len(lines) == n {
				return lines
			}
		}
	}
	t.Fatalf("only %d lines in %d files", len(lines), len(names))
	return nil
}

// fileProducer posts a file line by line, each line once, also where the server dies in the middle of a request: then
// the end of the partition says whether it was written.
type fileProducer struct {
	addr   string // of a proxy that finds the server
	topic  string
	client *http.Client
	ends   []int64
	sent   atomic.Int64
}

// produce spreads the lines over the partitions, some at a time; it returns which went where.
func (p *fileProducer) produce(lines []string, rng *rand.Rand) ([][]string, error) {
	placed := make([][]string, len(p.ends))
	for i := 0; len(lines) > 0; i++ {
		n, partition := min(1+rng.IntN(40), len(lines)), i%len(p.ends)
		if err := p.post(partition, lines[:n]); err != nil {
			return nil, err
		}
		placed[partition] = append(placed[partition], lines[:n]...)
		p.sent.Add(int64(n))
		lines = lines[n:]
	}
	return placed, nil
}

func (p *fileProducer) post(partition int, lines []string) error {
	body := strings.Join(lines, "\n") + "\n"
	path := fmt.Sprintf("http://%s/v1/topics/%s/partitions/%d/records", p.addr, p.topic, partition)
	want := p.ends[partition] + int64(len(lines))
	deadline := time.Now().Add(patience)
	for {
		resp, err := p.client.Post(path+"?value=line&acks=all", typeNDJSON, strings.NewReader(body))
		if err == nil {
			answer := new(bytes.Buffer)
			_, err = answer.ReadFrom(resp.Body)
			_ = resp.Body.Close()
			if err == nil && resp.StatusCode == http.StatusOK {
				p.ends[partition] = want
				return nil
			}
			if resp.StatusCode < 500 && resp.StatusCode != http.StatusOK {
				return fmt.Errorf("produce: status %d: %s", resp.StatusCode, answer)
			}
		}
		// The server has gone with or without these lines.
		for end := int64(-1); end < 0; {
			if time.Now().After(deadline) {
				return fmt.Errorf("produce: no server within %v: %w", patience, err)
			}
			after(5 * time.Millisecond)
			if end = p.end(path); end == want {
				p.ends[partition] = want
				return nil
			}
			if end >= 0 && end != p.ends[partition] {
				return fmt.Errorf("partition %d ends at %d, want %d or %d", partition, end, p.ends[partition], want)
			}
		}
	}
}

// end is where a partition ends now, or -1.
func (p *fileProducer) end(path string) int64 {
	resp, err := p.client.Get(path + "?from=latest")
	if err != nil {
		return -1
	}
	defer resp.Body.Close() //nolint:errcheck // it is read to its end
	var f fetched
	if resp.StatusCode != http.StatusOK || json.NewDecoder(resp.Body).Decode(&f) != nil {
		return -1
	}
	return f.High
}

// TestStreamsExactlyOnce proves that subscribers of every kind that read a file while it is produced, each cut ten
// times at random and the server killed twice, get every line exactly once, in order for each partition.
func TestStreamsExactlyOnce(t *testing.T) {
	const partitions, cuts = 3, 10
	n := 20_000
	if long() {
		n = 60_000
	}
	lines := sourceLines(t, n)
	p := newProxy(t)
	s := start(t)
	p.point(s.HTTP)
	s.createTopic("file", partitions)
	followers := []*follower{
		{name: "WebSocket", account: newAccount(partitions, true), session: overWebSocket("file", "string")},
		{name: "WebSocket base64", account: newAccount(partitions, true), session: overWebSocket("file", "base64")},
		{name: "SSE", account: newAccount(partitions, true), session: overSSE("/v1/topics/file/records?from=earliest&as=string")},
		{name: "SSE, an event a record", account: newAccount(partitions, true), session: overSSE("/v1/topics/file/records?from=earliest&as=string&batch=false")},
		{name: "SSE of partition 0", account: newAccount(1, true), session: overSSE("/v1/topics/file/partitions/0/records?from=earliest&as=base64")},
		{name: "NDJSON", account: newAccount(partitions, true), session: overNDJSON("/v1/topics/file/records?stream=true&from=earliest&as=string")},
		{name: "NDJSON of partition 0", account: newAccount(1, true), session: overPartitionNDJSON("file", 0)},
	}
	var cutters []*cutter
	for i, f := range followers {
		total := int64(n)
		if len(f.next) == 1 {
			total /= partitions
		}
		cutters = append(cutters, cutTimes(p, f, cuts, total, uint64(i)))
		f.follow()
		t.Cleanup(func() { _ = f.stop() })
	}
	producer := &fileProducer{
		addr: p.addr, topic: "file", ends: make([]int64, partitions),
		client: &http.Client{Transport: checked(&http.Transport{}), Timeout: patience},
	}
	type result struct {
		placed [][]string
		err    error
	}
	produced := make(chan result, 1)
	go func() {
		placed, err := producer.produce(lines, rand.New(rand.NewPCG(7, 7)))
		produced <- result{placed, err}
	}()
	for kill := range 2 {
		eventually(t, "lines before a kill", func() error {
			if sent := producer.sent.Load(); sent < int64(n*(kill+1)/3) {
				return fmt.Errorf("%d lines", sent)
			}
			return nil
		})
		s.kill()
		s.restart()
		p.point(s.HTTP)
	}
	got := <-produced
	if got.err != nil {
		t.Fatal(got.err)
	}
	for i, f := range followers {
		want := got.placed[:len(f.next)]
		eventually(t, "every line at "+f.name, func() error {
			if err := f.failed(); err != nil {
				t.Fatal(err)
			}
			for partition, all := range want {
				if at := f.at(int32(partition)); at < int64(len(all)) {
					return fmt.Errorf("%d of %d lines of partition %d", at, len(all), partition)
				}
			}
			return nil
		})
		if err := f.stop(); err != nil {
			t.Fatal(err)
		}
		for partition, all := range want {
			if !slices.Equal(f.values[partition], all) {
				t.Errorf("%s: the lines of partition %d are not those of the file", f.name, partition)
			}
		}
		t.Logf("%s: %d lines, %d cuts, %d resumes, %d lines again", f.name, f.received.Load(), cutters[i].cuts.Load(), f.resumed, f.again)
		if made := cutters[i].cuts.Load(); made != cuts {
			t.Errorf("%s was cut %d times, want %d", f.name, made, cuts)
		}
	}
}
