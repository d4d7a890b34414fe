package api

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"leat/storage/record"
)

// minimal is an event with nothing but what every event has, open at its end.
const minimal = `{"specversion":"1.0","id":"1","source":"/s","type":"t"`

// stored is the record that an event becomes, in words.
func stored(t *testing.T, body string) string {
	t.Helper()
	sink := &memorySink{}
	rs := &Records{Sink: sink, Route: AnyPartition}
	if err := errors.Join(ParseEvent(rs, []byte(body)), rs.Finish()); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return words(&sink.records[0])
}

func words(r *record.Record) string {
	var b strings.Builder
	for _, h := range r.Headers {
		b.WriteString(h.Key + "=" + string(h.Value) + " ")
	}
	if r.Key != nil {
		b.WriteString("key=" + string(r.Key) + " ")
	}
	if r.Value == nil {
		return b.String() + "null"
	}
	return b.String() + "[" + string(r.Value) + "]"
}

// The examples of the JSON format's section 3.2 are stored as the Kafka binding
// says; data is kept byte for byte.
func TestEventStored(t *testing.T) {
	const head = "ce_specversion=1.0 ce_id=1 ce_source=/s ce_type=t "
	for body, want := range map[string]string{
		minimal + `}`:                            head + "null",
		minimal + `,"data":null}`:                head + "content-type=application/json [null]",
		minimal + `,"data":{"a": 1.10,"a":2}}`:   head + `content-type=application/json [{"a": 1.10,"a":2}]`,
		minimal + `,"data":"I'm just a string"}`: head + `content-type=application/json ["I'm just a string"]`,
		minimal + `,"datacontenttype":"application/xml","data":"<much wow=\"xml\"/>"}`:   head + `content-type=application/xml [<much wow="xml"/>]`,
		minimal + `,"datacontenttype":"Text/JSON; charset=utf-8","data": [1 , 2] }`:      head + "content-type=Text/JSON; charset=utf-8 [[1 , 2]]",
		minimal + `,"datacontenttype":"application/a+json","data":"x"}`:                  head + `content-type=application/a+json ["x"]`,
		minimal + `,"data_base64":"AAH/"}`:                                               head + "[\x00\x01\xff]",
		minimal + `,"data_base64":""}`:                                                   head + "[]",
		minimal + `,"datacontenttype":"a/b","data_base64":null}`:                         head + "content-type=a/b null",
		minimal + `,"subject":null,"comexampleothervalue":5,"yes":true,"n":-2147483648}`: head + "ce_comexampleothervalue=5 ce_yes=true ce_n=-2147483648 null",
		minimal + `,"partitionkey":"k\u00fc","time":"2018-04-05T17:31:00Z"}`:             head + "ce_partitionkey=kü ce_time=2018-04-05T17:31:00Z key=kü null",
		minimal + `,"dataschema":"urn:x:y","subject":" "}`:                               head + "ce_dataschema=urn:x:y ce_subject=  null",
	} {
		if got := stored(t, body); got != want {
			t.Errorf("%s\n got %q\nwant %q", body, got, want)
		}
	}
}

// What breaks a rule of the specification is refused, and the words say which.
func TestEventRefused(t *testing.T) {
	for body, want := range map[string]string{
		`{}`: "the required attributes specversion, id, source, type are missing",
		`{"specversion":"1.0","id":"1","source":"/s"}`:                 "the required attribute type is missing",
		`{"specversion":"1.0","id":null,"source":"/s","type":"t"}`:     "attribute id is missing",
		`{"specversion":"0.3","id":"1","source":"/s","type":"t"}`:      `specversion "0.3" is not known here`,
		`{"specversion":1.0,"id":"1","source":"/s","type":"t"}`:        "specversion must be a string",
		`{"specversion":"1.0","id":"","source":"/s","type":"t"}`:       "id must not be empty",
		`{"specversion":"1.0","id":"1","source":"","type":"t"}`:        "source must not be empty",
		`{"specversion":"1.0","id":"1","source":"a b","type":"t"}`:     `source "a b" is no URI reference`,
		`{"specversion":"1.0","id":"1","source":"%zz","type":"t"}`:     "no URI reference",
		`{"specversion":"1.0","id":"1","source":"a#b#c","type":"t"}`:   "no URI reference",
		`{"specversion":"1.0","id":"a\nb","source":"/s","type":"t"}`:   "id has characters that are not allowed",
		`{"specversion":"1.0","id":"\ufffe","source":"/s","type":"t"}`: "id has characters",
		`{"specversion":"1.0","id":"\u0085","source":"/s","type":"t"}`: "id has characters",
		minimal + `,"id":"2"}`:                                "id is given more than once",
		minimal + `,"Subject":"x"}`:                           `"Subject" is no name of an attribute`,
		minimal + `,"a_b":"x"}`:                               `"a_b" is no name`,
		minimal + `,"":"x"}`:                                  "without a name",
		minimal + `,"subject":""}`:                            "subject must not be empty",
		minimal + `,"subject":5}`:                             "subject must be a string",
		minimal + `,"ext":{"a":1}}`:                           "ext must be a string, a number or a boolean",
		minimal + `,"ext":1.5}`:                               "ext must be a whole number",
		minimal + `,"ext":1e3}`:                               "ext must be a whole number",
		minimal + `,"ext":2147483648}`:                        "ext must be a whole number",
		minimal + `,"partitionkey":""}`:                       "partitionkey must not be empty",
		minimal + `,"time":"2018-04-05"}`:                     `time "2018-04-05" is no timestamp`,
		minimal + `,"time":"2018-02-30T00:00:00Z"}`:           "no timestamp",
		minimal + `,"time":"2018-04-05 17:31:00Z"}`:           "no timestamp",
		minimal + `,"dataschema":"/relative"}`:                "no absolute URI",
		minimal + `,"datacontenttype":"json"}`:                "no media type",
		minimal + `,"datacontenttype":"text/plain","data":1}`: "data must be a string",
		minimal + `,"data":1,"data_base64":"AA=="}`:           "data and data_base64 are both given",
		minimal + `,"data":1,"data":2}`:                       "data is given more than once",
	} {
		rs := &Records{Sink: &memorySink{}, Route: AnyPartition}
		err := errors.Join(ParseEvent(rs, []byte(body)), rs.Finish())
		p, ok := errors.AsType[*Problem](err)
		if !ok || p.Status != 400 || p.Code != codeInvalidEvent || !strings.Contains(p.Detail, want) || p.Errors[0].Line != 1 || p.Errors[0].Byte == nil {
			t.Errorf("%s: %+v, want %q", body, p, want)
		}
	}
	for _, body := range []string{
		`[]`, `5`, `[` + minimal + `}]`, minimal, minimal + `}x`, minimal + `,"data_base64":5}`, minimal + `,"data_base64":"A"}`,
		minimal + `,"data":` + strings.Repeat("[", 65) + strings.Repeat("]", 65) + `}`,
	} {
		rs := &Records{Sink: &memorySink{}, Route: AnyPartition}
		err := errors.Join(ParseEvent(rs, []byte(body)), rs.Finish())
		if p, ok := errors.AsType[*Problem](err); !ok || p.Status != 400 || p.Code != codeMalformed {
			t.Errorf("%.80s: %v", body, err)
		}
	}
}

// Timestamps are those of RFC 3339, all of them and no others.
func TestRFC3339(t *testing.T) {
	for text, want := range map[string]bool{
		"2018-04-05T17:31:00Z": true, "2018-04-05t17:31:00.123456789z": true, "2016-12-31T23:59:60Z": true, "2018-04-05T17:31:00+02:00": true,
		"2018-04-05T17:31:00": false, "2018-04-05T17:31:00,5Z": false, "2018-4-05T17:31:00Z": false, "2018-04-05T7:31:00Z": false,
		"2018-04-05T24:00:00Z": false, "2018-04-05T17:31:61Z": false, "": false, "2018-04-05T17:31:00.Z": false, "2018-04-05T17:31:00Zx": false,
	} {
		if isRFC3339(text) != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
}

// A batch is taken whole or refused whole, and each bad event is named.
func TestEventBatch(t *testing.T) {
	sink := &memorySink{}
	rs := &Records{Sink: sink, Route: AnyPartition}
	if err := errors.Join(ParseEvents(rs, []byte("["+minimal+"},\n"+minimal+`,"data":1}]`)), rs.Finish()); err != nil || len(sink.records) != 2 {
		t.Fatalf("%v, %d records", err, len(sink.records))
	}
	rs = &Records{Sink: &memorySink{}, Route: AnyPartition}
	err := errors.Join(ParseEvents(rs, []byte("["+minimal+"},\n"+minimal+",\"ext\":[]},\n{\"id\":\"1\"}]")), rs.Finish())
	p, _ := errors.AsType[*Problem](err)
	if p == nil || p.Code != codeInvalidEvent || len(p.Errors) != 2 || *p.Errors[0].Index != 1 || p.Errors[0].Line != 2 || p.Errors[0].Pointer != "/1/ext" || *p.Errors[1].Index != 2 {
		t.Errorf("%+v", p)
	}
	rs = &Records{Route: AnyPartition}
	if err := ParseEvents(rs, []byte(minimal+"}")); err == nil {
		t.Error("an event is taken for a batch")
	}
}

// Whatever the body, parsing it neither panics nor leaves an error without a
// place; what is taken is JSON and has what every event has.
func FuzzEvent(f *testing.F) {
	for _, seed := range []string{
		minimal + `,"data":{"a":1}}`, minimal + `,"data_base64":"AA==","time":"2018-04-05T17:31:00Z","n":5}`, "[" + minimal + "}," + minimal + "}]",
		`{"specversion":"1.0","id":"\ud800"}`, `[]`, ``, `{"data":null}`, minimal + `,"datacontenttype":"text/plain","data":"\u0000"}`,
	} {
		f.Add([]byte(seed), false)
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, body []byte, batch bool) {
		sink := &memorySink{}
		rs := &Records{Sink: sink, Route: AnyPartition}
		parse := ParseEvent
		if batch {
			parse = ParseEvents
		}
		err := parse(rs, body)
		if err == nil {
			err = rs.Finish()
		}
		if err != nil {
			p, ok := errors.AsType[*Problem](err)
			if !ok || p.Status < 400 || p.Status > 499 || p.Code == "" || p.Detail == "" {
				t.Fatalf("%q: %#v", body, err)
			}
			return
		}
		if !jsontext.Value(body).IsValid(valueOptions...) {
			t.Fatalf("took %q", body)
		}
		for i := range sink.records {
			for _, name := range requiredAttributes {
				if !bytes.Contains([]byte(" "+words(&sink.records[i])), []byte(" "+eventPrefix+name+"=")) {
					t.Fatalf("%q: no %s", body, name)
				}
			}
		}
	})
}
