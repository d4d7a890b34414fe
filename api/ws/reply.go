package ws

import (
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"leat/api"
	"leat/broker"
)

// text is a message to the client, complete.
type text struct {
	kind kind
	b    []byte
}

// begin starts a message with the members that many have; empty ones are left
// out. close ends it.
func begin(k kind, id, sub ident) text {
	t := text{kind: k, b: make([]byte, 0, 128)}
	t.b = append(t.b, `{"type":"`...)
	t.b = append(t.b, kindNames[k]...)
	t.b = append(t.b, '"')
	if id != "" {
		t.b = append(append(t.b, `,"id":`...), id...)
	}
	if sub != "" {
		t.b = append(append(t.b, `,"sub":`...), sub...)
	}
	return t
}

func (t text) name(name string) text {
	t.b = append(t.b, `,"`...)
	t.b = append(t.b, name...)
	t.b = append(t.b, `":`...)
	return t
}

func (t text) integer(name string, n int64) text {
	t = t.name(name)
	t.b = strconv.AppendInt(t.b, n, 10)
	return t
}

func (t text) quote(name, s string) text {
	t = t.name(name)
	// Bytes that are no UTF-8 become U+FFFD, which the error tells of.
	t.b, _ = jsontext.AppendQuote(t.b, s)
	return t
}

func (t text) close() text {
	t.b = append(t.b, '}')
	return t
}

// plain is a message that says nothing but its type.
func plain(k kind, id, sub ident) text { return begin(k, id, sub).close() }

// failure tells of an error; id and sub are what it is about, if anything.
func failure(id, sub ident, conn string, err error) text {
	p := *api.ProblemOf(err)
	p.Instance = conn
	t := begin(kindError, id, sub).name("problem")
	t.b = append(t.b, p.JSON()...)
	return t.close()
}

func subscribedText(id, sub ident, topic broker.Topic, starts []broker.TailStart) text {
	t := begin(kindSubscribed, id, sub).quote("topic", topic.Name).quote("topic_id", topic.ID.String()).name("positions")
	t.b = append(t.b, '{')
	for i, s := range starts {
		if i > 0 {
			t.b = append(t.b, ',')
		}
		t.b = append(t.b, '"')
		t.b = strconv.AppendInt(t.b, int64(s.Partition), 10)
		t.b = append(t.b, `":`...)
		t.b = strconv.AppendInt(t.b, s.Offset, 10)
	}
	t.b = append(t.b, '}')
	return t.close()
}

func streamResetText(id, sub ident, topic string) text {
	return begin(kindStreamReset, id, sub).quote("topic", topic).close()
}

func gapText(sub ident, partition int32, from, to int64, reason string) text {
	return begin(kindGap, "", sub).integer("p", int64(partition)).integer("from", from).integer("to", to).
		quote("reason", reason).close()
}

// dataHead is the most that a data message has beside its sub and records.
const dataHead = len(`{"type":"data","sub":,"p":,"prev":,"next":,"filter_failed":,"records":[]}`) + 10 + 3*19

// appendData writes a data message; records is the text of records, joined by
// commas, failed for how many records the filter had no answer.
func appendData(dst []byte, sub ident, partition int32, prev, next int64, failed int, records []byte) []byte {
	dst = append(dst, `{"type":"data","sub":`...)
	dst = append(dst, sub...)
	dst = append(dst, `,"p":`...)
	dst = strconv.AppendInt(dst, int64(partition), 10)
	dst = append(dst, `,"prev":`...)
	dst = strconv.AppendInt(dst, prev, 10)
	dst = append(dst, `,"next":`...)
	dst = strconv.AppendInt(dst, next, 10)
	if failed > 0 {
		dst = append(dst, `,"filter_failed":`...)
		dst = strconv.AppendInt(dst, int64(failed), 10)
	}
	dst = append(dst, `,"records":[`...)
	dst = append(dst, records...)
	return append(dst, "]}"...)
}
