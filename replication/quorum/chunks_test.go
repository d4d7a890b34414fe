package quorum

import (
	"errors"
	"testing"
)

// Chunks without bytes are bounded too: a peer that never comes to the last one
// does not fill the memory.
func TestEmptyChunksAreBounded(t *testing.T) {
	c, err := Open(Options{ID: 2, MaxSnapshotBytes: 1 << 10}, noStore{}, &noMachine{})
	if err != nil {
		t.Fatal(err)
	}
	for seq := range uint32(1000) {
		ch := &Chunk{Term: 5, Index: 10, Seq: seq, Kind: ChunkData}
		ch.CRC = ch.sum()
		if err := c.Step(Message{From: 1, To: 2, Chunk: ch}); errors.Is(err, ErrMessage) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Errorf("%d chunks are held", len(c.incoming.chunks))
}
