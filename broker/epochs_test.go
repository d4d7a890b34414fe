package broker

import (
	"testing"

	"leat/auth"
	"leat/storage/disk"
)

// TestEpochRestarts proves that the leader epoch grows before a partition opens
// after a kill or a power cut, also that of one without records, and the one before
// ends where the log ended then; and that a clean restart changes nothing.
func TestEpochRestarts(t *testing.T) {
	t.Parallel()
	fs := disk.NewMem()
	b := openClosed(t, fs)
	create(t, b, "t", 1, nil)
	create(t, b, "empty", 1, nil)
	epochs := func() (of, empty int32) {
		t.Helper()
		for i, name := range []string{"t", "empty"} {
			topic, err := b.Topic(t.Context(), auth.Anonymous, TopicRef{Name: name})
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				of = topic.Partitions[0].LeaderEpoch
			} else {
				empty = topic.Partitions[0].LeaderEpoch
			}
		}
		return of, empty
	}
	end, restarts := int64(0), int32(0)
	for i, how := range []string{"stop", "kill", "stop", "power cut", "kill", "stop"} {
		was, _ := epochs()
		if r := produce(t, b, AcksAll, "t", 0, "a", "b"); r.Err != nil {
			t.Fatal(r.Err)
		}
		end += 2
		want := was
		switch how {
		case "stop":
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			fs = fs.CrashClone(0, nil) // what a stop leaves is durable
		case "kill":
			t.Cleanup(closer(t, b))
			fs, want = fs.CrashClone(1, nil), was+1
			restarts++
		default:
			t.Cleanup(closer(t, b))
			fs, want = fs.CrashClone(0, nil), was+1
			restarts++
		}
		b = openClosed(t, fs)
		if is, empty := epochs(); is != want || empty != restarts {
			t.Fatalf("%s %d: epoch %d after %d, of the empty partition %d after %d", how, i, is, was, empty, restarts)
		}
		r := b.EpochEnds(t.Context(), auth.Anonymous, []EpochQuery{{Topic: "t", CurrentEpoch: -1, Epoch: was}})[0]
		if r.Err != nil || r.Epoch != was || r.EndOffset != end {
			t.Errorf("%s %d: epoch %d ends as %+v, want at %d", how, i, was, r, end)
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestEpochOfALogThatCameUpEmpty proves that no offset is given twice in one leader
// epoch: not where a power cut takes all that a log ever had, and readers have seen.
func TestEpochOfALogThatCameUpEmpty(t *testing.T) {
	t.Parallel()
	fs := disk.NewMem()
	b := openClosed(t, fs)
	create(t, b, "t", 1, map[string]string{"flush.messages": "1000000"})
	written := map[[2]int64]string{}
	for _, value := range []string{"first", "second", "third"} {
		r := produce(t, b, AcksLeader, "t", 0, value)
		if r.Err != nil || r.Base != 0 {
			t.Fatalf("%s: offset %d, %v", value, r.Base, r.Err)
		}
		topic, err := b.Topic(t.Context(), auth.Anonymous, TopicRef{Name: "t"})
		if err != nil {
			t.Fatal(err)
		}
		at := [2]int64{int64(topic.Partitions[0].LeaderEpoch), r.Base}
		if before, twice := written[at]; twice {
			t.Errorf("epoch %d has %q and %q at offset %d", at[0], before, value, at[1])
		}
		written[at] = value
		t.Cleanup(closer(t, b))
		fs = fs.CrashClone(0, nil)
		b = openClosed(t, fs)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

// closer closes a broker in whose place another one runs.
func closer(t *testing.T, b *Broker) func() {
	return func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

// openClosed opens a broker that the test closes itself.
func openClosed(t *testing.T, fs disk.FS) *Broker {
	t.Helper()
	b, err := Open(t.Context(), Options{FS: fs, Path: "/data", Host: "h", Port: 1})
	if err != nil {
		t.Fatal(err)
	}
	return b
}
