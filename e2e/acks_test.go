package e2e

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestAcksNone proves that acks=0 over Kafka has no answer at all but is written, that a failure closes the connection
// so that the client notices, and that HTTP answers 202.
func TestAcksNone(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	w := s.wire()
	for range 3 {
		if _, err := w.send(produceRequest("t", 0, 0, encode(t, kgo.NoCompression(), values(1, "a", "b")))); err != nil {
			t.Fatal(err)
		}
	}
	// The next answer on the connection is that of the next request.
	eventually(t, "the records", func() error {
		if end := w.end("t", 0); end != 6 {
			return fmt.Errorf("end offset %d, want 6", end)
		}
		return nil
	})
	s.do("POST", "/v1/topics/t/records?acks=0", []byte(`[{"value":1}]`), "Content-Type: "+typeJSON).want(202)
	s.do("POST", "/v1/topics/t/records?acks=none&value=line", []byte("x\n"), "Content-Type: "+typeNDJSON).want(202)
	eventually(t, "the records over HTTP", func() error {
		if end := w.end("t", 0); end != 8 {
			return fmt.Errorf("end offset %d, want 8", end)
		}
		return nil
	})
	if _, err := w.send(produceRequest("t", 99, 0, encode(t, kgo.NoCompression(), values(1, "a")))); err != nil {
		t.Fatal(err)
	}
	if _, err := readFrame(w.r); !errors.Is(err, io.EOF) {
		t.Errorf("after a failed acks=0: %v, want the connection closed", err)
	}
}

// TestAnswersInOrder proves that the requests of a connection are answered in their order, with a long poll in front of
// the others, and that a connection with a waiting fetch does not hold up another.
func TestAnswersInOrder(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	w := s.wire()
	first, err := w.send(fetchRequest("t", 0, 0, 1<<20, patience))
	if err != nil {
		t.Fatal(err)
	}
	second, err := w.send(produceRequest("t", 0, -1, encode(t, kgo.NoCompression(), values(1, "wakes the fetch before it"))))
	if err != nil {
		t.Fatal(err)
	}
	s.wire().ping()
	for _, want := range []int32{first, second} {
		frame, err := readFrame(w.r)
		if err != nil {
			t.Fatal(err)
		}
		if got := int32(frame[0])<<24 | int32(frame[1])<<16 | int32(frame[2])<<8 | int32(frame[3]); got != want {
			t.Errorf("answer to %d, want %d", got, want)
		}
	}
}
