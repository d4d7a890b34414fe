package replication

import (
	"encoding/binary"
	"testing"

	"leat/replication/controller"
	"leat/storage/disk"
	"leat/storage/meta"
)

// An upgrade that failed before it registered has begun a quorum. The version
// before goes on without it, and the next upgrade begins at the state that it finds.
func TestMetadataAfterRollback(t *testing.T) {
	db := openMeta(t, disk.NewMem())
	openMetadata(t, db).Close()
	// The version before commits by itself.
	b := db.NewBatch()
	for i, r := range []controller.Record{&controller.FeatureLevel{Level: 2}, &controller.ProducerIDsTaken{Next: 1000}} {
		key, _ := controller.Key(r)
		b.Set(meta.StateKey(key), controller.Encode(r))
		b.Set(binary.BigEndian.AppendUint64([]byte{meta.PrefixLog}, uint64(10+i)), controller.Encode(r))
	}
	b.Set(meta.AppliedKey(), binary.BigEndian.AppendUint64(nil, 11))
	if err := db.Commit(b); err != nil {
		t.Fatal(err)
	}
	if err := CheckMetadata(db); err != nil {
		t.Errorf("the check says %v", err)
	}
	for range 2 {
		m := openMetadata(t, db)
		reply, err := m.Propose(t.Context(), &controller.AllocateProducerIDs{Count: 10})
		if err != nil || reply.First < 1000 {
			t.Errorf("producer ids from %d, %v", reply.First, err)
		}
		if m.State().Level() != 2 || m.Status().Applied <= 11 {
			t.Errorf("level %d, applied %d", m.State().Level(), m.Status().Applied)
		}
		m.Close()
		if err := CheckMetadata(db); err != nil {
			t.Errorf("the check says %v", err)
		}
	}
}
