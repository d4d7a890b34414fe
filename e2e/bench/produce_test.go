package bench

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"path/filepath"
	"testing"
)

const (
	produceBatch = 64 << 10
	produceRecs  = 63 // of about 1 KiB
	produceConns = 4
	produceDepth = 5
	produceBytes = 256 << 20 // of one run
)

// BenchmarkProduce measures the broker's processor time per GB of a Kafka produce of 1 KiB records in 64 KiB batches,
// in page-cache mode, against a bare loop that receives the same frames, checksums the batch and appends it. It is
// measured with the deep check of every record, which is the default, and with leat.validate=header.
func BenchmarkProduce(b *testing.B) {
	for _, validate := range []string{"full", "header"} {
		b.Run(validate, func(b *testing.B) {
			l := startLeat(b)
			other := startBare(b, "receive", filepath.Join(b.TempDir(), "log"))
			batch := noise(produceBatch, produceRecs)
			const each = produceBytes / produceBatch / produceConns
			ours := func() float64 {
				topic := l.nextTopic(map[string]string{"flush.messages": "1000000", "leat.validate": validate})
				frame := produceFrame(topic, 1, batch)
				return cpuOf(b, l.process, func() error {
					return parallel(produceConns, func(int) error { return sendFrames(l.Kafka, each, frame, produceAnswer) })
				}) / (produceBytes / 1e9)
			}
			theirs := func() float64 {
				if err := sendFrames(other.addr, 1, binary.BigEndian.AppendUint32(nil, 0), bareAnswer); err != nil { // reset
					b.Fatal(err)
				}
				frame := append(binary.BigEndian.AppendUint32(nil, uint32(len(batch))), batch...)
				return cpuOf(b, other.process, func() error {
					return parallel(produceConns, func(int) error { return sendFrames(other.addr, each, frame, bareAnswer) })
				}) / (produceBytes / 1e9)
			}
			for b.Loop() {
				compare(b, "Kafka produce, 64 KiB batches, page-cache mode, validate="+validate, "CPU s/GB", goal{most: 1.3}, ours, theirs)
			}
			l.stop()
		})
	}
}

func sendFrames(addr string, n int, frame []byte, check func([]byte) error) error {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer nc.Close() //nolint:errcheck // every answer has been read
	return pipeline(nc, n, produceDepth, frame, check)
}

func bareAnswer(p []byte) error {
	if len(p) != 8 {
		return fmt.Errorf("an answer of %d bytes", len(p))
	}
	return nil
}

// serveReceive is the bare loop: it receives frames of one batch each, checks the checksum, appends the batch to the
// file that it is given, and answers with the base offset. An empty frame empties the file.
func serveReceive(args []string) error {
	log, err := createLog(args[0], false)
	if err != nil {
		return err
	}
	return serveConns(func(nc *net.TCPConn) error { return receive(nc, nc, log) })
}

func receive(w io.Writer, src io.Reader, log *logFile) error {
	r := bufio.NewReaderSize(src, 4<<10)
	var buf []byte
	answer := make([]byte, 12)
	for {
		if _, err := io.ReadFull(r, answer[:4]); err != nil {
			return err
		}
		size := int(binary.BigEndian.Uint32(answer))
		if size > cap(buf) {
			buf = make([]byte, size)
		}
		batch := buf[:size]
		if _, err := io.ReadFull(r, batch); err != nil {
			return err
		}
		base, err := keep(log, batch)
		if err != nil {
			return err
		}
		binary.BigEndian.PutUint32(answer, 8)
		binary.BigEndian.PutUint64(answer[4:], uint64(base))
		if _, err := w.Write(answer); err != nil {
			return err
		}
	}
}

// keep does what a frame asks for.
func keep(log *logFile, batch []byte) (base int64, err error) {
	if len(batch) == 0 {
		return 0, log.reset()
	}
	if crc32.Checksum(batch[21:], castagnoli) != binary.BigEndian.Uint32(batch[17:]) {
		return 0, errors.New("wrong checksum")
	}
	return log.appendBatch(batch, int(binary.BigEndian.Uint32(batch[57:])))
}
