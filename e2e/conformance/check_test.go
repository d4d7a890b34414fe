package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// check is one feature under test with one client.
type check struct {
	ctx    context.Context
	t      *testing.T
	addr   string
	client client
	driver driver
	oracle *oracle
	// topic is a name of the check's own. Nothing has made it yet.
	topic string
}

func (c *check) do(q ask) (reply, error) {
	r, err := c.driver.do(c.ctx, q)
	if err != nil && !errors.Is(err, errNotOffered) {
		err = fmt.Errorf("%s: %w", q.Op, err)
	}
	return r, err
}

// refused is do for what must be an error; one of the words must be in it.
func (c *check) refused(q ask, words ...string) error {
	_, err := c.do(q)
	if err == nil {
		return fmt.Errorf("%s was not refused", q.Op)
	}
	return mention(err, words...)
}

// mention is nil for an error that has one of the words, whatever the case and what is between them.
func mention(err error, words ...string) error {
	if errors.Is(err, errNotOffered) {
		return err
	}
	plain := strings.NewReplacer("_", "", " ", "", "-", "")
	text := plain.Replace(strings.ToLower(err.Error()))
	for _, w := range words {
		if strings.Contains(text, plain.Replace(strings.ToLower(w))) {
			return nil
		}
	}
	return fmt.Errorf("the error says none of %q: %w", words, err)
}

// create makes the check's topic with the reference client.
func (c *check) create(partitions int32, configs ...string) error {
	return c.oracle.create(c.ctx, c.topic, partitions, configs...)
}

// until polls until ok returns nil, or the client does not offer it, or the check's time is up.
func (c *check) until(what string, ok func() error) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ok()
		if err == nil || errors.Is(err, errNotOffered) {
			return err
		}
		select {
		case <-c.ctx.Done():
			return fmt.Errorf("%s: not within %v: %w", what, patience, err)
		case <-tick.C:
		}
	}
}

// sample makes n records with keys and values of all bytes; they compress well.
func sample(name string, n int) []record {
	var seed [32]byte
	copy(seed[:], name)
	random := rand.NewChaCha8(seed)
	out := make([]record, n)
	for i := range out {
		noise := make([]byte, 64)
		_, _ = random.Read(noise) // it never fails
		value := fmt.Appendf(nil, "%s %d %s ", name, i, strings.Repeat("all that rises ", 20))
		for b := range 256 {
			value = append(value, byte(b))
		}
		out[i] = record{Key: fmt.Appendf(nil, "key-%s-%d", name, i), Value: append(value, noise...)}
	}
	return out
}

// same compares keys, values and headers.
func same(got, want []record) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d records, want %d", len(got), len(want))
	}
	for i := range want {
		if err := sameRecord(got[i], want[i]); err != nil {
			return fmt.Errorf("record %d: %w", i, err)
		}
	}
	return nil
}

func sameRecord(got, want record) error {
	if err := sameBytes(got.Key, want.Key); err != nil {
		return fmt.Errorf("key: %w", err)
	}
	if err := sameBytes(got.Value, want.Value); err != nil {
		return fmt.Errorf("value: %w", err)
	}
	if len(got.Headers) != len(want.Headers) {
		return fmt.Errorf("%d headers, want %d", len(got.Headers), len(want.Headers))
	}
	for i, h := range want.Headers {
		if got.Headers[i].Key != h.Key {
			return fmt.Errorf("header %q, want %q", got.Headers[i].Key, h.Key)
		}
		if err := sameBytes(got.Headers[i].Value, h.Value); err != nil {
			return fmt.Errorf("header %s: %w", h.Key, err)
		}
	}
	return nil
}

// sameBytes tells null from empty, too.
func sameBytes(got, want []byte) error {
	if !bytes.Equal(got, want) || (got == nil) != (want == nil) {
		return fmt.Errorf("%s, want %s", show(got), show(want))
	}
	return nil
}

func show(b []byte) string {
	switch {
	case b == nil:
		return "null"
	case len(b) > 80:
		return fmt.Sprintf("%.80q… (%d bytes)", b, len(b))
	}
	return fmt.Sprintf("%q", b)
}

// samePlace is same, and compares partitions, offsets and times.
func samePlace(got, want []record) error {
	if err := same(got, want); err != nil {
		return err
	}
	for i, w := range want {
		if g := got[i]; g.Partition != w.Partition || g.Offset != w.Offset || g.Timestamp != w.Timestamp {
			return fmt.Errorf("record %d is at %d/%d of time %d, want %d/%d of time %d", i, g.Partition, g.Offset, g.Timestamp, w.Partition, w.Offset, w.Timestamp)
		}
	}
	return nil
}
