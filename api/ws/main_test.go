package ws

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"leat/api"
	"leat/auth"
	"leat/broker"
)

// TestMain fails if a test leaves a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of a test.
const patience = 20 * time.Second

// door is a server over a real broker and a real listener.
type door struct {
	t      testing.TB
	broker *broker.Broker
	server *Server
	reg    *prometheus.Registry
	addr   string
}

func openDoor(t testing.TB, change ...func(*Options)) *door {
	t.Helper()
	reg := prometheus.NewRegistry()
	b, err := broker.Open(t.Context(), broker.Options{Path: t.TempDir(), Registerer: reg})
	if err != nil {
		t.Fatal(err)
	}
	opts := Options{Broker: b, Feed: api.NewFeed(api.FeedOptions{}), Registerer: reg}
	for _, c := range change {
		c(&opts)
	}
	d := &door{t: t, broker: b, server: New(opts), reg: reg}
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d.addr = ln.Addr().String()
	hs := &http.Server{Handler: d.server, ReadHeaderTimeout: patience}
	served := make(chan error, 1)
	go func() { served <- hs.Serve(ln) }()
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer stop()
		if err := d.server.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := hs.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serve: %v", err)
		}
		if err := b.Close(); err != nil {
			t.Errorf("close broker: %v", err)
		}
	})
	return d
}

// topic makes a topic.
func (d *door) topic(name string, partitions int32, configs ...string) {
	d.t.Helper()
	spec := broker.TopicSpec{Name: name, Partitions: partitions, ReplicationFactor: -1, Configs: map[string]string{}}
	for i := 0; i < len(configs); i += 2 {
		spec.Configs[configs[i]] = configs[i+1]
	}
	if err := d.broker.CreateTopics(d.t.Context(), auth.Anonymous, []broker.TopicSpec{spec}, false)[0].Err; err != nil {
		d.t.Fatal(err)
	}
}

// append writes values to a partition, past the door.
func (d *door) append(topic string, partition int32, values ...string) {
	d.t.Helper()
	set, err := d.broker.NewRecordSet(d.t.Context(), auth.Anonymous, topic)
	if err != nil {
		d.t.Fatal(err)
	}
	defer set.Close()
	for _, v := range values {
		if err := set.Add(partition, -1, nil, []byte(v), nil); err != nil {
			d.t.Fatal(err)
		}
	}
	results, err := set.Produce(d.t.Context(), broker.AcksAll, patience)
	if err == nil && results[0].Err != nil {
		err = results[0].Err
	}
	if err != nil {
		d.t.Fatal(err)
	}
}

// metric is the sum of a metric's values, of those whose labels are as given.
func (d *door) metric(name string, labels ...string) float64 {
	d.t.Helper()
	families, err := d.reg.Gather()
	if err != nil {
		d.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if labelled(m, labels) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

func labelled(m *dto.Metric, labels []string) bool {
	for i := 0; i < len(labels); i += 2 {
		found := false
		for _, l := range m.GetLabel() {
			found = found || l.GetName() == labels[i] && l.GetValue() == labels[i+1]
		}
		if !found {
			return false
		}
	}
	return true
}

// eventually polls until ok, within patience.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not in time: %s", what)
		}
	}
}

// answer is a message of the server, decoded.
type answer struct {
	Type      string
	Conn      string
	HBMS      int64 `json:"hb_ms"`
	ID        any
	Sub       any
	Topic     string
	TopicID   string `json:"topic_id"`
	Positions map[string]int64
	P         int32
	Prev      int64
	Next      int64
	From      int64
	To        int64
	Reason    string
	AfterMS   *int64 `json:"after_ms"`
	Limits    map[string]int64
	Count     int
	Failed    int
	Records   []struct {
		Partition int32
		Offset    int64
		Key       *string
		Value     any
		ValueStr  *string `json:"value_str"`
		ValueB64  *string `json:"value_b64"`
	}
	Receipts []struct {
		Partition int32
		Offset    *int64
		Timestamp *int64
	}
	Partitions []struct {
		Partition  int32
		BaseOffset int64 `json:"base_offset"`
		LastOffset int64 `json:"last_offset"`
		Count      int
	}
	Problem *api.Problem
	text    string
}

func decode(t testing.TB, text []byte) *answer {
	t.Helper()
	a := &answer{text: string(text)}
	if err := json.Unmarshal(text, a, json.MatchCaseInsensitiveNames(true), jsontext.AllowDuplicateNames(false)); err != nil {
		t.Fatalf("%v in %.300s", err, text)
	}
	return a
}

// client is a WebSocket client of the library.
type client struct {
	t   testing.TB
	ws  *websocket.Conn
	ctx context.Context
}

// dial opens a connection and takes the ready message.
func (d *door) dial() *client {
	d.t.Helper()
	c, err := d.tryDial(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = c.ws.CloseNow() })
	if a := c.read(); a.Type != "ready" || a.Conn == "" {
		d.t.Fatalf("first message is %s", a.text)
	}
	return c
}

func (d *door) tryDial(ctx context.Context) (*client, error) {
	ws, resp, err := websocket.Dial(ctx, "ws://"+d.addr+"/v1/ws", &websocket.DialOptions{Subprotocols: []string{subprotocol}})
	if err != nil {
		return nil, err
	}
	if resp.Body != nil {
		_ = resp.Body.Close()
	}
	ws.SetReadLimit(64 << 20)
	return &client{t: d.t, ws: ws, ctx: ctx}, nil
}

// send sends a message; single quotes stand for double ones.
func (c *client) send(format string, args ...any) {
	c.t.Helper()
	text := strings.ReplaceAll(fmt.Sprintf(format, args...), "'", `"`)
	if err := c.ws.Write(c.ctx, websocket.MessageText, []byte(text)); err != nil {
		c.t.Fatal(err)
	}
}

// read takes the next message that is no heartbeat.
func (c *client) read() *answer {
	c.t.Helper()
	ctx, stop := context.WithTimeout(c.ctx, patience)
	defer stop()
	for {
		_, text, err := c.ws.Read(ctx)
		if err != nil {
			c.t.Fatal(err)
		}
		if a := decode(c.t, text); a.Type != "hb" {
			return a
		}
	}
}

// want takes the next message, which must be of a type.
func (c *client) want(kind string) *answer {
	c.t.Helper()
	a := c.read()
	if a.Type != kind {
		c.t.Fatalf("want %s, got %.500s", kind, a.text)
	}
	return a
}

// problem takes the next message, which must be an error with a code.
func (c *client) problem(code string) api.Problem {
	c.t.Helper()
	a := c.want("error")
	if a.Problem == nil || a.Problem.Code != code {
		c.t.Fatalf("want problem %s, got %s", code, a.text)
	}
	return *a.Problem
}

// raw is a client that makes its own frames.
type raw struct {
	t  testing.TB
	nc net.Conn
	in *bufio.Reader
}

// handshake is the request of a WebSocket, with headers added or replaced.
func handshake(addr string, headers ...string) string {
	set := map[string]string{
		"Host": addr, "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
		"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol": subprotocol,
	}
	for i := 0; i < len(headers); i += 2 {
		set[headers[i]] = headers[i+1]
	}
	var b strings.Builder
	b.WriteString("GET /v1/ws HTTP/1.1\r\n")
	for k, v := range set {
		if v != "" {
			b.WriteString(k + ": " + v + "\r\n")
		}
	}
	return b.String() + "\r\n"
}

// connect opens a connection that is no WebSocket yet.
func (d *door) connect() (net.Conn, error) {
	nc, err := new(net.Dialer).DialContext(d.t.Context(), "tcp", d.addr)
	if err == nil {
		d.t.Cleanup(func() { _ = nc.Close() })
	}
	return nc, err
}

func (d *door) raw() *raw {
	d.t.Helper()
	nc, err := d.connect()
	if err != nil {
		d.t.Fatal(err)
	}
	return d.upgrade(nc)
}

// upgrade makes the handshake on a connection and takes the ready message.
func (d *door) upgrade(nc net.Conn) *raw {
	d.t.Helper()
	r := &raw{t: d.t, nc: nc, in: bufio.NewReader(nc)}
	r.write([]byte(handshake(d.addr)))
	r.upgraded()
	return r
}

func (r *raw) upgraded() {
	r.t.Helper()
	resp, err := http.ReadResponse(r.in, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Sec-WebSocket-Protocol") != subprotocol {
		r.t.Fatalf("handshake: %s, %v", resp.Status, resp.Header)
	}
	if op, text := r.frame(); op != 1 || !strings.Contains(string(text), `"ready"`) {
		r.t.Fatalf("first frame: %d %s", op, text)
	}
}

func (r *raw) write(p []byte) {
	r.t.Helper()
	if _, err := r.nc.Write(p); err != nil {
		r.t.Fatal(err)
	}
}

// The bits and numbers of a frame's first byte.
const (
	final   = 0x80
	opCont  = 0
	opText  = 1
	opBin   = 2
	opClose = 8
	opPing  = 9
	opPong  = 10
)

// maskedFrame is a client's frame.
func maskedFrame(first byte, payload []byte) []byte {
	f := frameStart(first, 0x80, len(payload))
	f = append(f, 1, 2, 3, 4)
	for i, c := range payload {
		f = append(f, c^byte(i%4+1))
	}
	return f
}

// frameStart is the beginning of a frame, up to its length.
func frameStart(first, mask byte, length int) []byte {
	switch {
	case length < 126:
		return []byte{first, mask | byte(length)}
	case length <= 0xffff:
		return binary.BigEndian.AppendUint16([]byte{first, mask | 126}, uint16(length))
	default:
		return binary.BigEndian.AppendUint64([]byte{first, mask | 127}, uint64(length))
	}
}

// frame takes the server's next frame.
func (r *raw) frame() (op byte, payload []byte) {
	r.t.Helper()
	op, payload, err := r.tryFrame()
	if err != nil {
		r.t.Fatal(err)
	}
	return op, payload
}

func (r *raw) tryFrame() (op byte, payload []byte, err error) {
	if err := r.nc.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return 0, nil, err
	}
	head := make([]byte, 10)
	if _, err := io.ReadFull(r.in, head[:2]); err != nil {
		return 0, nil, err
	}
	if head[0]&final == 0 || head[0]&0x70 != 0 || head[1]&0x80 != 0 {
		return 0, nil, fmt.Errorf("server's frame begins with %x", head[:2])
	}
	op = head[0]
	length := uint64(head[1])
	switch length {
	case 126:
		_, err = io.ReadFull(r.in, head[:2])
		length = uint64(binary.BigEndian.Uint16(head))
	case 127:
		_, err = io.ReadFull(r.in, head[:8])
		length = binary.BigEndian.Uint64(head)
	}
	if err != nil {
		return 0, nil, err
	}
	payload = make([]byte, length)
	_, err = io.ReadFull(r.in, payload)
	return op & 0x0f, payload, err
}

// closed takes frames up to the close frame, which must have a code, and then
// the end of the connection.
func (r *raw) closed(code int) (reason string) {
	r.t.Helper()
	for {
		op, payload := r.frame()
		if op != opClose {
			continue
		}
		if len(payload) < 2 {
			r.t.Fatalf("close frame of %d bytes, want code %d", len(payload), code)
		}
		reason = string(payload[2:])
		if got := int(binary.BigEndian.Uint16(payload)); got != code || len(payload) > 125 {
			r.t.Fatalf("closed with %d %q, want %d", got, reason, code)
		}
		// The answer; the server may be gone already.
		_, _ = r.nc.Write(maskedFrame(final|opClose, payload[:2]))
		break
	}
	// What follows the close frame is the end, of either kind.
	if op, _, err := r.tryFrame(); err == nil {
		r.t.Fatalf("frame %d after the close frame", op)
	}
	return reason
}

// values are the numbers that records are expected to hold.
func numbers(from, to int) []string {
	out := make([]string, 0, to-from)
	for i := from; i < to; i++ {
		out = append(out, strconv.Itoa(i))
	}
	return out
}
