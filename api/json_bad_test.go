package api

import (
	"errors"
	"strings"
	"testing"
	"time"

	"leat/broker"
	"leat/storage/record"
)

// refusing takes no record.
type refusing struct{}

func (refusing) Add(int32, int64, []byte, []byte, []record.Header) error {
	return broker.ErrInvalidRecord
}

// refusal is the problem of a body that must be refused.
func refusal(t *testing.T, parse func(*Records, []byte) error, body string) *Problem {
	t.Helper()
	rs := &Records{Sink: &memorySink{}, Route: AnyPartition}
	p, ok := errors.AsType[*Problem](errors.Join(parse(rs, []byte(body)), rs.Finish()))
	if !ok {
		t.Fatalf("%.100q was taken", body)
	}
	return p
}

// A body all of whose records are bad takes about the time of one that is good:
// finding the place of each must not go over all that is before it.
func TestManyBadRecords(t *testing.T) {
	const n = 90_000
	bad := `{"x":"` + strings.Repeat("y", 150) + `"}`
	refused := strings.Repeat("{\"value_str\":\"z\"}\n", n)
	for name, c := range map[string]struct {
		parse func(*Records, []byte) error
		body  string
	}{
		"lines":  {ParseNDJSON, strings.Repeat(bad+"\n", n)},
		"array":  {ParseJSON, "[" + strings.TrimSuffix(strings.Repeat(bad+",\n", n), ",\n") + "]"},
		"events": {ParseEvents, "[" + strings.TrimSuffix(strings.Repeat(bad+",\n", n), ",\n") + "]"},
		"syntax": {ParseNDJSON, strings.Repeat("{\"x\":"+strings.Repeat(" ", 150)+"?\n", n)},
		"domain": {func(rs *Records, body []byte) error {
			rs.Sink = refusing{}
			return ParseNDJSON(rs, body)
		}, refused},
	} {
		began := time.Now()
		p := refusal(t, c.parse, c.body)
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%s: it took %v", name, took)
		}
		if len(p.Errors) != maxItemErrors || !p.Truncated {
			t.Fatalf("%s: %d errors", name, len(p.Errors))
		}
		for i := range p.Errors {
			if e := &p.Errors[i]; *e.Index != i || e.Line != i+1 {
				t.Errorf("%s: error %d is of record %d, line %d", name, i, *e.Index, e.Line)
			}
		}
	}
}

// What an error repeats of a request is bounded, however long that made it.
func TestBoundedWords(t *testing.T) {
	long := strings.Repeat("n", 1<<20)
	for _, body := range []string{`[{"` + long + `":1}]`, `{"` + long + `":1}`, `[{"headers":{"` + long + `":1}}]`, `[{"` + long + `":}]`, `[{"value":{"` + long + `":`} {
		if text := refusal(t, ParseJSON, body).JSON(); len(text) > 4<<10 {
			t.Errorf("%.30q: %d bytes", body, len(text))
		}
	}
	var into struct {
		N int `json:"n"`
	}
	for _, body := range []string{`{"` + long + `":1}`, `{"n":"` + long + `"}`, `{"n":1,"n":1}`, `{"` + long + `":1,"` + long + `":1}`} {
		p, ok := errors.AsType[*Problem](ParseObject([]byte(body), &into))
		if !ok || len(p.JSON()) > 4<<10 {
			t.Errorf("%.30q: %d bytes", body, len(p.JSON()))
		}
	}
}
