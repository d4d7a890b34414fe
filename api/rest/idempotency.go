package rest

import (
	"crypto/sha256"
	"encoding/binary"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"leat/api"
	"leat/broker"
)

// The headers by which a produce may be sent again without writing twice.
const (
	headerKey           = "Idempotency-Key"
	headerProducerID    = "Producer-Id"
	headerProducerEpoch = "Producer-Epoch"
	headerProducerSeq   = "Producer-Seq"
)

// The length of an idempotency key, in visible ASCII characters.
const (
	minKey = 8
	maxKey = 128
)

// inProgress is when to ask again for what a request under way will answer.
const inProgress = 500 * time.Millisecond

// identity is what tells a produce from others that are alike.
type identity struct {
	once     string // the key, "" for none
	producer *broker.ProducerSequence
}

func (id *identity) identified() bool { return id.once != "" || id.producer != nil }

// badHeader is the problem of a header that this server does not take.
func badHeader(name, detail string) *api.Problem {
	return &api.Problem{
		Status: http.StatusBadRequest, Code: "invalid_request", Title: "Invalid request", Parameter: name, Detail: name + ": " + detail,
	}
}

// requestIdentity reads the headers. It takes them or refuses the request: a
// client that sends them relies on them.
func requestIdentity(r *http.Request, media string, partition int32) (id identity, err error) {
	keys, isKeyed := r.Header[headerKey]
	var given []string
	for _, name := range []string{headerProducerID, headerProducerEpoch, headerProducerSeq} {
		if _, ok := r.Header[name]; ok {
			given = append(given, name)
		}
	}
	switch {
	case !isKeyed && len(given) == 0:
		return id, nil
	case media == mediaBatch:
		return id, badHeader(append(given, headerKey)[0], "record batches have their producer within")
	case isKeyed && len(given) > 0:
		return id, badHeader(headerKey, "not together with "+given[0])
	case isKeyed:
		id.once, err = keyHeader(keys)
		return id, err
	case partition < 0:
		return id, badHeader(given[0], "a producer's sequence is of one partition: want the path of a partition's records")
	}
	id.producer = &broker.ProducerSequence{}
	n, err := countHeader(r, headerProducerID, 1<<62-1)
	if err != nil {
		return id, err
	}
	id.producer.ID = n
	if n, err = countHeader(r, headerProducerEpoch, 1<<15-1); err != nil {
		return id, err
	}
	id.producer.Epoch = int16(n)
	n, err = countHeader(r, headerProducerSeq, 1<<31-1)
	id.producer.First = int32(n)
	return id, err
}

func keyHeader(values []string) (string, error) {
	if len(values) > 1 {
		return "", badHeader(headerKey, "given more than once")
	}
	key := values[0]
	if len(key) < minKey || len(key) > maxKey || strings.ContainsFunc(key, func(c rune) bool { return c < '!' || c > '~' }) {
		return "", badHeader(headerKey, "want 8 to 128 visible ASCII characters")
	}
	return key, nil
}

// countHeader is a header that is a number from 0 to most.
func countHeader(r *http.Request, name string, most int64) (int64, error) {
	switch values := r.Header[name]; len(values) {
	case 0:
		return 0, badHeader(name, "missing; Producer-Id, Producer-Epoch and Producer-Seq come together")
	case 1:
		n, err := strconv.ParseUint(values[0], 10, 63)
		if err != nil || int64(n) > most {
			return 0, badHeader(name, "want a whole number from 0 to "+strconv.FormatInt(most, 10))
		}
		return int64(n), nil
	default:
		return 0, badHeader(name, "given more than once")
	}
}

// newSet is the set for the request's records.
func (p *production) newSet() (*broker.RecordSet, error) {
	set, err := p.s.broker.NewRecordSet(p.r.Context(), principal(p.r), p.topic)
	if err != nil {
		return nil, err
	}
	switch {
	case p.once != "":
		err = set.Key(principal(p.r), p.once, p.digest())
	case p.producer != nil:
		err = set.Identify(*p.producer, p.partition)
	}
	if err != nil {
		set.Close()
		return nil, err
	}
	return set, nil
}

// digest tells the request from others: it is of the decoded body, and of what
// decides with it about the records.
func (p *production) digest() (sum [sha256.Size]byte) {
	h := sha256.New()
	part := func(b []byte) {
		_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(b))))
		_, _ = h.Write(b)
	}
	part([]byte(p.media))
	part(strconv.AppendBool(nil, p.lines))
	part(strconv.AppendInt(nil, int64(p.partition), 10))
	part([]byte(p.r.URL.Query().Get("key_pointer")))
	part(p.text)
	if p.media != mediaJSON && p.media != mediaNDJSON {
		for _, name := range decidingHeaders(p.r) {
			for _, value := range p.r.Header[name] {
				part([]byte(name))
				part([]byte(value))
			}
		}
	}
	h.Sum(sum[:0])
	return sum
}

// decidingHeaders are the names of the headers that decide about a record.
func decidingHeaders(r *http.Request) []string {
	var out []string
	for name := range r.Header {
		if name == "Content-Type" || strings.HasPrefix(name, "Record-") || strings.HasPrefix(name, "Ce-") {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// repeatable says in a problem what may be sent again because of who it is from.
func (p *production) repeatable(problem *api.Problem) *api.Problem {
	out := *problem
	out.Retriable = out.Retriable || p.identified() && out.MaybeWritten
	if out.Code == "idempotency_in_progress" {
		out.RetryAfterMS = inProgress.Milliseconds()
	}
	return &out
}

// maxProducerBody bounds the body of a request for a producer id.
const maxProducerBody = 64 << 10

// createProducer gives a client a producer id, for Producer-Id.
func (s *Server) createProducer(w *responseWriter, r *http.Request) error {
	if _, err := parseParams(r); err != nil {
		return err
	}
	b, err := s.readBody(w, r, maxProducerBody)
	if err != nil {
		return err
	}
	defer b.release()
	if len(b.bytes) > 0 {
		if _, err := requestMedia(w, r, "Accept-Post", mediaJSON); err != nil {
			return err
		}
		if err := json.Unmarshal(b.bytes, &struct{}{}, json.RejectUnknownMembers(true)); err != nil {
			return api.Malformed("want no body or {}; transactions are not supported")
		}
	}
	id, epoch, err := s.broker.InitProducerID(r.Context(), principal(r))
	if err != nil {
		return err
	}
	s.writeJSON(w, r, http.StatusCreated, struct {
		ID    int64 `json:"producer_id"`
		Epoch int16 `json:"producer_epoch"`
	}{id, epoch})
	return nil
}
