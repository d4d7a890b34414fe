package conformance

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// streamsTests run Kafka's own example, which counts words. It knows its topics.
var streamsTests = []javaTest{
	{"word count", wordCount},
	{"word count: its internal topics", wordCountTopics},
	{"word count: goes on with the state that it restores", wordCountRestart},
	{"word count: one of two is killed", wordCountKill},
	{"word count: kafka-streams-application-reset", wordCountReset},
}

const (
	wordInput  = "streams-plaintext-input"
	wordOutput = "streams-wordcount-output"
	wordApp    = "streams-wordcount"
)

// words counts words with a streams application, and by itself.
type words struct {
	*java
	instances int
	want      map[string]int64
}

func newWords(j *java) (*words, error) {
	w := &words{java: j, want: map[string]int64{}}
	return w, errors.Join(j.oracle.create(j.ctx, wordInput, 2), j.oracle.create(j.ctx, wordOutput, 1))
}

// count starts one more instance, which has no state yet.
func (w *words) count() (*service, error) {
	w.instances++
	path, err := w.file(fmt.Sprintf("streams-%d.properties", w.instances), strings.Join([]string{
		"bootstrap.servers=" + w.addr,
		"state.dir=" + filepath.Join(w.dir, fmt.Sprintf("state-%d", w.instances)),
		"commit.interval.ms=200",
		"repartition.purge.interval.ms=400",
		"consumer.session.timeout.ms=6000",
		"consumer.heartbeat.interval.ms=1000",
	}, "\n"))
	if err != nil {
		return nil, err
	}
	return w.start("org.apache.kafka.streams.examples.wordcount.WordCountDemo", path)
}

// write sends n lines of seven words each.
func (w *words) write(n int) error {
	for partition := range int32(2) {
		var lines []record
		for i := range n / 2 {
			line := fmt.Sprintf("all streams lead to kafka %d %d", i%10, partition)
			lines = append(lines, record{Value: []byte(line)})
			for word := range strings.FieldsSeq(line) {
				w.want[word]++
			}
		}
		if err := w.oracle.write(w.ctx, "lz4", wordInput, partition, lines); err != nil {
			return err
		}
	}
	return nil
}

// counts is the last count of each word.
func (w *words) counts() (map[string]int64, error) {
	end, err := w.oracle.end(w.ctx, wordOutput, 0)
	if err != nil {
		return nil, err
	}
	records, err := readKgo(w.ctx, w.addr, wordOutput, 0, kgo.NewOffset().AtStart(), int(end))
	if err != nil {
		return nil, err
	}
	counts := map[string]int64{}
	for _, r := range records {
		if len(r.Value) != 8 {
			return nil, fmt.Errorf("count of %q: %q", r.Key, r.Value)
		}
		counts[string(r.Key)] = int64(binary.BigEndian.Uint64(r.Value))
	}
	return counts, nil
}

// exact waits until every count is what was written.
func (w *words) exact() error {
	return w.until("the counts", func() error {
		got, err := w.counts()
		if err == nil && !maps.Equal(got, w.want) {
			err = fmt.Errorf("got %v, want %v", got, w.want)
		}
		return err
	})
}

func wordCount(j *java) error {
	w, err := newWords(j)
	if err != nil {
		return err
	}
	app, err := w.count()
	if err != nil {
		return err
	}
	for range 3 {
		if err := errors.Join(w.write(400), w.exact()); err != nil {
			return err
		}
	}
	return app.stop()
}

// wordCountTopics proves that the topics which the application makes are what it asked for, and that it deletes the
// records it has passed on to itself.
func wordCountTopics(j *java) error {
	w, err := newWords(j)
	if err != nil {
		return err
	}
	app, err := w.count()
	if err != nil {
		return err
	}
	if err := errors.Join(w.write(100), w.exact()); err != nil {
		return err
	}
	topics, err := j.oracle.admin.ListTopics(j.ctx)
	if err != nil {
		return err
	}
	var changelog, repartition string
	for name := range topics {
		switch {
		case strings.HasPrefix(name, wordApp) && strings.HasSuffix(name, "-changelog"):
			changelog = name
		case strings.HasPrefix(name, wordApp) && strings.HasSuffix(name, "-repartition"):
			repartition = name
		}
	}
	if changelog == "" || repartition == "" || len(topics[changelog].Partitions) != 2 {
		return fmt.Errorf("topics: %v", topics.Names())
	}
	for topic, want := range map[string]map[string]string{
		changelog: {"cleanup.policy": "compact"}, repartition: {"cleanup.policy": "delete", "retention.ms": "-1"},
	} {
		if err := j.configured(topic, want); err != nil {
			return err
		}
	}
	err = j.until("a purge", func() error {
		starts, err := j.oracle.admin.ListStartOffsets(j.ctx, repartition)
		if err != nil {
			return err
		}
		var sum int64
		starts.Each(func(o kadm.ListedOffset) { sum += o.Offset })
		if sum == 0 {
			return errors.New("every record is still there")
		}
		return nil
	})
	return errors.Join(err, app.stop())
}

// configured compares configs of a topic.
func (j *java) configured(topic string, want map[string]string) error {
	found, err := j.oracle.admin.DescribeTopicConfigs(j.ctx, topic)
	if err != nil {
		return err
	}
	for _, c := range found[0].Configs {
		if value, ok := want[c.Key]; ok && c.MaybeValue() != value {
			return fmt.Errorf("%s of %s is %q, want %q", c.Key, topic, c.MaybeValue(), value)
		}
	}
	return found[0].Err
}

// wordCountRestart proves that an instance which has lost its state restores it from its changelog, and misses nothing.
func wordCountRestart(j *java) error {
	w, err := newWords(j)
	if err != nil {
		return err
	}
	first, err := w.count()
	if err != nil {
		return err
	}
	if err := errors.Join(w.write(300), w.exact(), first.stop(), w.write(300)); err != nil {
		return err
	}
	second, err := w.count()
	if err != nil {
		return err
	}
	return errors.Join(w.exact(), second.stop())
}

// wordCountKill proves that the other instance takes over. A word may be counted twice then, but none is lost.
func wordCountKill(j *java) error {
	w, err := newWords(j)
	if err != nil {
		return err
	}
	stays, err := w.count()
	if err != nil {
		return err
	}
	dies, err := w.count()
	if err != nil {
		return err
	}
	if err := j.until("two members", func() error { return j.members(wordApp, 2) }); err != nil {
		return err
	}
	if err := errors.Join(w.write(300), w.exact()); err != nil {
		return err
	}
	dies.kill()
	if err := w.write(300); err != nil {
		return err
	}
	err = j.until("the counts", func() error {
		got, err := w.counts()
		for word, n := range w.want {
			if got[word] < n {
				err = errors.Join(err, fmt.Errorf("%q: %d, want %d or more", word, got[word], n))
			}
		}
		return err
	})
	return errors.Join(err, stays.stop())
}

// members is nil when a group is stable and has n members.
func (j *java) members(group string, n int) error {
	found, err := j.oracle.admin.DescribeGroups(j.ctx, group)
	if err != nil {
		return err
	}
	if g := found[group]; g.State != "Stable" || len(g.Members) != n {
		return fmt.Errorf("the group is %s with %d members", g.State, len(g.Members))
	}
	return nil
}

// wordCountReset proves that the application counts everything again after the reset.
func wordCountReset(j *java) error {
	w, err := newWords(j)
	if err != nil {
		return err
	}
	first, err := w.count()
	if err != nil {
		return err
	}
	if err := errors.Join(w.write(100), w.exact(), first.stop()); err != nil {
		return err
	}
	out, err := j.tool("StreamsResetter", "--application-id", wordApp, "--input-topics", wordInput, "--force")
	if err != nil {
		return err
	}
	if err := hasAll(out, wordInput); err != nil {
		return err
	}
	topics, err := j.oracle.admin.ListTopics(j.ctx)
	if err != nil {
		return err
	}
	for name := range topics {
		if strings.HasPrefix(name, wordApp+"-") && name != wordOutput {
			return fmt.Errorf("the internal topic %s is still there", name)
		}
	}
	before, err := j.oracle.end(j.ctx, wordOutput, 0)
	if err != nil {
		return err
	}
	second, err := w.count()
	if err != nil {
		return err
	}
	err = j.until("the counts again", func() error {
		end, err := j.oracle.end(j.ctx, wordOutput, 0)
		if err == nil && end != 2*before {
			err = fmt.Errorf("%d records come out, want %d", end, 2*before)
		}
		return err
	})
	return errors.Join(err, w.exact(), second.stop())
}
