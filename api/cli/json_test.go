package cli

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestAppendRecord proves the one form that each kind of bytes takes, that JSON goes out byte for byte, and that what comes
// out is always one line of valid JSON.
func TestAppendRecord(t *testing.T) {
	for _, c := range []struct {
		key, value []byte
		want       string
	}{
		{nil, nil, `"key":null,"value":null`},
		{[]byte{}, []byte{}, `"key_str":"","value_str":""`},
		{[]byte("k"), []byte("null"), `"key_str":"k","value_str":"null"`},
		{[]byte("7"), []byte(" null "), `"key":7,"value_str":" null "`},
		{nil, []byte(`{"id":73314510714175488,"f":1.10}`), `"key":null,"value":{"id":73314510714175488,"f":1.10}`},
		{nil, []byte(`{"a":1,"a":2}`), `"key":null,"value":{"a":1,"a":2}`},
		{nil, []byte("{\n}"), `"key":null,"value_str":"{\n}"`},
		{nil, []byte("[1]\r"), `"key":null,"value_str":"[1]\r"`},
		{nil, []byte("{"), `"key":null,"value_str":"{"`},
		{nil, []byte("<b>\"\\"), `"key":null,"value_str":"<b>\"\\"`},
		{nil, []byte{0xff, 0xfe}, `"key":null,"value_b64":"//4="`},
		{nil, []byte("\"\xff\""), `"key":null,"value_b64":"Iv8i"`},
	} {
		r := &kgo.Record{
			Topic: "t", Partition: 3, Offset: 9, Timestamp: time.UnixMilli(1700000000123), Key: c.key, Value: c.value,
			Headers: []kgo.RecordHeader{{Key: "a", Value: []byte("null")}, {Key: "b"}, {Key: "c", Value: []byte{0xff}}},
		}
		want := `{"topic":"t","partition":3,"offset":9,"timestamp":1700000000123,` + c.want +
			`,"headers":[{"name":"a","value":"null"},{"name":"b","value":null},{"name":"c","value_b64":"/w=="}]}`
		if got := appendRecord(nil, r); string(got) != want || !json.Valid(got) {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
