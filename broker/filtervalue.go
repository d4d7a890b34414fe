package broker

import (
	"bytes"
	"reflect"
	"slices"
	"strconv"
	"unicode/utf8"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"github.com/go-json-experiment/json/jsontext"

	"leat/storage/record"
)

// maxFilterNesting is how deep the arrays and objects of a value may nest that
// a filter looks into; one that is deeper is no JSON to it, as to the readers
// of records.
const maxFilterNesting = 64

var filterJSONOptions = []jsontext.Options{jsontext.AllowDuplicateNames(true)}

// jsonValue is the value of a JSON text, or an error value if it is none. It
// keeps to raw, which must not change.
func jsonValue(raw []byte) ref.Val {
	text := bytes.Trim(raw, " \t\r\n")
	// The word by itself is text: null stands for a record without a value.
	if len(text) == 0 || string(text) == "null" || !jsontext.Value(text).IsValid(filterJSONOptions...) || nestsTooDeep(text) {
		return types.NewErr("the value is not JSON")
	}
	v, _ := jsonAt(text, 0)
	return v
}

// nestsTooDeep reports whether a valid text nests deeper than
// maxFilterNesting.
func nestsTooDeep(text []byte) bool {
	if text[0] != '{' && text[0] != '[' {
		return false
	}
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			i = skipString(text, i) - 1
		case '{', '[':
			if depth++; depth > maxFilterNesting {
				return true
			}
		case '}', ']':
			depth--
		}
	}
	return false
}

// skipString is the index behind the string that begins at i. The text is
// valid, as for all that follows.
func skipString(text []byte, i int) int {
	for i++; text[i] != '"'; i++ {
		if text[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// skipValue is the index behind the value that begins at i.
func skipValue(text []byte, i int) int {
	switch text[i] {
	case '"':
		return skipString(text, i)
	case '{', '[':
		for depth := 0; ; {
			switch text[i] {
			case '"':
				i = skipString(text, i)
				continue
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			}
			if i++; depth == 0 {
				return i
			}
		}
	}
	for i < len(text) {
		switch text[i] {
		case ',', ']', '}', ' ', '\t', '\r', '\n':
			return i
		}
		i++
	}
	return i
}

// skipTo is the index of the next byte that is neither a space nor of between.
func skipTo(text []byte, i int, between byte) int {
	for i < len(text) {
		switch text[i] {
		case ' ', '\t', '\r', '\n', between:
			i++
		default:
			return i
		}
	}
	return i
}

// jsonAt is the value that begins at i, and the index behind it. Arrays and
// objects are looked into when they are used.
func jsonAt(text []byte, i int) (ref.Val, int) {
	end := skipValue(text, i)
	raw := text[i:end:end]
	switch raw[0] {
	case '{':
		return &lazyMap{from: jsonObject(raw)}, end
	case '[':
		return &jsonArray{raw: raw}, end
	case '"':
		return types.String(unquote(raw)), end
	case 't':
		return types.True, end
	case 'f':
		return types.False, end
	case 'n':
		return types.NullValue, end
	}
	return jsonNumber(string(raw)), end
}

// unquote is the string of a JSON string.
func unquote(raw []byte) string {
	if inner := raw[1 : len(raw)-1]; bytes.IndexByte(inner, '\\') < 0 {
		return string(inner)
	}
	// The text was found to be valid.
	out, _ := jsontext.AppendUnquote(nil, raw)
	return string(out)
}

// jsonNumber is exact for integers of 64 bits.
func jsonNumber(text string) ref.Val {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return types.Int(n)
	}
	if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		return types.Uint(n)
	}
	// What is too large is infinite, which compares as it should.
	f, _ := strconv.ParseFloat(text, 64)
	return types.Double(f)
}

// maxScans is how many members of a map are looked up by going over its source;
// with more it is taken apart.
const maxScans = 3

// lazyMap is a map of which only that is made which is asked for.
type lazyMap struct {
	from interface {
		// find is the last value of the name.
		find(name string) (ref.Val, bool)
		// all takes the source apart. Values that are maps or arrays are taken
		// apart in their turn.
		all() map[string]any
	}
	scans int
	whole traits.Mapper
}

func (m *lazyMap) all() traits.Mapper {
	if m.whole == nil {
		m.whole = types.NewStringInterfaceMap(types.DefaultTypeAdapter, m.from.all())
	}
	return m.whole
}

func (m *lazyMap) Find(key ref.Val) (ref.Val, bool) {
	name, ok := key.(types.String)
	if m.scans++; !ok || m.whole != nil || m.scans > maxScans {
		return m.all().Find(key)
	}
	return m.from.find(string(name))
}

func (m *lazyMap) Get(key ref.Val) ref.Val {
	if v, found := m.Find(key); found || v != nil {
		return v // what was found, or an error
	}
	return types.NewErr("no such key: %v", key)
}

func (m *lazyMap) Contains(key ref.Val) ref.Val {
	v, found := m.Find(key)
	if v != nil && types.IsUnknownOrError(v) {
		return v
	}
	return types.Bool(found)
}

func (m *lazyMap) ConvertToNative(t reflect.Type) (any, error) { return m.all().ConvertToNative(t) }
func (m *lazyMap) ConvertToType(t ref.Type) ref.Val            { return m.all().ConvertToType(t) }
func (m *lazyMap) Equal(other ref.Val) ref.Val                 { return m.all().Equal(other) }
func (m *lazyMap) Iterator() traits.Iterator                   { return m.all().Iterator() }
func (m *lazyMap) Size() ref.Val                               { return m.all().Size() }
func (m *lazyMap) Type() ref.Type                              { return types.MapType }
func (m *lazyMap) Value() any                                  { return m.all().Value() }

// jsonObject is the text of an object.
type jsonObject []byte

func (o jsonObject) find(name string) (ref.Val, bool) {
	found := -1
	o.each(func(member []byte, i int) int {
		if inner := member[1 : len(member)-1]; string(inner) == name ||
			bytes.IndexByte(inner, '\\') >= 0 && unquote(member) == name {
			found = i
		}
		return skipValue(o, i)
	})
	if found < 0 {
		return nil, false
	}
	v, _ := jsonAt(o, found)
	return v, true
}

func (o jsonObject) all() map[string]any {
	members := map[string]any{}
	o.each(func(name []byte, i int) int {
		v, end := jsonAt(o, i)
		members[unquote(name)] = v
		return end
	})
	return members
}

// each gives do each member's name, with its quotes, and where its value
// begins; do gives the index behind that.
func (o jsonObject) each(do func(name []byte, i int) int) {
	for i := skipTo(o, 1, ' '); o[i] != '}'; i = skipTo(o, i, ',') {
		end := skipString(o, i)
		i = do(o[i:end], skipTo(o, end, ':'))
	}
}

// headerList is the headers of a record, by name.
type headerList []record.Header

func (h headerList) find(name string) (ref.Val, bool) {
	for _, header := range slices.Backward(h) {
		if header.Key == name {
			return headerValue(header.Value), true
		}
	}
	return nil, false
}

func (h headerList) all() map[string]any {
	members := make(map[string]any, len(h))
	for i := range h {
		members[h[i].Key] = headerValue(h[i].Value)
	}
	return members
}

func headerValue(p []byte) ref.Val {
	if utf8.Valid(p) {
		return textOrNull(p, "the header")
	}
	return bytesOrNull(p)
}

// textOrNull is a text, null for nil; of what is no text, an error.
func textOrNull(p []byte, what string) ref.Val {
	switch {
	case p == nil:
		return types.NullValue
	case !utf8.Valid(p):
		return types.NewErr("%s is not UTF-8", what)
	}
	return types.String(p)
}

func bytesOrNull(p []byte) ref.Val {
	if p == nil {
		return types.NullValue
	}
	return types.Bytes(p)
}

// jsonArray is an array that is taken apart when it is used.
type jsonArray struct {
	raw   []byte
	whole traits.Lister
}

func (a *jsonArray) list() traits.Lister {
	if a.whole == nil {
		var elements []ref.Val
		for i := skipTo(a.raw, 1, ' '); a.raw[i] != ']'; i = skipTo(a.raw, i, ',') {
			var v ref.Val
			v, i = jsonAt(a.raw, i)
			elements = append(elements, v)
		}
		a.whole = types.NewRefValList(types.DefaultTypeAdapter, elements)
	}
	return a.whole
}

func (a *jsonArray) Add(other ref.Val) ref.Val                   { return a.list().Add(other) }
func (a *jsonArray) Contains(v ref.Val) ref.Val                  { return a.list().Contains(v) }
func (a *jsonArray) ConvertToNative(t reflect.Type) (any, error) { return a.list().ConvertToNative(t) }

func (a *jsonArray) ConvertToType(t ref.Type) ref.Val { return a.list().ConvertToType(t) }
func (a *jsonArray) Equal(other ref.Val) ref.Val      { return a.list().Equal(other) }
func (a *jsonArray) Get(i ref.Val) ref.Val            { return a.list().Get(i) }
func (a *jsonArray) Iterator() traits.Iterator        { return a.list().Iterator() }
func (a *jsonArray) Size() ref.Val                    { return a.list().Size() }
func (a *jsonArray) Type() ref.Type                   { return types.ListType }
func (a *jsonArray) Value() any                       { return a.list().Value() }
