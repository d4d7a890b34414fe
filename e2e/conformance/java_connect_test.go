package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// connectTests run Kafka Connect with its two file connectors: lines go from a file to a topic and on to another file.
var connectTests = []javaTest{
	{"standalone: file source and sink, over a restart", connectStandalone},
	{"distributed: file source and sink, over a restart", connectDistributed},
	{"distributed: one of two workers is killed", connectKill},
}

const connectTopic = "connect-lines"

// connect moves lines from one file to another.
type connect struct {
	*java
	from, to string
	lines    int
	workers  int
}

func newConnect(j *java) (*connect, error) {
	c := &connect{java: j, from: filepath.Join(j.dir, "from.txt"), to: filepath.Join(j.dir, "to.txt")}
	return c, j.oracle.create(j.ctx, connectTopic, 1)
}

// write adds n lines to the source. They are ASCII, because the source counts characters and skips as many bytes when it
// starts again.
func (c *connect) write(n int) (err error) {
	f, err := os.OpenFile(c.from, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var text bytes.Buffer
	for range n {
		fmt.Fprintf(&text, "line %d of a longer text\n", c.lines)
		c.lines++
	}
	_, err = f.Write(text.Bytes())
	return err
}

// same waits until the sink is the source.
func (c *connect) same() error {
	return c.until("all lines", func() error {
		from, err := os.ReadFile(c.from)
		if err != nil {
			return err
		}
		to, err := os.ReadFile(c.to)
		if err == nil && !bytes.Equal(from, to) {
			err = fmt.Errorf("%d of %d bytes have arrived", len(to), len(from))
		}
		return err
	})
}

// none waits until no line is missing in the sink; some may be there twice.
func (c *connect) none() error {
	return c.until("every line", func() error {
		from, err := os.ReadFile(c.from)
		if err != nil {
			return err
		}
		to, err := os.ReadFile(c.to)
		if err != nil {
			return err
		}
		there := map[string]bool{}
		for line := range strings.Lines(string(to)) {
			there[line] = true
		}
		missing := 0
		for line := range strings.Lines(string(from)) {
			if !there[line] {
				missing++
			}
		}
		if missing > 0 {
			return fmt.Errorf("%d lines are missing", missing)
		}
		return nil
	})
}

func (c *connect) source() map[string]string {
	return map[string]string{
		"name": "source", "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector", "tasks.max": "1",
		"file": c.from, "topic": connectTopic,
	}
}

func (c *connect) sink() map[string]string {
	return map[string]string{
		"name": "sink", "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector", "tasks.max": "1",
		"file": c.to, "topics": connectTopic,
	}
}

// properties writes a file of Java properties.
func (c *connect) properties(name string, set map[string]string) (string, error) {
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(set)) {
		fmt.Fprintf(&text, "%s=%s\n", key, set[key])
	}
	return c.file(name+".properties", text.String())
}

// worker writes what each of the two kinds of workers is told.
func (c *connect) worker(more map[string]string) (path string, err error) {
	set := map[string]string{
		"bootstrap.servers": c.addr, "listeners": "http://127.0.0.1:0", "offset.flush.interval.ms": "500",
		"key.converter": "org.apache.kafka.connect.storage.StringConverter", "value.converter": "org.apache.kafka.connect.storage.StringConverter",
	}
	maps.Copy(set, more)
	c.workers++
	return c.properties(fmt.Sprintf("worker-%d", c.workers), set)
}

func connectStandalone(j *java) error {
	c, err := newConnect(j)
	if err != nil {
		return err
	}
	source, err := c.properties("source", c.source())
	if err != nil {
		return err
	}
	sink, err := c.properties("sink", c.sink())
	if err != nil {
		return err
	}
	for range 2 {
		path, err := c.worker(map[string]string{"offset.storage.file.filename": filepath.Join(c.dir, "offsets")})
		if err != nil {
			return err
		}
		if err := c.write(200); err != nil {
			return err
		}
		worker, err := c.start("org.apache.kafka.connect.cli.ConnectStandalone", path, source, sink)
		if err != nil {
			return err
		}
		if err := errors.Join(c.same(), c.write(200), c.same(), worker.stop()); err != nil {
			return err
		}
	}
	return nil
}

// distributed starts a worker of a group that keeps all it knows in three topics, and returns when its API answers. A
// port that was free may be taken when the worker comes to it, and then the worker ends.
func (c *connect) distributed() (*service, string, error) {
	for range 5 {
		api, err := freePort()
		if err != nil {
			return nil, "", err
		}
		worker, err := c.distributedAt(api)
		if err != nil {
			return nil, "", err
		}
		err = c.until("the API of the worker", func() error {
			select {
			case <-worker.ended:
				return nil
			default:
				return request(c.ctx, http.MethodGet, api+"/connectors", nil)
			}
		})
		select {
		case <-worker.ended:
		default:
			return worker, api, err
		}
	}
	return nil, "", errors.New("no worker stays")
}

func freePort() (api string, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return "http://" + listener.Addr().String(), listener.Close()
}

func (c *connect) distributedAt(api string) (*service, error) {
	path, err := c.worker(map[string]string{
		"listeners": api,
		"group.id":  "connect", "session.timeout.ms": "6000", "heartbeat.interval.ms": "1000", "scheduled.rebalance.max.delay.ms": "1000",
		"config.storage.topic": "connect-configs", "config.storage.replication.factor": "-1",
		"offset.storage.topic": "connect-offsets", "offset.storage.replication.factor": "-1", "offset.storage.partitions": "5",
		"status.storage.topic": "connect-status", "status.storage.replication.factor": "-1",
	})
	if err != nil {
		return nil, err
	}
	return c.start("org.apache.kafka.connect.cli.ConnectDistributed", path)
}

// configure makes or changes a connector by the API of a worker.
func (c *connect) configure(api string, connector map[string]string) error {
	body, err := json.Marshal(connector)
	if err != nil {
		return err
	}
	return c.until("connector "+connector["name"], func() error {
		return request(c.ctx, http.MethodPut, api+"/connectors/"+connector["name"]+"/config", body)
	})
}

// request is nil for an answer of 2xx.
func request(ctx context.Context, method, url string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s: %s", resp.Status, text)
	}
	return nil
}

// connectDistributed proves that connectors and offsets come back from the topics, which are compacted.
func connectDistributed(j *java) error {
	c, err := newConnect(j)
	if err != nil {
		return err
	}
	first, api, err := c.distributed()
	if err != nil {
		return err
	}
	if err := errors.Join(c.write(200), c.configure(api, c.source()), c.configure(api, c.sink()), c.same()); err != nil {
		return err
	}
	for _, topic := range []string{"connect-configs", "connect-offsets", "connect-status"} {
		if err := j.configured(topic, map[string]string{"cleanup.policy": "compact"}); err != nil {
			return err
		}
	}
	if err := errors.Join(first.stop(), c.write(200)); err != nil {
		return err
	}
	second, _, err := c.distributed()
	if err != nil {
		return err
	}
	return errors.Join(c.same(), c.write(200), c.same(), second.stop())
}

// connectKill proves that the other worker takes over the connectors.
func connectKill(j *java) error {
	c, err := newConnect(j)
	if err != nil {
		return err
	}
	dies, api, err := c.distributed()
	if err != nil {
		return err
	}
	if err := errors.Join(c.write(200), c.configure(api, c.source()), c.configure(api, c.sink()), c.same()); err != nil {
		return err
	}
	stays, _, err := c.distributed()
	if err != nil {
		return err
	}
	if err := j.until("two workers", func() error { return j.members("connect", 2) }); err != nil {
		return err
	}
	if err := errors.Join(c.write(200), c.same()); err != nil {
		return err
	}
	dies.kill()
	return errors.Join(c.write(200), c.none(), stays.stop())
}
