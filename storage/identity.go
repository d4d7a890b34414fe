package storage

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"leat/storage/disk"
)

const (
	identityName = "meta.json"
	// identityFormat is what this version writes, identityReader the highest
	// min_reader that it understands.
	identityFormat = 1
	identityReader = 1
	// maxIdentityBytes bounds the read of meta.json.
	maxIdentityBytes = 64 << 10
)

// DamagedError says that a file of the data directory cannot be trusted, or
// that the directory belongs to a newer Leat. Nothing was changed; a person
// must look.
type DamagedError struct {
	Path string
	Err  error
}

func (e *DamagedError) Error() string { return "cannot trust " + e.Path + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *DamagedError) Unwrap() error { return e.Err }

// TopicID names a topic for ever: a topic deleted and made again under its
// old name has another one. It is a UUID as in KIP-516.
type TopicID [16]byte

// NewTopicID makes a random (version 4) id. Its text never starts with a
// dash, so that it can be an argument on a command line.
func NewTopicID() TopicID {
	for {
		var id TopicID
		_, _ = rand.Read(id[:]) // never fails: crypto/rand ends the process instead
		id[6] = id[6]&0x0f | 0x40
		id[8] = id[8]&0x3f | 0x80
		if id.String()[0] != '-' {
			return id
		}
	}
}

// String is the id in Kafka's form: 22 characters of unpadded base64url.
func (id TopicID) String() string { return base64.RawURLEncoding.EncodeToString(id[:]) }

// IsZero says whether id is the zero UUID, which names no topic.
func (id TopicID) IsZero() bool { return id == TopicID{} }

// ParseTopicID reads what String writes.
func ParseTopicID(s string) (TopicID, error) {
	var id TopicID
	b, err := base64.RawURLEncoding.Strict().DecodeString(s) // skips line ends
	if err != nil || len(b) != len(id) || len(s) != base64.RawURLEncoding.EncodedLen(len(id)) {
		return id, fmt.Errorf("topic id %q: want 22 characters of base64url", s)
	}
	copy(id[:], b)
	return id, nil
}

// ID names a partition.
type ID struct {
	Topic     TopicID
	Partition int32
}

// String is "topicid-partition".
func (id ID) String() string { return id.Topic.String() + "-" + strconv.Itoa(int(id.Partition)) }

// dirName is the partition's directory below logs/: the topic id as 32 hex
// digits, which no file system folds or refuses, then the partition.
func (id ID) dirName() string {
	return hex.EncodeToString(id.Topic[:]) + "-" + strconv.Itoa(int(id.Partition))
}

// parseDirName reads what dirName writes, and nothing else.
func parseDirName(name string) (ID, bool) {
	var id ID
	topic, partition, ok := strings.Cut(name, "-")
	if !ok || len(topic) != hex.EncodedLen(len(id.Topic)) {
		return ID{}, false
	}
	if _, err := hex.Decode(id.Topic[:], []byte(topic)); err != nil {
		return ID{}, false
	}
	n, err := strconv.ParseInt(partition, 10, 32)
	id.Partition = int32(n)
	if err != nil || n < 0 || id.dirName() != name {
		return ID{}, false
	}
	return id, true
}

// errNewer says that another version must read the directory.
var errNewer = errors.New("written by a newer version")

// Identity is who a data directory belongs to: meta.json, written once.
type Identity struct {
	ClusterID string // 22 characters, as Kafka's
	NodeID    int32  // ≥ 1
	NodeUUID  string // 22 characters; tells two nodes with one NodeID apart
	CreatedAt time.Time
}

type identityJSON struct {
	Format    int       `json:"format"`
	MinReader int       `json:"min_reader"`
	ClusterID string    `json:"cluster_id"`
	NodeID    int32     `json:"node_id"`
	NodeUUID  string    `json:"node_uuid"`
	CreatedAt time.Time `json:"created_at"`
}

// openIdentity reads meta.json of dir, or writes a new one (nodeID 0 means 1)
// if dir holds no data. A file that is missing beside data, damaged, or of a
// newer format is a *DamagedError: most likely the wrong volume is mounted, so
// nothing is initialised over it.
func openIdentity(fsys disk.FS, dir string, nodeID int32, now time.Time) (Identity, error) {
	name := path.Join(dir, identityName)
	b, err := readFile(fsys, name, maxIdentityBytes)
	switch {
	case err == nil:
		id, err := parseIdentity(b)
		if err != nil {
			return Identity{}, &DamagedError{Path: name, Err: err}
		}
		return id, nil
	case errors.Is(err, errFileTooLarge):
		return Identity{}, &DamagedError{Path: name, Err: err}
	case !errors.Is(err, fs.ErrNotExist):
		return Identity{}, err
	}
	for _, sub := range []string{"logs", "db"} {
		names, err := fsys.List(path.Join(dir, sub))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Identity{}, err
		}
		if len(names) > 0 {
			return Identity{}, &DamagedError{Path: name, Err: fmt.Errorf("missing, but %s/ is not empty", sub)}
		}
	}
	return createIdentity(fsys, dir, nodeID, now)
}

// checkOwner judges a directory by the names in it: without an identity it may
// hold what a first start left that was cut short, and what file systems and
// people hide there, but nothing else.
func checkOwner(names []string) error {
	if slices.Contains(names, identityName) {
		return nil
	}
	for _, name := range names {
		switch name {
		case lockFile, logsDir, metaDir, trashDir, quarantineDir, identityName + ".tmp", "lost+found":
		default:
			if !strings.HasPrefix(name, ".") {
				return fmt.Errorf("it holds %q but no %s: not a data directory of Leat", name, identityName)
			}
		}
	}
	return nil
}

func createIdentity(fsys disk.FS, dir string, nodeID int32, now time.Time) (Identity, error) {
	if nodeID == 0 {
		nodeID = 1
	}
	if nodeID < 0 {
		return Identity{}, fmt.Errorf("node id %d: want 1 or more", nodeID)
	}
	id := Identity{
		ClusterID: NewTopicID().String(), NodeID: nodeID, NodeUUID: NewTopicID().String(),
		CreatedAt: now.UTC().Truncate(time.Millisecond),
	}
	b, err := json.MarshalIndent(identityJSON{
		Format: identityFormat, MinReader: identityReader, ClusterID: id.ClusterID,
		NodeID: id.NodeID, NodeUUID: id.NodeUUID, CreatedAt: id.CreatedAt,
	}, "", "  ")
	if err != nil {
		return Identity{}, err
	}
	b = identitySum.seal(append(bytes.TrimSuffix(b, []byte("\n}")), ",\n"...))
	if err := replaceFile(fsys, path.Join(dir, identityName), b); err != nil {
		return Identity{}, fmt.Errorf("create identity: %w", err)
	}
	return id, nil
}

// identityError is damage of meta.json at some byte.
type identityError struct {
	pos int64
	err error
}

func (e *identityError) Error() string { return e.err.Error() }
func (e *identityError) Unwrap() error { return e.err }

var errIdentitySum = errors.New("it does not match its checksum")

// parseIdentity reads meta.json. One without a checksum is taken as it is: it
// may be of a version that wrote none.
func parseIdentity(b []byte) (Identity, error) {
	var j identityJSON
	if err := json.Unmarshal(b, &j); err != nil {
		if _, holds, pos := identitySum.verify(b); !holds {
			err = &identityError{pos: pos, err: err}
		}
		return Identity{}, err
	}
	if j.MinReader > identityReader {
		return Identity{}, fmt.Errorf("%w: it needs a reader of format %d, this version reads %d", errNewer, j.MinReader, identityReader)
	}
	if has, holds, pos := identitySum.verify(b); has && !holds {
		return Identity{}, &identityError{pos: pos, err: errIdentitySum}
	}
	if j.Format < 1 || j.MinReader < 1 {
		return Identity{}, fmt.Errorf("format %d, min_reader %d: want 1 or more", j.Format, j.MinReader)
	}
	if j.NodeID < 1 {
		return Identity{}, fmt.Errorf("node_id %d: want 1 or more", j.NodeID)
	}
	if _, err := ParseTopicID(j.ClusterID); err != nil {
		return Identity{}, fmt.Errorf("cluster_id %q: want 22 characters of base64url", j.ClusterID)
	}
	if j.NodeUUID == "" {
		return Identity{}, errors.New("node_uuid is missing")
	}
	return Identity{ClusterID: j.ClusterID, NodeID: j.NodeID, NodeUUID: j.NodeUUID, CreatedAt: j.CreatedAt}, nil
}

// replaceFile puts data at name so that a crash leaves the old content or the
// new, whole: tmp, fsync, rename, fsync of the directory.
func replaceFile(fsys disk.FS, name string, data []byte) error {
	tmp := name + ".tmp"
	f, err := fsys.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, 0)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := fsys.Rename(tmp, name); err != nil {
		return err
	}
	return fsys.SyncDir(path.Dir(name))
}

var errFileTooLarge = errors.New("file is larger than it can be")

// readFile reads all of name, at most limit bytes (then errFileTooLarge).
func readFile(fsys disk.FS, name string, limit int64) ([]byte, error) {
	f, err := fsys.OpenFile(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.NewSectionReader(f, 0, limit+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("read %s: %w", name, errFileTooLarge)
	}
	return b, nil
}
