package e2e

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// served is an API with the versions that are answered.
type served struct{ key, low, high int16 }

// served asks the server what it serves.
func (w *wire) served() []served {
	w.t.Helper()
	var out []served
	for _, k := range w.call(kmsg.NewPtrApiVersionsRequest()).(*kmsg.ApiVersionsResponse).ApiKeys {
		low := k.MinVersion
		if k.ApiKey == int16(kmsg.Produce) {
			low = 3 // below, it is advertised only
		}
		out = append(out, served{k.ApiKey, low, k.MaxVersion})
	}
	return out
}

// The names in requests that are made at random. What is watched has other names.
var (
	fuzzTopics = []string{"fuzz", "fuzz", "fuzz", "fuzz-keyed", "missing", "__consumer_offsets", "", "bad/name", strings.Repeat("n", 249), "ü"}
	fuzzGroups = []string{"fg-1", "fg-1", "fg-2", "fg-3", "", strings.Repeat("g", 300)}
)

// frames makes requests at random and spoils them.
type frames struct {
	*rand.Rand
	apis    []served
	batches [][]byte
	ids     [][16]byte // of topics
}

func newFrames(t testing.TB, seed uint64, apis []served, ids [][16]byte) *frames {
	now := time.Now().UnixMilli()
	f := &frames{Rand: rand.New(rand.NewPCG(seed, seed^0x9e3779b97f4a7c15)), apis: apis, ids: append(ids, [16]byte{}, [16]byte{1})}
	keyed := []rec{{now, []byte("k"), []byte("v")}, {now, []byte("k"), nil}}
	for _, codec := range []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()} {
		f.batches = append(f.batches, encode(t, codec, values(now, "a", "b", "c")), encode(t, codec, keyed))
	}
	f.batches = append(f.batches, encode(t, kgo.NoCompression(), values(now, "a"), producer(7, 0, 0)), nil)
	return f
}

// valid is a request that means something: any API at any version that is served, with something in each field.
func (f *frames) valid() kmsg.Request {
	a := f.apis[f.IntN(len(f.apis))]
	req := kmsg.RequestForKey(a.key)
	f.fill(reflect.ValueOf(req).Elem(), "")
	req.SetVersion(a.low + int16(f.IntN(int(a.high-a.low)+1)))
	if p, ok := req.(*kmsg.ProduceRequest); ok && f.IntN(4) > 0 {
		p.TransactionID = nil // else nothing of it is looked at
	}
	return req
}

// fill puts something into a field by its name and kind.
func (f *frames) fill(v reflect.Value, name string) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if field := v.Type().Field(i); field.Name != "UnknownTags" && field.Name != "Version" {
				f.fill(v.Field(i), field.Name)
			}
		}
	case reflect.Pointer:
		if f.IntN(4) > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			f.fill(v.Elem(), name)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes(slices.Clone(f.batches[f.IntN(len(f.batches))]))
		} else if n := f.IntN(4); n > 0 || f.IntN(2) > 0 { // else null
			v.Set(reflect.MakeSlice(v.Type(), n, n))
			for i := range n {
				f.fill(v.Index(i), strings.TrimSuffix(name, "s"))
			}
		}
	case reflect.Array:
		v.Set(reflect.ValueOf(f.ids[f.IntN(len(f.ids))]))
	case reflect.String:
		v.SetString(f.text(name))
	case reflect.Bool:
		v.SetBool(name == "ValidateOnly" || f.IntN(2) > 0)
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		f.number(v, name)
	default:
		if v.CanFloat() {
			v.SetFloat(f.Float64())
		}
	}
}

func (f *frames) text(name string) string {
	pool := []string{"", "a", "1", "fuzz", "retention.ms", "consumer", "range", "Stable"}
	switch {
	case strings.HasPrefix(name, "Topic"):
		pool = fuzzTopics
	case strings.HasPrefix(name, "Group"), strings.HasPrefix(name, "CoordinatorKey"):
		pool = fuzzGroups
	case strings.HasPrefix(name, "ResourceName"):
		pool = []string{"fuzz", "missing", "1", "", "-1"}
	case strings.HasPrefix(name, "ClientSoftware"):
		pool = []string{"frames", "1.0"}
	}
	return pool[f.IntN(len(pool))]
}

func (f *frames) number(v reflect.Value, name string) {
	low, high := int64(math.MinInt64)>>(64-v.Type().Bits()), int64(math.MaxInt64)>>(64-v.Type().Bits())
	pool := []int64{-1, 0, 1, 2, 5, high, low, f.Int64() & high}
	switch name {
	case "Partition", "PartitionIndex":
		pool = []int64{0, 0, 0, 1, -1, 9, high}
	case "Acks":
		pool = []int64{-1, 0, 1, 2}
	case "Generation":
		pool = []int64{-1, -1, 0, 1}
	case "ResourceType":
		pool = []int64{2, 2, 4, 8}
	case "SessionTimeoutMillis", "RebalanceTimeoutMillis":
		pool = []int64{100, 500, 1000, 2000, -1, high}
	case "MaxWaitMillis", "TimeoutMillis":
		pool = []int64{0, 10, 100, high}
	case "NumPartitions", "Count":
		pool = []int64{1, 2, 3, -1, 0}
	case "Timestamp", "Offset", "FetchOffset":
		pool = []int64{-5, -4, -3, -2, -1, 0, 1, time.Now().UnixMilli(), high, low}
	}
	v.SetInt(max(low, min(high, pool[f.IntN(len(pool))])))
}

// frame is a request as it goes over the wire.
func (f *frames) frame(req kmsg.Request) []byte {
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID("frames")).AppendRequest(nil, req, f.Int32())
}

// Where the fields of a frame stand.
const (
	atKey     = 4
	atVersion = 6
	atHeader  = 12
)

// sized puts the size of a frame in front of it.
func sized(p []byte) []byte {
	if len(p) >= 4 {
		binary.BigEndian.PutUint32(p, uint32(len(p)-4))
	}
	return p
}

// spoil changes a good frame. Most of what it makes keeps its size field right, so that what is wrong is found by whoever
// decodes it.
func (f *frames) spoil(p []byte) []byte {
	at := func(room int) int { return atHeader + f.IntN(max(len(p)-atHeader-room, 1)) }
	lengths := []uint32{0, 1, 0x7fffffff, 0xffffffff, 0x80000000, 0x00ffffff, 0x0000ffff, f.Uint32()}
	switch f.IntN(14) {
	case 0: // bits
		for range 1 + f.IntN(8) {
			p[at(0)] ^= 1 << f.IntN(8)
		}
	case 1: // cut, and said so
		return sized(p[:at(0)])
	case 2: // cut, and not said so
		return p[:at(0)]
	case 3: // a size that is wrong
		binary.BigEndian.PutUint32(p, []uint32{0, 9, 0xffffffff, 0x7fffffff, uint32(len(p)), uint32(len(p) - 5), 100 << 20}[f.IntN(7)])
	case 4: // a length or a count of four bytes
		if i := at(4); i+4 <= len(p) {
			binary.BigEndian.PutUint32(p[i:], lengths[f.IntN(len(lengths))])
		}
	case 5: // of two bytes: also null
		if i := at(2); i+2 <= len(p) {
			binary.BigEndian.PutUint16(p[i:], uint16(lengths[f.IntN(len(lengths))]))
		}
	case 6: // a varint that is long, or longer than any
		i := at(0)
		bomb := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f}[:1+f.IntN(11)]
		return sized(slices.Concat(p[:i], bomb, p[min(i+1, len(p)):]))
	case 7: // null or empty where something was
		p[at(0)] = byte(f.IntN(2))
	case 8: // more behind the end
		return sized(append(p, f.noise(1+f.IntN(200))...))
	case 9: // the header of another version, the body of another API
		binary.BigEndian.PutUint16(p[atVersion:], uint16(f.IntN(20)-1))
		if f.IntN(2) > 0 {
			binary.BigEndian.PutUint16(p[atKey:], uint16(f.IntN(100)-1))
		}
	case 10: // something is there twice, or not at all
		i := at(0)
		j := i + f.IntN(len(p)-i+1)
		if f.IntN(2) > 0 {
			return sized(slices.Concat(p[:j], p[i:]))
		}
		return sized(slices.Concat(p[:i], p[j:]))
	case 11: // noise behind a good header
		a := f.apis[f.IntN(len(f.apis))]
		binary.BigEndian.PutUint16(p[atKey:], uint16(a.key))
		binary.BigEndian.PutUint16(p[atVersion:], uint16(a.low+int16(f.IntN(int(a.high-a.low)+1))))
		return sized(append(p[:atHeader:atHeader], f.noise(f.IntN(500))...))
	case 12: // noise
		return f.noise(1 + f.IntN(300))
	default: // a run of bytes of one kind
		i := at(0)
		for j := i; j < min(i+1+f.IntN(40), len(p)); j++ {
			p[j] = 0xff
		}
	}
	return p
}

func (f *frames) noise(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(f.Uint32())
	}
	return p
}

// huge is a request with one list made as long as about so many bytes allow, of one element again and again. It is as
// valid as it was.
func (f *frames) huge(bytes int) []byte {
	for {
		req := f.valid()
		var lists []reflect.Value
		collect(reflect.ValueOf(req).Elem(), &lists)
		if len(lists) == 0 {
			continue
		}
		list := lists[f.IntN(len(lists))]
		before := len(f.frame(req))
		list.Set(reflect.Append(list, list.Index(0)))
		n := bytes / max(len(f.frame(req))-before, 1)
		if n > 1<<20 {
			continue // not a field of this version
		}
		many := reflect.MakeSlice(list.Type(), n, n)
		for i := range n {
			many.Index(i).Set(list.Index(0))
		}
		list.Set(many)
		return f.frame(req)
	}
}

// collect finds the lists that are not empty.
func collect(v reflect.Value, out *[]reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				collect(v.Field(i), out)
			}
		}
	case reflect.Pointer:
		if !v.IsNil() {
			collect(v.Elem(), out)
		}
	case reflect.Slice:
		if v.Len() > 0 && v.Type().Elem().Kind() != reflect.Uint8 {
			*out = append(*out, v)
			for i := range v.Len() {
				collect(v.Index(i), out)
			}
		}
	default:
	}
}

// lawful reports whether a frame is a good request for what would use up the disk or change the rules for everybody:
// it is not sent, because the server does as it is told.
func lawful(p []byte) bool {
	if len(p) < atHeader+2 || int(binary.BigEndian.Uint32(p)) > len(p)-4 {
		return false
	}
	req := kmsg.RequestForKey(int16(binary.BigEndian.Uint16(p[atKey:])))
	if req == nil {
		return false
	}
	req.SetVersion(int16(binary.BigEndian.Uint16(p[atVersion:])))
	client := max(int(int16(binary.BigEndian.Uint16(p[atHeader:]))), 0)
	body := p[min(atHeader+2+client, len(p)):]
	if req.IsFlexible() && len(body) > 0 {
		body = body[1:]
	}
	if req.ReadFrom(body) != nil {
		return false
	}
	switch r := req.(type) {
	case *kmsg.CreateTopicsRequest:
		return !r.ValidateOnly && slices.ContainsFunc(r.Topics, func(t kmsg.CreateTopicsRequestTopic) bool {
			return t.NumPartitions > 8 || len(t.ReplicaAssignment) > 8
		})
	case *kmsg.CreatePartitionsRequest:
		return !r.ValidateOnly && slices.ContainsFunc(r.Topics, func(t kmsg.CreatePartitionsRequestTopic) bool { return t.Count > 8 })
	case *kmsg.AlterConfigsRequest:
		return !r.ValidateOnly && slices.ContainsFunc(r.Resources, func(r kmsg.AlterConfigsRequestResource) bool {
			return r.ResourceType == kmsg.ConfigResourceTypeBroker
		})
	case *kmsg.IncrementalAlterConfigsRequest:
		return !r.ValidateOnly && slices.ContainsFunc(r.Resources, func(r kmsg.IncrementalAlterConfigsRequestResource) bool {
			return r.ResourceType == kmsg.ConfigResourceTypeBroker
		})
	}
	return false
}
