package kafka

import (
	"encoding/binary"
	"io"
	"net"
	"testing"

	"leat/storage/record"
)

// fetchLoop asks for a section again and again and throws the answer away, with
// nothing allocated on its side.
type fetchLoop struct {
	d           *door
	nc          net.Conn
	frame, body []byte
	buf         []byte
}

// startFetchLoop serves a partition of that many bytes in batches of 16 KiB.
func startFetchLoop(tb testing.TB, version int16, section int) *fetchLoop {
	tb.Helper()
	d := startDoor(tb, setup{})
	c := d.dial(tb)
	id := c.create("t", 1, "flush.messages", "1000000")
	value := string(make([]byte, 16<<10))
	for range section/len(value) + 1 {
		if p := c.produce(9, "t", 0, batch(tb, record.None, value)); p.ErrorCode != 0 {
			tb.Fatalf("produce: code %d", p.ErrorCode)
		}
	}
	req := fetchRequest("t", id, 0, 0)
	req.Topics[0].Partitions[0].PartitionMaxBytes = int32(section)
	req.SetVersion(version)
	return &fetchLoop{d: d, nc: c.Conn, frame: c.frame(req), body: req.AppendTo(nil), buf: make([]byte, 256<<10)}
}

// once sends one request and takes the answer.
func (l *fetchLoop) once() error {
	if _, err := l.nc.Write(l.frame); err != nil {
		return err
	}
	if _, err := io.ReadFull(l.nc, l.buf[:4]); err != nil {
		return err
	}
	for n := int(binary.BigEndian.Uint32(l.buf)); n > 0; {
		k, err := l.nc.Read(l.buf[:min(n, len(l.buf))])
		if err != nil {
			return err
		}
		n -= k
	}
	return nil
}

// BenchmarkFetch is the path of one fetch over a loopback socket, client
// included.
func BenchmarkFetch(b *testing.B) {
	for _, c := range []struct {
		name    string
		version int16
		section int
	}{
		{"v11/1KiB", 11, 1 << 10},
		{"v11/256KiB", 11, 256 << 10},
		{"v12/256KiB", 12, 256 << 10},
	} {
		b.Run(c.name, func(b *testing.B) {
			l := startFetchLoop(b, c.version, c.section)
			b.ReportAllocs()
			for b.Loop() {
				if err := l.once(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
