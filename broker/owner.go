package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"leat/replication"
	"leat/storage"
	"leat/storage/meta"
)

// ownerKey is the key that says whose directory the store is in.
var ownerKey = []byte{meta.PrefixBroker, 'o'}

// checkMeta refuses metadata that is damaged or not of this directory, before
// anything of it is changed: with another's, or with none, every log would be
// unknown and go into quarantine. Somebody has lost a directory, forgot to mount
// one, or put the wrong one here.
func (b *Broker) checkMeta(ctx context.Context, d *storage.Dir) error {
	there, err := meta.Exists(d.FS(), d.MetaPath())
	if err != nil {
		return err
	}
	if !there {
		what, err := d.HasRun()
		if err == nil && what != "" {
			err = &storage.DamagedError{Path: d.MetaPath(), Err: fmt.Errorf("the metadata is missing, but there is %s", what)}
		}
		return err
	}
	_, err = meta.Peek(ctx, meta.Options{FS: d.FS(), Dir: d.MetaPath(), Logger: b.opts.Logger}, func(db *meta.DB) error {
		_, foreign, err := owned(db, d)
		if err = errors.Join(foreign, err); err != nil {
			return err
		}
		return damagedMetadata(d.MetaPath(), replication.CheckMetadata(db))
	})
	return err
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
	return b.db.CommitLazy(batch) // the first change of metadata makes both durable
}

// damagedMetadata makes a DamagedError of an error that says that the metadata
// cannot be right.
func damagedMetadata(dir string, err error) error {
	if replication.IsDamaged(err) {
		return &storage.DamagedError{Path: dir, Err: err}
	}
	return err
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
	state, err := replication.ReadState(db)
	if err != nil {
		return "", "", &storage.DamagedError{Path: dir, Err: err}
	}
	if len(state.Brokers()) == 1 {
		node, _ := state.Broker(state.Brokers()[0])
		nodeUUID = node.UUID
	}
	return "", nodeUUID, nil
}
