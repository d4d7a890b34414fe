package ws

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"leat/api"
	"leat/broker"
)

// parser reads messages. It is used by one goroutine at a time.
type parser struct {
	dec  jsontext.Decoder
	buf  bytes.Buffer
	text []byte
	// raw holds the text of each member's value, by the bit of the member.
	raw  [32][]byte
	seen member
}

var parsers = sync.Pool{New: func() any { return new(parser) }}

// parseMessage reads a client's message. On an error the message has its kind,
// id and sub as far as they could be read, for the answer. The slices of the
// message are of text.
func parseMessage(text []byte) (message, error) {
	p := parsers.Get().(*parser)
	defer p.give()
	m := message{}
	// The strictness that is lost here comes back by the set of members, and
	// the values of records may have what names they like.
	p.text, p.buf = text, *bytes.NewBuffer(text)
	p.dec.Reset(&p.buf, jsontext.AllowDuplicateNames(true))
	err := p.members()
	p.identify(&m)
	if err == nil {
		err = p.interpret(&m)
	}
	return m, err
}

func (p *parser) give() {
	p.buf, p.text, p.seen = bytes.Buffer{}, nil, 0
	p.dec.Reset(&p.buf)
	clear(p.raw[:])
	parsers.Put(p)
}

// members takes the message apart.
func (p *parser) members() error {
	if p.dec.PeekKind() != '{' {
		if _, err := p.dec.ReadValue(); err != nil {
			return p.syntax(err)
		}
		return api.Malformed("a message must be a JSON object")
	}
	if _, err := p.dec.ReadToken(); err != nil {
		return p.syntax(err)
	}
	var unknown, twice string
	for p.dec.PeekKind() != '}' {
		name, err := p.dec.ReadToken()
		if err != nil {
			return p.syntax(err)
		}
		which := name.String()
		value, err := p.dec.ReadValue()
		if err != nil {
			return p.syntax(err)
		}
		end := int(p.dec.InputOffset())
		i := slices.Index(memberNames, which)
		switch {
		case i < 0:
			unknown = which
			continue
		case p.seen&(1<<i) != 0:
			twice = which
		}
		p.seen |= 1 << i
		p.raw[i] = p.text[end-len(value) : end : end]
	}
	if _, err := p.dec.ReadToken(); err != nil {
		return p.syntax(err)
	}
	switch {
	case len(bytes.TrimLeft(p.text[p.dec.InputOffset():], " \t\r\n")) > 0:
		return api.Malformed("data after the end of the message")
	case unknown != "":
		return api.Malformed(fmt.Sprintf("unknown member %q", api.Clip(unknown)))
	case twice != "":
		return api.Malformed(twice + " is given more than once")
	}
	return nil
}

// syntax puts what the decoder found into words of the door.
func (p *parser) syntax(err error) error {
	detail, at := err.Error(), p.dec.InputOffset()
	if se, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		detail, at = se.Err.Error(), se.ByteOffset
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		detail, at = "the JSON text ended early", int64(len(p.text))
	}
	return api.Malformed(fmt.Sprintf("%s (at byte %d)", strings.TrimPrefix(detail, "jsontext: "), at))
}

// value is the text of a member's value, nil if it was not given.
func (p *parser) value(m member) []byte {
	for i := range memberNames {
		if m == 1<<i {
			return p.raw[i]
		}
	}
	return nil
}

// identify fills in what an answer needs, where it is good.
func (p *parser) identify(m *message) {
	if name, ok := stringOf(p.value(memberType)); ok {
		m.kind = clientKind(name)
	}
	m.id, _ = identOf(p.value(memberID))
	m.sub, _ = identOf(p.value(memberSub))
}

// interpret checks the members and fills in the message.
func (p *parser) interpret(m *message) error {
	if p.seen&memberType == 0 {
		return api.Malformed("member type is missing")
	}
	if m.kind == kindInvalid {
		return &api.Problem{
			Status: http.StatusBadRequest, Code: "unknown_type", Title: "Unknown message type", Parameter: "type",
			Detail: fmt.Sprintf("type is %s; want %s", api.Clip(string(p.value(memberType))), strings.Join(kindNames[kindSubscribe:kindPing+1], ", ")),
		}
	}
	rule := membersOf[m.kind]
	for i, name := range memberNames {
		bit := member(1) << i
		switch {
		case rule.must&bit != 0 && p.seen&bit == 0:
			return api.Malformed(fmt.Sprintf("member %s is missing", name))
		case p.seen&bit != 0 && (rule.must|rule.may|memberType)&bit == 0:
			return api.Malformed(fmt.Sprintf("member %s does not belong to type %s", name, kindNames[m.kind]))
		}
	}
	for _, id := range []struct {
		m    member
		name string
	}{{memberID, "id"}, {memberSub, "sub"}} {
		if _, ok := identOf(p.value(id.m)); p.seen&id.m != 0 && !ok {
			return api.InvalidParameter(id.name, fmt.Sprintf("want a string of 1 to %d bytes, or an integer", maxIdent))
		}
	}
	switch m.kind { //nolint:exhaustive // the other kinds have no members but id and sub
	case kindSubscribe:
		return p.subscribe(m)
	case kindCredit:
		return p.topUp(m)
	case kindProduce:
		return p.produce(m)
	}
	return nil
}

func (p *parser) subscribe(m *message) error {
	m.credit = grant{auto: true, bytes: defaultWindowBytes, records: defaultWindowRecords}
	m.maxBytes, m.maxDelay = defaultFrameBytes, defaultDelay
	for _, take := range []func(*message) error{
		p.topicMembers, p.partitionsMember, p.fromMember, p.creditMember, p.batchMember, p.choices, p.filterMember,
	} {
		if err := take(m); err != nil {
			return err
		}
	}
	for _, o := range m.from.offsets {
		if m.partitions != nil && !slices.Contains(m.partitions, o.Partition) {
			return api.InvalidParameter("from", fmt.Sprintf("partition %d is not among partitions", o.Partition))
		}
	}
	return nil
}

func (p *parser) topicMembers(m *message) error {
	var ok bool
	if m.topic, ok = stringOf(p.value(memberTopic)); !ok {
		return api.InvalidParameter("topic", "want a string")
	}
	if raw := p.value(memberTopicID); raw != nil {
		if m.topicID, ok = stringOf(raw); !ok {
			return api.InvalidParameter("topic_id", "want a string")
		}
	}
	return nil
}

func (p *parser) partitionsMember(m *message) error {
	raw := p.value(memberPartitions)
	if raw == nil {
		return nil
	}
	if text, ok := stringOf(raw); ok && text == "all" {
		m.allPartitions = true
		return nil
	}
	complaint := api.InvalidParameter("partitions", `want an array of different partition numbers, at least one, or "all"`)
	if raw[0] != '[' {
		return complaint
	}
	err := elements(raw, func(v []byte) bool {
		n, err := strconv.ParseUint(string(v), 10, 31)
		if err != nil || len(m.partitions) > math.MaxUint16 {
			return false
		}
		m.partitions = append(m.partitions, int32(n))
		return true
	})
	slices.Sort(m.partitions)
	if err != nil || len(m.partitions) == 0 || len(slices.Compact(slices.Clone(m.partitions))) != len(m.partitions) {
		return complaint
	}
	return nil
}

func (p *parser) fromMember(m *message) error {
	raw := p.value(memberFrom)
	m.from = from{kind: fromPlace, text: "latest"}
	if raw == nil {
		return nil
	}
	if text, ok := stringOf(raw); ok && text != "" {
		m.from.text = text
		return nil
	}
	complaint := api.InvalidParameter("from",
		`want "earliest", "latest", "ts:TIME", "tail:N", a cursor, {"ts":MS}, {"cursor":"…"}, or offsets by partition as {"0":17}`)
	if raw[0] != '{' {
		return complaint
	}
	m.from = from{kind: fromOffsets}
	good := true
	err := pairs(raw, func(name string, v []byte) bool {
		switch name {
		case "ts":
			m.from.kind = fromTime
			m.from.ms, good = integerOf(v, 0, math.MaxInt64)
			return good
		case "cursor":
			m.from.kind = fromCursor
			m.from.text, good = stringOf(v)
			return good
		}
		partition, err := strconv.ParseUint(name, 10, 31)
		offset, ok := integerOf(v, 0, math.MaxInt64)
		good = err == nil && ok && strconv.FormatUint(partition, 10) == name && !slices.ContainsFunc(m.from.offsets,
			func(s broker.TailStart) bool { return s.Partition == int32(partition) })
		m.from.offsets = append(m.from.offsets, broker.TailStart{Partition: int32(partition), Offset: offset})
		return good
	})
	// One form at a time, and not nothing.
	if err != nil || (m.from.kind == fromOffsets) != (len(m.from.offsets) > 0) {
		return complaint
	}
	return nil
}

func (p *parser) creditMember(m *message) error {
	raw := p.value(memberCredit)
	if raw == nil {
		return nil
	}
	complaint := api.InvalidParameter("credit", fmt.Sprintf(
		`want {"bytes":B,"records":R} from 0 to %d each, or {"auto":true} with a window from 1`, int64(maxCredit)))
	if raw[0] != '{' {
		return complaint
	}
	g := grant{bytes: -1, records: -1}
	err := pairs(raw, func(name string, v []byte) (ok bool) {
		switch name {
		case "auto":
			g.auto, ok = string(v) == "true", string(v) == "true" || string(v) == "false"
		case "bytes":
			g.bytes, ok = integerOf(v, 0, maxCredit)
		case "records":
			g.records, ok = integerOf(v, 0, maxCredit)
		}
		return ok
	})
	switch {
	case err != nil, g.auto && (g.bytes == 0 || g.records == 0):
		return complaint
	case g.auto:
		m.credit.bytes = orElse(g.bytes, m.credit.bytes)
		m.credit.records = orElse(g.records, m.credit.records)
	default:
		m.credit = grant{bytes: orElse(g.bytes, 0), records: orElse(g.records, 0)}
	}
	return nil
}

func orElse(n, absent int64) int64 {
	if n < 0 {
		return absent
	}
	return n
}

func (p *parser) batchMember(m *message) error {
	raw := p.value(memberBatch)
	if raw == nil {
		return nil
	}
	complaint := api.InvalidParameter("batch", fmt.Sprintf(
		"want max_bytes from 1 to %d and max_delay_ms from 0 to %d", maxFrameBytes, maxAskedDelay.Milliseconds()))
	if raw[0] != '{' {
		return complaint
	}
	err := pairs(raw, func(name string, v []byte) bool {
		switch name {
		case "max_bytes":
			n, ok := integerOf(v, 1, maxFrameBytes)
			m.maxBytes = int(n)
			return ok
		case "max_delay_ms":
			n, ok := integerOf(v, 0, maxAskedDelay.Milliseconds())
			m.maxDelay = time.Duration(n) * time.Millisecond
			return ok
		}
		return false
	})
	if err != nil {
		return complaint
	}
	return nil
}

// choice is the index of a member's value among words, 0 if it was not given.
func (p *parser) choice(m member, name string, words ...string) (int, error) {
	raw := p.value(m)
	if raw == nil {
		return 0, nil
	}
	text, ok := stringOf(raw)
	i := slices.Index(words, text)
	if !ok || i < 0 {
		return 0, api.InvalidParameter(name, "want one of "+strings.Join(words, ", "))
	}
	return i, nil
}

func (p *parser) choices(m *message) error {
	slow, err := p.choice(memberSlow, "slow", "park", "skip")
	if err != nil {
		return err
	}
	rule, err := p.choice(memberOnGap, "on_gap", "earliest", "latest", "fail")
	if err != nil {
		return err
	}
	words := []string{api.AsJSON, api.AsString, api.AsBase64}
	as, err := p.choice(memberAs, "as", words...)
	if err != nil {
		return err
	}
	m.skip, m.onGap = slow == 1, gapRule(rule)
	if p.seen&memberAs != 0 {
		m.as = words[as]
	}
	return nil
}

func (p *parser) filterMember(m *message) error {
	raw := p.value(memberFilter)
	if raw == nil {
		return nil
	}
	var ok bool
	if m.filter, ok = stringOf(raw); !ok {
		return api.InvalidParameter("filter", "want a string")
	}
	if m.filter == "" {
		return api.EmptyFilter()
	}
	return nil
}

func (p *parser) topUp(m *message) error {
	m.credit = grant{}
	for _, in := range []struct {
		m    member
		name string
		to   *int64
	}{{memberBytes, "bytes", &m.credit.bytes}, {memberRecords, "records", &m.credit.records}} {
		raw := p.value(in.m)
		if raw == nil {
			continue
		}
		n, ok := integerOf(raw, 0, maxCredit)
		if !ok {
			return api.InvalidParameter(in.name, fmt.Sprintf("want an integer from 0 to %d", int64(maxCredit)))
		}
		*in.to = n
	}
	return nil
}

func (p *parser) produce(m *message) error {
	if err := p.topicMembers(m); err != nil {
		return err
	}
	if m.records = p.value(memberRecords); m.records[0] != '[' {
		return api.InvalidParameter("records", "want an array of records")
	}
	m.acks = broker.AcksAll
	if raw := p.value(memberAcks); raw != nil {
		switch strings.Trim(string(raw), `"`) {
		case "all", "-1":
		case "leader", "1":
			m.acks = broker.AcksLeader
		case "none", "0":
			m.acks = broker.AcksNone
		default:
			return api.InvalidParameter("acks", "want all, leader or none, or -1, 1 or 0")
		}
	}
	form, err := p.choice(memberReceipts, "receipts", "full", "summary", "none")
	if err != nil {
		return err
	}
	if p.seen&memberReceipts != 0 {
		m.receipts = receiptsFull + receiptsForm(form)
	}
	m.timeout = defaultAckTimeout
	if raw := p.value(memberTimeout); raw != nil {
		ms, ok := integerOf(raw, 0, maxAckTimeout.Milliseconds())
		if !ok {
			return api.InvalidParameter("timeout_ms", fmt.Sprintf("want an integer from 0 to %d", maxAckTimeout.Milliseconds()))
		}
		m.timeout = time.Duration(ms) * time.Millisecond
	}
	return p.producerMember(m)
}

func (p *parser) producerMember(m *message) error {
	m.partition = api.AnyPartition
	raw := p.value(memberProducer)
	if raw == nil {
		return nil
	}
	complaint := api.InvalidParameter("producer",
		`want {"id":I,"epoch":E,"seq":N,"partition":P}, as of POST /v1/producers, none of them negative`)
	if raw[0] != '{' {
		return complaint
	}
	values := map[string]int64{}
	err := pairs(raw, func(name string, v []byte) (ok bool) {
		most, known := map[string]int64{"id": 1<<62 - 1, "epoch": math.MaxInt16, "seq": math.MaxInt32, "partition": math.MaxInt32}[name]
		_, twice := values[name]
		values[name], ok = integerOf(v, 0, most)
		return ok && known && !twice
	})
	if err != nil || len(values) != 4 {
		return complaint
	}
	m.partition = int32(values["partition"])
	m.producer = &broker.ProducerSequence{ID: values["id"], Epoch: int16(values["epoch"]), First: int32(values["seq"])}
	return nil
}
