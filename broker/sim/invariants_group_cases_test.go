package sim

import (
	"slices"
	"testing"
	"time"

	"leat/broker/group"
)

// Each invariant of groups with members is broken by a short story, and holds in
// the same story told right.
func TestGroupInvariants(t *testing.T) {
	recordOf := func(s *stage, epoch int32, offset int64, generation int32, members ...string) {
		r := &group.Record{Generation: generation}
		for _, id := range members {
			r.Members = append(r.Members, group.Member{ID: id, Session: 10 * time.Second})
		}
		s.recorded(1, staged, offset, epoch, &group.Change{Group: "g", Members: r})
	}
	record := func(s *stage, offset int64, generation int32, members ...string) {
		recordOf(s, 0, offset, generation, members...)
	}
	by := func(id string, generation int32) *memberRequest {
		return &memberRequest{group: "g", id: staged, ref: group.MemberRef{ID: id, Generation: generation}}
	}
	part := func(n int32) []partID { return []partID{{Topic: staged.Topic, Partition: n}} }
	for name, c := range map[string]struct {
		want string
		tell func(s *stage)
	}{
		"G1 falls": {"G1", func(s *stage) {
			record(s, 5, 3)
			record(s, 6, 2)
		}},
		"G1 read again": {"", func(s *stage) {
			record(s, 5, 3)
			record(s, 6, 4)
			record(s, 5, 3)
		}},
		"G1 after a loss": {"", func(s *stage) {
			record(s, 5, 3)
			s.h.excuse(staged, 1, 5)
			record(s, 6, 4) // by one who has not heard of it
			recordOf(s, 1, 5, 2)
		}},
		"G1 falls after a loss": {"G1", func(s *stage) {
			s.h.excuse(staged, 1, 5)
			recordOf(s, 1, 5, 2)
			recordOf(s, 1, 6, 1)
		}},
		"G2 of a leader before a loss": {"", func(s *stage) {
			s.h.excuse(staged, 1, 5)
			s.gave(1, by("a", 3), part(0))
			after := by("b", 2)
			after.epoch = 1
			s.gave(2, after, part(0))
		}},
		"G2 falls": {"G2", func(s *stage) {
			s.gave(1, by("a", 3), part(0))
			late := by("b", 2)
			late.synced = s.group(staged, "g").synced
			s.gave(2, late, part(1))
		}},
		"G2 one that waited": {"", func(s *stage) {
			early := by("b", 2)
			early.synced = s.group(staged, "g").synced
			s.gave(1, by("a", 3), part(0))
			s.gave(2, early, part(1))
		}},
		"G3 two have it": {"G3", func(s *stage) {
			s.gave(1, by("a", 3), part(0))
			s.gave(2, by("b", 3), part(0))
		}},
		"G3 the next generation": {"", func(s *stage) {
			s.gave(1, by("a", 3), part(0))
			s.gave(1, by("a", 3), part(0))
			s.gave(2, by("b", 4), part(0))
		}},
		"G4 an old one": {"G4", func(s *stage) { s.mayCommit(1, by("a", 3), 4) }},
		"G4 the newest": {"", func(s *stage) { s.mayCommit(1, by("a", 4), 4) }},
		"G5 unknown": {"G5", func(s *stage) {
			record(s, 5, 3, "a", "b")
			s.beaten(2, by("a", 3), s.clock-time.Second, group.ErrUnknownMember)
		}},
		"G5 to join again": {"G5", func(s *stage) {
			record(s, 5, 3, "a", "b")
			s.beaten(2, by("a", 3), s.clock-time.Second, group.ErrRebalanceInProgress)
		}},
		"G5 another generation, and too late": {"", func(s *stage) {
			record(s, 5, 3, "a", "b")
			s.beaten(2, by("a", 2), s.clock-time.Second, group.ErrIllegalGeneration)
			s.beaten(2, by("c", 3), s.clock-time.Second, group.ErrUnknownMember)
			s.beaten(2, by("a", 3), s.clock-10*time.Second, group.ErrUnknownMember)
			s.beaten(2, by("a", 3), s.clock-time.Second, group.ErrLoading)
		}},
	} {
		s := newStage()
		c.tell(s)
		if want := slices.DeleteFunc([]string{c.want}, func(w string) bool { return w == "" }); !slices.Equal(s.faults, want) {
			t.Errorf("%s: %v, want %v", name, s.faults, want)
		}
	}
}
