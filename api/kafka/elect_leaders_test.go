package kafka

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/storage/record"
)

// ElectLeaders repairs a damaged partition if the election is unclean, and says
// what is lost; whatever else is asked for needs no election or is not there.
func TestElectLeaders(t *testing.T) {
	dir := t.TempDir()
	d := startDoor(t, setup{dir: dir})
	c := d.dial(t)
	c.create("t", 2)
	c.create("other", 1)
	ask[*kmsg.ProduceResponse](c, produceRequest("t", 0, -1, batch(t, 0, "lost")), 9)
	ask[*kmsg.ProduceResponse](c, produceRequest("t", 0, -1, batch(t, 0, "kept")), 9)
	logs, err := filepath.Glob(filepath.Join(dir, "logs", "*-0", "*.log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range logs {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := f.Stat(); err == nil && info.Size() > 0 {
			_, err = f.WriteAt([]byte{0xff}, record.HeaderSize+2)
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.opts.Broker.NoteDamage("t", 0, 0, os.ErrInvalid); err == nil {
		t.Fatal("the damage was not found")
	}
	fetch := func(offset int64) int16 {
		resp := ask[*kmsg.FetchResponse](c, fetchRequest("t", [16]byte{}, 0, offset), 11)
		return resp.Topics[0].Partitions[0].ErrorCode
	}
	if code, behind := fetch(0), fetch(1); code != 2 || behind != 0 {
		t.Errorf("fetch in the hole: code %d, behind it %d", code, behind)
	}
	produce := func() int16 {
		resp := ask[*kmsg.ProduceResponse](c, produceRequest("t", 0, -1, batch(t, 0, "more")), 9)
		return resp.Topics[0].Partitions[0].ErrorCode
	}
	if code := produce(); code != 56 {
		t.Errorf("produce: code %d", code)
	}
	elect := func(version int16, kind int8, topics ...kmsg.ElectLeadersRequestTopic) map[string]int16 {
		req := kmsg.NewPtrElectLeadersRequest()
		req.ElectionType, req.Topics = kind, topics
		codes := map[string]int16{}
		for _, topic := range ask[*kmsg.ElectLeadersResponse](c, req, version).Topics {
			for _, p := range topic.Partitions {
				name := topic.Topic + "/" + string('0'+p.Partition)
				codes[name] = p.ErrorCode
				if p.ErrorCode == 0 && !strings.Contains(*p.ErrorMessage, "0 to 0") {
					t.Errorf("%s: %s", name, *p.ErrorMessage)
				}
			}
		}
		return codes
	}
	some := []kmsg.ElectLeadersRequestTopic{{Topic: "t", Partitions: []int32{0, 1, 2}}, {Topic: "none", Partitions: []int32{0}}}
	for version := int16(0); version <= 2; version++ {
		if got := elect(version, 0, some...); got["t/0"] != 84 || got["t/1"] != 84 || got["t/2"] != 3 || got["none/0"] != 3 {
			t.Errorf("version %d, preferred: %v", version, got)
		}
	}
	if got := elect(2, 1); len(got) != 1 || got["t/0"] != 0 {
		t.Errorf("all: %v", got)
	}
	if got := elect(1, 1, some...); got["t/0"] != 84 || got["t/1"] != 84 || got["t/2"] != 3 || got["none/0"] != 3 {
		t.Errorf("once more: %v", got)
	}
	if a, b, code := fetch(0), fetch(1), produce(); a != 0 || b != 0 || code != 0 {
		t.Errorf("after the repair: fetch %d and %d, produce %d", a, b, code)
	}
}
