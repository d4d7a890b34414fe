package storage

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"leat/storage/disk"
)

// TestEpochEndOfADamagedLog proves that the search for where an epoch ends comes to
// an end, whichever segment of the log cannot be opened or read, and whether that
// is met while the log is open, after a clean stop or after a kill. An answer that is
// no error lies within the log.
func TestEpochEndOfADamagedLog(t *testing.T) {
	t.Parallel()
	written := []int32{1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 5, 5, 5, 5, 6, 6, 6}
	damages := map[string]func(p []byte) []byte{
		"removed":         nil,
		"empty":           func([]byte) []byte { return nil },
		"cut":             func(p []byte) []byte { return p[:len(p)/2] },
		"length garbled":  func(p []byte) []byte { p[9] ^= 0xff; return p },
		"epoch garbled":   func(p []byte) []byte { p[15] ^= 0x40; return p },
		"magic garbled":   func(p []byte) []byte { p[16] = 9; return p },
		"nothing but nul": func(p []byte) []byte { clear(p); return p },
	}
	for what, damage := range damages {
		for _, when := range []string{"open", "stop", "kill"} {
			t.Run(fmt.Sprintf("%s, %s", what, when), func(t *testing.T) {
				t.Parallel()
				for segment := 0; ; segment++ {
					m := disk.NewMem()
					d, l := epochLog(t, m, written...)
					if segment == l.Segments() {
						mustClose(t, d)
						return
					}
					s := l.mu.segments[segment]
					name := s.logPath()
					switch when {
					case "open":
						d.files.drop(s)
						l.mu.epochs = epochs{} // nobody has asked yet
					case "stop":
						mustClose(t, d)
					case "kill":
						killed := m.KillClone()
						mustClose(t, d)
						m = killed
					}
					if damage == nil {
						if err := m.Remove(name); err != nil {
							t.Fatal(err)
						}
					} else {
						setFile(t, m, name, damage(fileBytes(t, m, name)))
					}
					if when != "open" {
						d = openDir(t, m)
						l = openLog(t, d, startConfig)
					}
					for epoch := int32(-1); epoch < 8; epoch++ {
						endsWithin(t, l, epoch)
					}
					_ = d.Close() // it may well say what is damaged
				}
			})
		}
	}
}

// endsWithin asks for an epoch, and fails the test if there is no answer in time.
func endsWithin(t *testing.T, l *Log, epoch int32) {
	t.Helper()
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		found, end, err := l.EpochEnd(epoch)
		o := l.Offsets()
		if err == nil && (found > epoch || end < o.Start || end > o.End || found < 0 && end != o.Start) {
			t.Errorf("epoch %d: found %d, end %d of a log [%d, %d)", epoch, found, end, o.Start, o.End)
		}
		if errors.Is(err, errRetired) {
			t.Errorf("epoch %d: %v", epoch, err)
		}
	}()
	select {
	case <-answered:
	case <-time.After(30 * time.Second):
		t.Fatalf("epoch %d: the search does not end", epoch)
	}
}
