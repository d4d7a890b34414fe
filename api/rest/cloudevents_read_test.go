package rest

import (
	"strings"
	"testing"

	"leat/api"
	"leat/storage/record"
)

// binaryEvent is the record of a CloudEvent in the binary mode of the Kafka
// binding.
func binaryEvent(id, media string, more ...record.Header) []record.Header {
	headers := []record.Header{
		{Key: "ce_specversion", Value: []byte("1.0")}, {Key: "ce_id", Value: []byte(id)}, {Key: "ce_source", Value: []byte("/s")}, {Key: "ce_type", Value: []byte("t")},
	}
	if media != "" {
		headers = append(headers, record.Header{Key: "content-type", Value: []byte(media)})
	}
	return append(headers, more...)
}

const eventBatchT0 = "/v1/topics/t/partitions/0/records?from=earliest"

// What was produced as an event in any mode comes back as the same event in every
// mode.
func TestReadCloudEvents(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	head := func(id string) string { return `{"specversion":"1.0","id":"` + id + `","source":"/s","type":"t"` }
	d.put(nil, []byte("{\"n\": 1.10,\n\"n\":2}"), binaryEvent("0", "application/json")...)
	d.put(nil, []byte("a\u00fc\n"), binaryEvent("1", "text/plain; charset=utf-8", record.Header{Key: "ce_x", Value: []byte("\u20ac 1%")}, record.Header{Key: "other", Value: []byte("y")})...)
	d.put(nil, []byte{0, 255}, binaryEvent("2", "application/octet-stream")...)
	d.put(nil, []byte("no json"), binaryEvent("3", "application/json")...)
	d.put(nil, nil, binaryEvent("4", "")...)
	d.put(nil, []byte("null"), binaryEvent("5", "application/json")...)
	d.put(nil, []byte("\u00fc"), binaryEvent("6", "text/plain; charset=latin1")...)
	d.put(nil, []byte(" "+head("7")+",\n\"data\":[1]}\n"), record.Header{Key: "content-type", Value: []byte("Application/CloudEvents+JSON; charset=UTF-8")})
	want := "[" + head("0") + `,"datacontenttype":"application/json","data":{"n": 1.10,` + "\n" + `"n":2}},` +
		head("1") + `,"x":"€ 1%","datacontenttype":"text/plain; charset=utf-8","data":"aü\n"},` +
		head("2") + `,"datacontenttype":"application/octet-stream","data_base64":"AP8="},` +
		head("3") + `,"datacontenttype":"application/json","data_base64":"bm8ganNvbg=="},` +
		head("4") + "}," +
		head("5") + `,"datacontenttype":"application/json","data":null},` +
		head("6") + `,"datacontenttype":"text/plain; charset=latin1","data_base64":"w7w="},` +
		head("7") + ",\n\"data\":[1]}]\n"
	batch := d.do("GET", eventBatchT0, nil, "Accept", api.MediaEventBatch).want(t, 200, "")
	if string(batch.body) != want || batch.Header.Get("Next-Offset") != "8" || batch.Header.Get("Content-Type") != api.MediaEventBatch {
		t.Errorf("got  %s\nwant %s\n%v", batch.body, want, batch.Header)
	}
	// The batch, produced again, is the same events.
	d.topic("u", 1)
	d.do("POST", "/v1/topics/u/records", string(batch.body), "Content-Type", api.MediaEventBatch).want(t, 200, "")
	again := d.do("GET", "/v1/topics/u/records?from=earliest", nil, "Accept", api.MediaEventBatch).want(t, 200, "")
	if got, want := string(again.body), strings.Replace(want, ",\n\"data\":[1]}]", `,"datacontenttype":"application/json","data":[1]}]`, 1); got != want || again.Header.Get("Cursor") == "" {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	lines := d.do("GET", eventBatchT0+"&ce=strict", nil, "Accept", mediaNDJSON).want(t, 200, "")
	if got := strings.Split(string(lines.body), "\n"); len(got) != 9 || got[0] != head("0")+`,"datacontenttype":"application/json","data":{"n": 1.10, "n":2}}` || got[7] != head("7")+`, "data":[1]}` {
		t.Errorf("lines %q", got)
	}
	d.do("GET", recordT0+"7", nil, "Accept", api.MediaEvent).want(t, 200, "").contains(t, head("7")+",\n\"data\":[1]}")
	one := d.do("GET", recordT0+"1?ce=binary", nil).want(t, 200, "")
	if string(one.body) != "aü\n" || one.Header.Get("Ce-X") != "%E2%82%AC%201%25" || one.Header.Get("Ce-Id") != "1" || one.Header.Get("Content-Type") != "text/plain; charset=utf-8" || one.Header.Get("Content-Security-Policy") == "" {
		t.Errorf("%q %v", one.body, one.Header)
	}
	unfolded := d.do("GET", recordT0+"7?ce=binary", nil).want(t, 200, "")
	if string(unfolded.body) != "[1]" || unfolded.Header.Get("Ce-Id") != "7" || unfolded.Header.Get("Content-Type") != mediaJSON {
		t.Errorf("%q %v", unfolded.body, unfolded.Header)
	}
	if none := d.do("GET", recordT0+"4?ce=binary", nil).want(t, 200, ""); len(none.Header["Content-Type"]) > 0 {
		t.Errorf("%v", none.Header)
	}
}

// An answer ends before a record that is no event, and is refused if that is the
// first; wrapped, every record is an event.
func TestReadNoCloudEvents(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	d.put(nil, []byte("1"), binaryEvent("0", "")...)
	d.put([]byte("k"), []byte("plain"), record.Header{Key: "a", Value: []byte("b")})
	d.put(nil, []byte("2"), binaryEvent("2", "", record.Header{Key: "ce_time", Value: []byte("yesterday")})...)
	d.put(nil, []byte(`{"specversion":"1.0"}`), record.Header{Key: "content-type", Value: []byte(api.MediaEvent)})
	d.put(nil, []byte("x"), record.Header{Key: "content-type", Value: []byte("application/cloudevents+avro")})
	d.put(nil, []byte("5"), binaryEvent("5", "")...)
	first := d.do("GET", eventBatchT0, nil, "Accept", api.MediaEventBatch).want(t, 200, "")
	if got := string(first.body); got != `[{"specversion":"1.0","id":"0","source":"/s","type":"t","data":1}]`+"\n" || first.Header.Get("Next-Offset") != "1" {
		t.Errorf("%s, %v", got, first.Header)
	}
	at := "/v1/topics/t/partitions/0/records?offset="
	for _, offset := range []string{"1", "2", "3", "4"} {
		d.do("GET", at+offset, nil, "Accept", api.MediaEventBatch).want(t, 406, "not_a_cloudevent").contains(t, "the record at offset "+offset+" is no CloudEvent", `"topic":"t","partition":0`)
		d.do("GET", at+offset+"&ce=strict", nil, "Accept", mediaNDJSON).want(t, 406, "not_a_cloudevent")
	}
	const wrapped = `{"specversion":"1.0","id":"1","source":"/v1/topics/t/partitions/0","type":"leat.record","time":"2026-01-02T03:04:05.000Z","datacontenttype":"application/json",` +
		`"data":{"partition":0,"offset":1,"timestamp":1767323045000,"key_str":"k","value_str":"plain","headers":[{"name":"a","value":"b"}]}}`
	all := d.do("GET", eventBatchT0+"&ce=wrap", nil, "Accept", api.MediaEventBatch).want(t, 200, "").contains(t, `"id":"0","source":"/s"`, wrapped, `"id":"4","source":"/v1/topics/t/partitions/0"`, `"id":"5","source":"/s"`)
	d.topic("u", 1)
	d.do("POST", "/v1/topics/u/records", string(all.body), "Content-Type", api.MediaEventBatch).want(t, 200, "").contains(t, `"count":6`)
	d.do("GET", recordT0+"1?ce=wrap", nil, "Accept", api.MediaEvent).want(t, 200, "").contains(t, wrapped)
	for _, tc := range []struct{ query, accept string }{
		{"&ce=wrap", mediaJSON}, {"&ce=wrap", mediaBatch}, {"&ce=no", mediaNDJSON}, {"&as=json", api.MediaEventBatch}, {"&ce=wrap&as=json", mediaNDJSON}, {"&stream=true", api.MediaEventBatch},
	} {
		d.do("GET", eventBatchT0+tc.query, nil, "Accept", tc.accept).want(t, 400, "invalid_parameter")
	}
}

// Streams give events in place of records; one that is asked for events only ends
// with an error before another record, at the place to go on from.
func TestStreamCloudEvents(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	d.put(nil, []byte("{\n}"), binaryEvent("0", "application/json")...)
	d.put(nil, []byte("plain"))
	d.put(nil, []byte("2"), binaryEvent("2", "application/json")...)
	sse := d.follow(streamT0+"?from=earliest&ce=wrap", mediaEvents)
	for _, want := range []string{`data: {"specversion":"1.0","id":"0","source":"/s","type":"t","datacontenttype":"application/json","data":{ }}`, `"type":"leat.record"`, `"id":"2"`} {
		for line := ""; !strings.HasPrefix(line, "data: "); {
			var err error
			if line, err = sse.lines.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(line, "data: ") && !strings.Contains(line, want) {
				t.Errorf("%s want %s", line, want)
			}
		}
	}
	lines := d.follow(streamT0+"?from=earliest&ce=strict&stream=true", mediaNDJSON)
	var got strings.Builder
	for line := ""; !strings.HasPrefix(line, `{"$":"end"`); {
		var err error
		if line, err = lines.lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		got.WriteString(line)
	}
	if text := got.String(); !strings.Contains(text, `{"specversion":"1.0","id":"0",`) || !strings.Contains(text, `"reason":"error","next_offset":1,`) ||
		!strings.Contains(text, `"code":"not_a_cloudevent"`) || strings.Contains(text, "plain") {
		t.Errorf("%s", text)
	}
}
