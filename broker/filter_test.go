package broker

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"leat/storage/record"
)

// matcher begins with a filter, on a broker that has nothing else.
func beginFilter(t testing.TB, text string) *Matcher {
	t.Helper()
	f, err := CompileFilter(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	m := bareFilters(t).Matcher(f, "orders")
	if err := m.Begin(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.End)
	return m
}

// Each variable is what its record has, and what a record has not is no match
// but counted.
func TestFilterMatch(t *testing.T) {
	rec := record.Record{
		Offset: 7, Timestamp: 1767323045000, Key: []byte("user-7"),
		Value: []byte(` {"n":5,"max":9007199254740993,"u":18446744073709551615,"big":1e400,"f":0.5,"t":true,"z":null,"s":"\u00fcx",
			"\u006eame":"q","d":1,"d":2,"list":[1,[2,3],{"x":1}],"o":{"a":{"b":[]}},"empty":{}} `),
		Headers: []record.Header{{Key: "type", Value: []byte("x")}, {Key: "type", Value: []byte("y")}, {Key: "raw", Value: []byte{0xff}}, {Key: "none"}},
	}
	for _, c := range []struct {
		filter string
		want   Verdict
	}{
		{`key == "user-7" && key_bytes == b"user-7"`, Matched},
		{`offset == 7 && partition == 3 && topic == "orders" && timestamp == 1767323045000`, Matched},
		{`timestamp >= int(timestamp("2026-01-02T03:04:05Z")) * 1000`, Matched},
		{`value.n == 5 && value["n"] == 5.0 && value.n > 4.5 && value.n != 6`, Matched},
		{`value.max == 9007199254740993`, Matched},
		{`value.max == 9007199254740992`, Unmatched},
		{`value.max > 9007199254740992 && value.max < 9007199254740994`, Matched},
		{`value.u == 18446744073709551615u && value.u > value.max`, Matched},
		{`value.big > 1e308`, Matched},
		{`value.f == 0.5 && value.t && value.z == null`, Matched},
		{`value.s == "üx" && value.s.startsWith("ü") && size(value.s) == 2`, Matched},
		{`value.name == "q"`, Matched},
		{`value.d == 2`, Matched}, // the last of two
		{`value.list[0] == 1 && value.list[1][1] == 3 && value.list[2].x == 1 && size(value.list) == 3`, Matched},
		{`value.list == [1, [2, 3], {"x": 1}]`, Matched},
		{`2 in value.list[1] && "n" in value && !("m" in value)`, Matched},
		{`value.o == {"a": {"b": []}} && value.empty == {}`, Matched},
		{`value.list.exists(x, x == 1) && value.list[1].all(x, x > 1)`, Matched},
		{`value.o.all(k, k == "a")`, Matched},
		{`has(value.o.a.b) && !has(value.o.c)`, Matched},
		{`value.n + value.f == 5.5`, Failed}, // an int and a double
		{`value.nothing == 1`, Failed},
		{`value.n == "5"`, Unmatched},
		{`value.n < "5"`, Failed},
		{`value.list[9] == 1`, Failed},
		{`value.s`, Failed}, // no bool
		{`value.t`, Matched},
		{`value.nothing == 1 || true`, Matched},
		{`headers.type == "y" && headers["raw"] == b"\xff" && headers.none == null && size(headers) == 3`, Matched},
		{`headers.other == "x"`, Failed},
		{`"other" in headers`, Unmatched},
		{`headers.exists(h, h.startsWith("ra"))`, Matched},
		{`value_str.contains("max") && value_bytes != b""`, Matched},
		{`value_str.matches("^ *[{]")`, Matched},
	} {
		got, err := beginFilter(t, c.filter).Match(3, &rec)
		if err != nil || got != c.want {
			t.Errorf("%s: %v %v, want %v", c.filter, got, err, c.want)
		}
	}
	for _, c := range []struct {
		filter, value string
		want          Verdict
	}{
		{`value == null`, "null", Failed}, // the word is text
		{`value_str == "null"`, "null", Matched},
		{`value.n == 1`, "{", Failed},
		{`value.n == 1`, `{"n":1}x`, Failed},
		{`value.n == 1`, "", Failed},
		{`value == 1`, "1", Matched},
		{`value == "a"`, `"a"`, Matched},
		{`value[0] == 1`, "[1]", Matched},
		{`value_str == "a"`, "\xff", Failed},
		{`value_bytes == b"\xff"`, "\xff", Matched},
		{`value.size() == 1`, strings.Repeat("[", 64) + strings.Repeat("]", 64), Matched},
		{`value.size() == 1`, strings.Repeat("[", 65) + strings.Repeat("]", 65), Failed},
	} {
		got, err := beginFilter(t, c.filter).Match(0, &record.Record{Value: []byte(c.value)})
		if err != nil || got != c.want {
			t.Errorf("%s on %.20q: %v %v, want %v", c.filter, c.value, got, err, c.want)
		}
	}
	if got, err := beginFilter(t, `key == null && value == null && value_str == null && value_bytes == null && key_bytes == null`).Match(0, &record.Record{}); got != Matched || err != nil {
		t.Errorf("nulls: %v %v", got, err)
	}
}

// A filter that would take for ever is refused, or ends at its record within
// the budget; the steps and the time of both are bounded.
func TestFilterBudget(t *testing.T) {
	for _, text := range []string{
		`value.all(a, value.all(b, value.all(c, a == b)))`,
		`[1,2,3].all(a, [1,2,3].all(b, value.all(c, value.all(d, value.all(e, true)))))`,
		`value.all(a, value_str.contains(value_str))`,
	} {
		if _, err := CompileFilter(text); !errors.Is(err, ErrFilterBudget) {
			t.Errorf("%s: %v", text, err)
		}
	}
	list := []byte("[" + strings.Repeat("1,", 200_000) + "1]")
	for _, text := range []string{
		`value.all(a, value.all(b, a == b))`,
		`value.exists(a, size(value_str) == a)`,
		`value.exists(a, value_str == "x")`,
		`value.map(a, value_str + "x").size() == 1`,
		`(value_str + value_str + value_str).contains("x")`,
		`value_str.matches("(1,){40}(.*,){40}x$")`,
		`value_str.contains(value_str)`,
		`value.filter(a, value.exists(b, b > a)).size() == 3`,
	} {
		m := beginFilter(t, text)
		began := time.Now()
		if _, err := m.Match(0, &record.Record{Value: list}); !errors.Is(err, ErrFilterBudget) {
			t.Errorf("%s: %v", text, err)
		}
		if took := time.Since(began); took > 10*recordTime {
			t.Errorf("%s: cut after %v", text, took)
		}
		if _, err := m.Match(0, &record.Record{Value: []byte("[]")}); err != nil {
			t.Errorf("%s after that: %v", text, err)
		}
	}
}

// A filter whose time is over lets others have their turn, and comes back; one
// that has waited too long is over.
func TestFilterTurns(t *testing.T) {
	f, err := CompileFilter("true")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		b := bareFilters(t)
		b.filters.slots = make(chan struct{}, 1)
		first, second := b.Matcher(f, "t"), b.Matcher(f, "t")
		begin := func(m *Matcher, budget time.Duration) {
			if err := m.Begin(t.Context(), budget); err != nil {
				t.Error(err)
			}
		}
		begin(first, time.Second)
		go begin(second, 0)
		synctest.Wait()
		for range 2 {
			if first.Over() {
				t.Fatal("over before the time is")
			}
		}
		time.Sleep(filterSlice)
		over := make(chan bool)
		go func() { over <- first.Over() }()
		synctest.Wait()
		if !second.held || first.held {
			t.Fatal("the second has no turn")
		}
		if second.Over() || !second.Over() {
			t.Error("without a budget there is one record")
		}
		second.End()
		if <-over || !first.held {
			t.Error("the first did not come back")
		}
		go begin(second, time.Hour)
		time.Sleep(filterSlice)
		if !first.Over() || time.Since(first.until) != 0 { // the second keeps its turn
			t.Error("the first does not end when its time is over")
		}
		first.End()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := first.Begin(ended, 0); !errors.Is(err, context.Canceled) {
			t.Errorf("a turn after the end: %v", err)
		}
		synctest.Wait()
		second.End()
		if len(b.filters.slots) != 0 {
			t.Error("a slot is lost")
		}
	})
}

// One text is one filter while it is in use, and what is kept is bounded.
func TestFilterKept(t *testing.T) {
	b := bareFilters(t)
	one, err := b.Filter(t.Context(), "offset == 0")
	if err != nil {
		t.Fatal(err)
	}
	for n := range keptFilters + 10 {
		if _, err := b.Filter(t.Context(), "offset == "+strings.Repeat("1", n%18+1)+strings.Repeat(" ", n)); err != nil {
			t.Fatal(err)
		}
		if again, err := b.Filter(t.Context(), "offset == 0"); again != one || err != nil {
			t.Fatalf("compiled anew: %v", err)
		}
	}
	if n, m := len(b.filters.mu.byText), b.filters.mu.recent.Len(); n != keptFilters || m != n {
		t.Errorf("%d and %d filters are kept", n, m)
	}
}

// FuzzFilter: no text and no record makes a filter panic or take longer than
// its budget.
func FuzzFilter(f *testing.F) {
	for _, text := range []string{
		`key == "a"`, `value.a.b[0] > 1.5`, `value.exists(x, x.y in [1, 2])`, `headers["x"] == "1"`, `value_str.matches("a+$")`,
		`has(value.a) ? value.a : offset > 3`, `size(value) > 0 && value == {"a": [1]}`, `timestamp(value.t) < timestamp("2026-01-01T00:00:00Z")`,
		`value.map(x, x + x).filter(x, x == 2).size() == 1`, `1 +`, `string(value) + key == ""`, `dyn(value).a`, `type(value) == map`,
	} {
		f.Add(text, []byte(`{"a":{"b":[1,2]},"t":"2026-01-01T00:00:00Z"}`), []byte("a"))
		f.Add(text, []byte(`[{"y":1},{"y":"\ud83d\ude00"}]`), []byte("\xff"))
	}
	b := bareFilters(f)
	f.Fuzz(func(t *testing.T, text string, value, key []byte) {
		began := time.Now()
		filter, err := CompileFilter(text)
		if err != nil {
			if !errors.Is(err, ErrInvalidFilter) && !errors.Is(err, ErrFilterBudget) {
				t.Fatal(err)
			}
			return
		}
		m := b.Matcher(filter, "t")
		if err := m.Begin(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		defer m.End()
		for _, rec := range []record.Record{{Value: value, Key: key, Headers: []record.Header{{Key: string(key), Value: value}}}, {}} {
			if _, err := m.Match(0, &rec); err != nil && !errors.Is(err, ErrFilterBudget) {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took > 20*recordTime {
			t.Errorf("%q took %v", text, took)
		}
	})
}

// bareFilters is what of a broker its filters use.
func bareFilters(t testing.TB) *Broker {
	t.Helper()
	b := &Broker{filters: newFilters(), metrics: new(metrics)}
	b.metrics.filters()
	b.done, b.stop = context.WithCancelCause(t.Context())
	return b
}
