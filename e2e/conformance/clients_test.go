package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// feature is a row of the table.
type feature struct {
	name string
	run  func(*check) error
}

// features are the rows, in the order of the table.
var features = []feature{
	{"metadata", metadata},
	{"produce, uncompressed", produceCodec("none")},
	{"produce, gzip", produceCodec("gzip")},
	{"produce, snappy", produceCodec("snappy")},
	{"produce, lz4", produceCodec("lz4")},
	{"produce, zstd", produceCodec("zstd")},
	{"produce, acks=0", produceAcks("0")},
	{"produce, acks=1", produceAcks("1")},
	{"produce, acks=all", produceAcks("all")},
	{"produce, idempotent", idempotent},
	{"null keys, tombstones", nulls},
	{"empty keys, values and headers", empties},
	{"headers", headers},
	{"times of the producer", timestamps},
	{"times of the server", appendTime},
	{"record of 900 kB", large},
	{"record too large: refused", tooLarge},
	{"record without key, compacted topic: refused", keyless},
	{"topic made by the first record", autoCreate},
	{"unknown topic: refused", unknownTopic},
	{"bad topic name: refused", badName},
	{"consume, uncompressed", consumeCodec("none")},
	{"consume, gzip", consumeCodec("gzip")},
	{"consume, snappy", consumeCodec("snappy")},
	{"consume, lz4", consumeCodec("lz4")},
	{"consume, zstd", consumeCodec("zstd")},
	{"consume, many batches and segments", manyBatches},
	{"consume from the earliest", consumeEarliest},
	{"consume from the latest", consumeLatest},
	{"consume from an offset", consumeOffset},
	{"consume from a time", consumeTime},
	{"consume after deleted records", consumeCut},
	{"list offsets: ends and times", listOffsets},
	{"group: commit and resume", resume},
	{"group: a second member comes and goes", rebalance},
	{"group: cooperative", cooperate},
	{"group: static member", static},
	{"list groups", seeGroup("list_groups", listed)},
	{"describe group", seeGroup("describe_group", described)},
	{"delete group", deleteGroup},
	{"commit offsets from outside", commitOutside},
	{"committed offsets", seeCommitted},
	{"delete offsets", deleteOffsets},
	{"create topic", createTopic},
	{"delete topic", deleteTopic},
	{"create partitions", createPartitions},
	{"describe configs", describeConfigs},
	{"alter configs, incremental", alterConfigs},
	{"alter configs, all", replaceConfigs},
	{"delete records", deleteRecords},
}

// client is a column of the table.
type client struct {
	name string
	// long keeps the client out of the quick form.
	long bool
	// open makes an instance; an error says that the client cannot be had.
	open func(t *testing.T, addr string) (driver, error)
}

// clients are the columns, in the order of the table.
func clients() []client {
	return slices.Concat(kcatClients, librdkafkaClients, goClients, kafkaJSClients, foreignClients)
}

// suite is a set of tests that others wrote, or tools that are run as commands. Each test is a row of the second table.
type suite struct {
	name string
	long bool
	// run reports every test, in an order that is always the same. An error says that the suite cannot be had.
	run func(t *testing.T, addr string, report func(test string, err error)) (version string, err error)
}

// suites are the parts of the second table, in its order.
func suites() []suite {
	return slices.Concat([]suite{franzSuite}, javaSuites)
}

// TestClients runs every check with every client. The long form writes the table; the quick form agrees with it.
func TestClients(t *testing.T) {
	book := newLedger()
	t.Run("all", func(t *testing.T) {
		for _, cl := range clients() {
			if cl.long && !long() {
				continue
			}
			t.Run(cl.name, func(t *testing.T) {
				t.Parallel()
				testClient(t, cl, book)
			})
		}
		for _, s := range suites() {
			if s.long && !long() {
				continue
			}
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				testSuite(t, s, book)
			})
		}
	})
	book.settle(t)
}

func testClient(t *testing.T, cl client, book *ledger) {
	addr := serve(t)
	d, err := cl.open(t, addr)
	var hello reply
	if err == nil {
		defer d.close()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		hello, err = d.do(ctx, ask{Op: "hello"})
	}
	if err != nil {
		book.missing(t, cl.name, err)
		return
	}
	book.version(cl.name, hello.Version)
	reference := newOracle(t, addr)
	for _, f := range features {
		t.Run(f.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err := f.run(&check{ctx: ctx, t: t, addr: addr, client: cl, driver: d, oracle: reference, topic: slug(f.name)})
			book.note(t, cl.name, f.name, err)
		})
	}
}

func testSuite(t *testing.T, s suite, book *ledger) {
	version, err := s.run(t, serve(t), func(test string, err error) { book.note(t, s.name, test, err) })
	if err != nil {
		book.missing(t, s.name, err)
		return
	}
	book.version(s.name, version)
}

// slug is the name of a feature as a name of a topic.
func slug(name string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(name)), "-")
}

// note judges what came of a check, by the list of what is known to fail.
func (l *ledger) note(t *testing.T, column, row string, err error) {
	t.Helper()
	reason, known := allowed[key{column, row}]
	switch {
	case err == nil && known:
		l.set(column, row, fail)
		t.Errorf("%s passes, and is on the list of what may fail: %s", row, reason)
	case err == nil:
		l.set(column, row, pass)
	case errors.Is(err, errNotOffered):
		l.set(column, row, absent)
		t.Log(err)
	default:
		l.set(column, row, fail)
		if !known {
			t.Errorf("%s: %v", row, err)
			return
		}
		t.Logf("known to fail (%s): %v", reason, err)
	}
}

// missing notes a client that cannot be had.
func (l *ledger) missing(t *testing.T, column string, err error) {
	t.Helper()
	l.lost(column, fmt.Sprint(err))
	if _, known := allowed[key{column, anyRow}]; known {
		t.Logf("cannot be had, as is known: %v", err)
		return
	}
	if os.Getenv("CI") == "true" || long() {
		t.Errorf("cannot be had: %v", err)
		return
	}
	t.Skipf("cannot be had: %v", err)
}
