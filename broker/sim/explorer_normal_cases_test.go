package sim

import "testing"

// reducedCases are small, and have together all that a normal form leaves out.
var reducedCases = []slice{
	{exploreLimits{records: 2, elections: 2, fences: 1, alters: 1}, nil},
	{exploreLimits{records: 1, elections: unlimited, fences: 2, alters: 1}, nil},
	{exploreLimits{records: 1, elections: unlimited, fences: 1, alters: 2, ticks: 1}, nil},
	{exploreLimits{records: 1, elections: 1, fences: 1, late: 1, alters: 1}, nil},
	{exploreLimits{records: 1, elections: unlimited, fences: 1, alters: 1, lagging: 2}, nil},
	{exploreLimits{records: 1, elections: unlimited, restarts: 1, losses: 1, alters: 1}, nil},
}

// The worlds of an exploration that computes every step and reduces nothing are,
// in their normal form, those that are found without: none is missing, and none
// is too many.
func TestReductionLosesNothing(t *testing.T) {
	for _, part := range reducedCases {
		x, whole := newExploration(part.exploreLimits), newExploration(part.exploreLimits)
		whole.plain = true
		if whole.limits.elections == unlimited {
			whole.limits.elections = mostEpochs - 3 // more than the fences and restarts bring
		}
		for _, x := range []*exploration{x, whole} {
			if x.run(part.after...); x.found != "" {
				t.Fatal(x.found)
			}
		}
		var there xset
		for i := range whole.states.n {
			w := whole.unpack(whole.states.at(i).state)
			n := x.adopt(&w)
			if there.add(x.pack(&n), 0); !x.states.has(x.pack(&n)) {
				t.Fatalf("%+v: there is no\n%v\nwhich is normal for\n%v", part, &n, &w)
			}
		}
		if there.n != x.states.n {
			t.Errorf("%+v: %d states, of which %d are there without a normal form", part, x.states.n, there.n)
		}
		t.Logf("%+v: %d states by %d steps, without a normal form %d by %d", part, x.states.n, x.steps, whole.states.n, whole.steps)
	}
}

// adopt is the normal form of a world of a plain exploration.
func (x *exploration) adopt(from *xworld) (w xworld) {
	w.meta, w.used, w.committed = x.meta(from.meta.state), from.used, unvalued(from.committed)
	for i, n := range from.nodes {
		c := n.clone()
		*c.log = unvalued(*c.log)
		w.nodes[i] = x.node(c)
	}
	msgs := make([]*xmsg, len(from.net.msgs))
	for i, m := range from.net.msgs {
		msgs[i] = x.msg(*m)
	}
	w.net = x.net(msgs)
	x.pass(&w, from.now)
	x.normal(&w)
	return w
}

// unvalued is a log in which every record is the only one of its offset and
// epoch, as it is where I3 holds.
func unvalued(l xlog) (out xlog) {
	for i := range l.end() {
		out.append(xrec{l.at(i).epoch, 0})
	}
	return out
}

// A normal form is one: it does not change when it is made again.
func TestNormalFormStays(t *testing.T) {
	x := newExploration(exploreLimits{records: 2, elections: unlimited, fences: 1, alters: 1})
	x.run()
	for i := range x.states.n {
		w := x.unpack(x.states.at(i).state)
		if x.hear(&w); x.pack(&w) != x.states.at(i).state {
			t.Fatalf("%v is not what it was", &w)
		}
	}
}

// Every state is found once, also by its way: the steps from the first state on
// lead to it.
func TestExplorerWay(t *testing.T) {
	x := newExploration(exploreLimits{records: 1, elections: 1, fences: 1, alters: 1})
	x.run()
	last := x.states.n - 1
	x.at, x.step = last, xstep{kind: stepLag}
	way := x.way()
	w := x.begin()
	x.hear(w)
	for _, step := range way[:len(way)-1] {
		if w = x.only(w, step[2:]); w == nil {
			t.Fatalf("%q leads nowhere: %s", step, x.found)
		}
	}
	if x.pack(w) != x.states.at(last).state {
		t.Errorf("%v is not %v", w, x.states.at(last).state)
	}
}

// A set has what was added, and nothing else, however far it has grown.
func TestExplorerSet(t *testing.T) {
	var s xset
	const n = 50_000
	for i := range uint32(n) {
		state := xstate{i % 7, i, i / 3, 5}
		if s.has(state) || !s.add(state, i/2) || s.add(state, 0) || !s.has(state) {
			t.Fatalf("state %d", i)
		}
	}
	if s.n != n || s.has(xstate{n % 7, n, n / 3, 5}) || s.at(n-1).before != (n-1)/2 {
		t.Errorf("%d states", s.n)
	}
}

// A log is its records.
func TestExplorerLog(t *testing.T) {
	var l, o xlog
	for i, r := range []xrec{{0, 0}, {0, 1}, {3, 0}, {15, 15}} {
		l.append(r)
		if l.end() != int64(i+1) || l.at(int64(i)) != r {
			t.Fatal(l)
		}
	}
	o = l.to(2)
	o.append(xrec{2, 0})
	if l.differ(o) != 2 || l.has(o) || !l.has(l.to(3)) || !o.has(l.to(2)) || l.to(2).has(o) {
		t.Error(l, o)
	}
	for epoch, want := range map[int32][2]int64{0: {0, 2}, 2: {0, 2}, 3: {3, 3}, 14: {3, 3}, 99: {15, 4}} {
		if found, end, _ := l.EpochEnd(epoch); int64(found) != want[0] || end != want[1] {
			t.Errorf("epoch %d: %d ends at %d", epoch, found, end)
		}
	}
}
