package rest

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestIdempotencyCollision proves that two bodies of the same shape, of which the
// log keeps the same 15 bits, are told apart.
func TestIdempotencyCollision(t *testing.T) {
	bits := func(body string) uint16 {
		p := production{r: httptest.NewRequest(http.MethodPost, produceT0, nil), media: mediaJSON, text: []byte(body)}
		sum := p.digest()
		return binary.BigEndian.Uint16(sum[:]) & 0x7fff
	}
	body := func(i int) string { return fmt.Sprintf(`[{"value":"%08d"}]`, i) }
	first, second := map[uint16]int{}, 0
	for {
		if _, met := first[bits(body(second))]; met {
			break
		}
		first[bits(body(second))] = second
		second++
	}
	one, other := body(first[bits(body(second))]), body(second)
	d := openDoor(t)
	d.topic("t", 1)
	headers := []string{"Idempotency-Key", "the-same-key"}
	a := d.tried(produceT0, mediaJSON, one, headers...).want(t, 200, "")
	d.tried(produceT0, mediaJSON, other, headers...).want(t, 422, "idempotency_key_reused")
	d.wantReplay(a, produceT0, mediaJSON, one, headers...)
	if end := d.end("t"); end != 1 {
		t.Errorf("%d records", end)
	}
}
