package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	fetchBatch = 16 << 10  // bytes of a batch in the file
	fetchRecs  = 16        // records of a batch
	fetchFile  = 128 << 20 // bytes of the file
	fetchConns = 2         // each reads the file once in a run
)

// BenchmarkFetch measures the broker's processor time per GB of a fetch over the Kafka protocol from the page cache,
// against a bare sendfile loop over the same file with the same call length and number of connections. The bare loop
// is asked for each section, as a broker is. A second one reads and writes instead, a third is asked once and streams.
func BenchmarkFetch(b *testing.B) {
	for _, c := range []struct {
		name    string
		section int
		goal    goal
	}{
		{"1 MiB", 1 << 20, goal{most: 1.1}},
		{"256 KiB", 256 << 10, goal{most: 1.1}},
		{"16 KiB", 16 << 10, goal{most: 1.2}},
	} {
		b.Run(c.name, func(b *testing.B) {
			l := startLeat(b)
			l.createTopic("fetch", map[string]string{"flush.messages": "1000000"})
			l.fill("fetch", noise(fetchBatch, fetchRecs), fetchFile/fetchBatch)
			names, err := filepath.Glob(filepath.Join(l.dir, "logs", "*", "*.log"))
			if err != nil || len(names) != 1 {
				b.Fatalf("log files %v, %v", names, err)
			}
			loop, copier := startBare(b, "sendfile", names[0]), startBare(b, "copy", names[0])
			const gb = fetchConns * fetchFile / 1e9
			ours := func() float64 {
				return cpuOf(b, l.process, func() error { return everyConn(func() error { return readLeat(l.Kafka, c.section) }) }) / gb
			}
			theirs := func(other *bare, sections int) func() float64 {
				return func() float64 {
					return cpuOf(b, other.process, func() error {
						return everyConn(func() error { return readBare(other.addr, c.section, sections) })
					}) / gb
				}
			}
			for b.Loop() {
				what := "fetch, sections of " + c.name + ", against "
				compare(b, what+"sendfile, asked for each", "CPU s/GB", c.goal, ours, theirs(loop, 1))
				compare(b, what+"pread and one write, asked for each", "CPU s/GB", goal{}, ours, theirs(copier, 1))
				compare(b, what+"sendfile that streams", "CPU s/GB", goal{}, ours, theirs(loop, fetchFile/c.section))
			}
			l.stop()
		})
	}
}

// cpuOf is the processor time in seconds that p spends while run runs.
func cpuOf(b *testing.B, p process, run func() error) float64 {
	b.Helper()
	return costOf(b, p, 1, run).cpu
}

// cost is what a run takes, of the server's processors and on the clock.
type cost struct{ cpu, clock float64 }

// costOf is the cost of each of n pieces of work of a run, in seconds.
func costOf(b *testing.B, p process, n float64, run func() error) cost {
	b.Helper()
	begun, before := time.Now(), p.cpu()
	if err := run(); err != nil {
		b.Fatal(err)
	}
	return cost{(p.cpu() - before).Seconds() / n, time.Since(begun).Seconds() / n}
}

// everyConn runs read on every connection at a time.
func everyConn(read func() error) error {
	return parallel(fetchConns, func(int) error { return read() })
}

// parallel runs n workers at a time and returns what went wrong.
func parallel(n int, work func(worker int) error) error {
	errs := make(chan error, n)
	for worker := range n {
		go func() { errs <- work(worker) }()
	}
	var all error
	for range n {
		all = errors.Join(all, <-errs)
	}
	return all
}

// readLeat fetches the topic from its start to its end, section after section.
func readLeat(addr string, section int) error {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer nc.Close() //nolint:errcheck // every answer has been read
	frame, at := fetchFrame("fetch", int32(section))
	overhead := fetchOverhead("fetch")
	buf := make([]byte, 1<<20)
	for pos := 0; pos < fetchFile; {
		binary.BigEndian.PutUint64(frame[at:], uint64(pos/fetchBatch*fetchRecs))
		if _, err := nc.Write(frame); err != nil {
			return err
		}
		if _, err := io.ReadFull(nc, buf[:4]); err != nil {
			return err
		}
		size := int(binary.BigEndian.Uint32(buf))
		if err := discard(nc, size, buf); err != nil {
			return err
		}
		got := size - overhead
		if got != min(section, fetchFile-pos) {
			return fmt.Errorf("a section of %d bytes at %d, want %d", got, pos, section)
		}
		pos += got
	}
	return nil
}

// discard reads n bytes.
func discard(r io.Reader, n int, buf []byte) error {
	for n > 0 {
		k, err := r.Read(buf[:min(n, len(buf))])
		if err != nil {
			return err
		}
		n -= k
	}
	return nil
}

// The bare loop's request: offset, length of a section, number of sections. The answer: a head as long as that of a
// Fetch response, then the sections.
const (
	sendfileAsk  = 8 + 4 + 4
	sendfileHead = 70
)

// readBare reads the file from its start to its end, sections at a time.
func readBare(addr string, section, sections int) error {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer nc.Close() //nolint:errcheck // every answer has been read
	ask, buf := make([]byte, sendfileAsk), make([]byte, 1<<20)
	for pos := 0; pos < fetchFile; pos += section * sections {
		binary.BigEndian.PutUint64(ask, uint64(pos))
		binary.BigEndian.PutUint32(ask[8:], uint32(section))
		binary.BigEndian.PutUint32(ask[12:], uint32(sections))
		if _, err := nc.Write(ask); err != nil {
			return err
		}
		if _, err := io.ReadFull(nc, buf[:sendfileHead]); err != nil {
			return err
		}
		if err := discard(nc, section*sections, buf); err != nil {
			return err
		}
	}
	return nil
}

// serveSendfile is the bare loop: it sends sections of the file that it is given.
func serveSendfile(args []string) error { return serveFile(args[0], sendSections) }

// serveCopy is the same with a read and a write in place of sendfile.
func serveCopy(args []string) error { return serveFile(args[0], copySections) }

func serveFile(name string, serve func(*net.TCPConn, *os.File) error) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	return serveConns(func(nc *net.TCPConn) error { return serve(nc, file) })
}

// ask reads a request of the bare loops.
func ask(r io.Reader) (offset int64, length, sections int, err error) {
	var p [sendfileAsk]byte
	_, err = io.ReadFull(r, p[:])
	return int64(binary.BigEndian.Uint64(p[:])), int(binary.BigEndian.Uint32(p[8:])), int(binary.BigEndian.Uint32(p[12:])), err
}

func sendSections(nc *net.TCPConn, file *os.File) error {
	raw, err := nc.SyscallConn()
	if err != nil {
		return err
	}
	fd, head := int(file.Fd()), make([]byte, sendfileHead)
	for {
		offset, length, sections, err := ask(nc)
		if err != nil {
			return err
		}
		if err := sendHead(raw, head); err != nil {
			return err
		}
		for range sections {
			if err := sendfile(raw, fd, &offset, length); err != nil {
				return err
			}
		}
	}
}

func copySections(nc *net.TCPConn, file *os.File) error {
	buf := make([]byte, sendfileHead+1<<20)
	for {
		offset, length, _, err := ask(nc)
		if err != nil {
			return err
		}
		answer := buf[:sendfileHead+length]
		if _, err := file.ReadAt(answer[sendfileHead:], offset); err != nil {
			return err
		}
		if _, err := nc.Write(answer); err != nil {
			return err
		}
	}
}

// sendHead sends what goes before a section, to leave together with it.
func sendHead(raw rawConn, head []byte) error {
	var failed error
	err := raw.Write(func(fd uintptr) bool {
		_, failed = unix.SendmsgN(int(fd), head, nil, nil, unix.MSG_MORE)
		return !errors.Is(failed, unix.EAGAIN)
	})
	return errors.Join(err, failed)
}

type rawConn interface {
	Write(f func(fd uintptr) (done bool)) error
}

// sendfile sends exactly length bytes of the file.
func sendfile(raw rawConn, file int, offset *int64, length int) error {
	var failed error
	err := raw.Write(func(fd uintptr) bool {
		for length > 0 {
			n, err := unix.Sendfile(int(fd), file, offset, length)
			switch {
			case errors.Is(err, unix.EAGAIN):
				return false
			case errors.Is(err, unix.EINTR):
				continue
			case err == nil && n == 0:
				err = io.ErrUnexpectedEOF
			}
			if err != nil {
				failed = err
				return true
			}
			length -= n
		}
		return true
	})
	return errors.Join(err, failed)
}
