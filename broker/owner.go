package broker

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"leat/replication"
	"leat/storage"
	"leat/storage/meta"
)

// ownerKey is the key that says whose directory the store is in.
var ownerKey = []byte{meta.PrefixBroker, 'o'}

// checkMeta refuses metadata that is not of this directory, before anything of
// it is changed: with another's, or with none, every log would be unknown and go
// into quarantine. Somebody has lost a directory, forgot to mount one, or put
// the wrong one here.
func (b *Broker) checkMeta(d *storage.Dir) error {
	there, err := meta.Exists(d.FS(), d.MetaPath())
	if err != nil {
		return err
	}
	if !there {
		has, err := d.HasLogs()
		if err == nil && has {
			err = &storage.DamagedError{Path: d.MetaPath(), Err: errors.New("the metadata is missing, but there are logs")}
		}
		return err
	}
	var foreign error
	err = meta.Peek(meta.Options{FS: d.FS(), Dir: d.MetaPath(), Logger: b.opts.Logger}, func(db *meta.DB) (err error) {
		_, foreign, err = owned(db, d)
		return err
	})
	if errors.Is(err, meta.ErrFailed) {
		return err // damage was met, and what is left of the look may hold the store's lock
	}
	if err != nil { // its opening tells what it is
		b.log.Debug("whose metadata it is cannot be read yet", slog.Any("err", err))
	}
	return foreign
}

// claim writes into a store that does not name its owner that it is this
// directory's: one that is new, or of a version that did not say so.
func (b *Broker) claim() error {
	known, foreign, err := owned(b.db, b.dir)
	if err = errors.Join(foreign, err); err != nil || known {
		return err
	}
	who := b.dir.Identity()
	batch := b.db.NewBatch()
	batch.Set(ownerKey, []byte(who.ClusterID+" "+who.NodeUUID))
	return b.db.Commit(batch)
}

// owned says whether the store names its owner; foreign is why it is not the
// directory's.
func owned(db *meta.DB, d *storage.Dir) (known bool, foreign, err error) {
	clusterID, nodeUUID, err := readOwner(db, d.MetaPath())
	if err != nil {
		return false, nil, err
	}
	if who := d.Identity(); !who.Owns(clusterID, nodeUUID) {
		foreign = &storage.DamagedError{Path: d.MetaPath(), Err: who.Foreign(clusterID, nodeUUID)}
	}
	return clusterID != "", foreign, nil
}

// readOwner says whose directory the store in dir is. Of one that does not say
// so only the node may be known, by its registration, or nothing.
func readOwner(db *meta.DB, dir string) (clusterID, nodeUUID string, err error) {
	value, err := db.Get(ownerKey)
	if err == nil {
		clusterID, nodeUUID, ok := strings.Cut(string(value), " ")
		if !ok || clusterID == "" || nodeUUID == "" {
			return "", "", &meta.CorruptError{Path: dir, Err: fmt.Errorf("its owner is no cluster and node: %q", value)}
		}
		return clusterID, nodeUUID, nil
	}
	if !errors.Is(err, meta.ErrNotFound) {
		return "", "", fmt.Errorf("read whose metadata it is: %w", err)
	}
	local, err := replication.OpenLocal(db)
	if err != nil {
		return "", "", err
	}
	if state := local.State(); len(state.Brokers()) == 1 {
		node, _ := state.Broker(state.Brokers()[0])
		nodeUUID = node.UUID
	}
	return "", nodeUUID, nil
}
