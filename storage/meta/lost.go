package meta

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"leat/storage/disk"
)

// Pebble's marker names the manifest, and with it all tables and WALs: without
// it Pebble takes a directory for an empty one and makes the store anew.
const manifestMarker = "marker.manifest."

// firstManifest is the one file that the making of a store can leave without
// the marker when it is cut short: the marker is durable before anything else
// is made.
const firstManifest = "MANIFEST-000001"

func isMarker(name string) bool { return strings.HasPrefix(name, "marker.") }

// isStoreFile says whether there is a file of that name only in a store that
// has, or had, its marker.
func isStoreFile(name string) bool {
	switch {
	case strings.HasPrefix(name, "MANIFEST-"):
		return name != firstManifest
	case isMarker(name), strings.HasPrefix(name, "OPTIONS-"), name == "CURRENT":
		return true
	default:
		return strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".log") || strings.HasSuffix(name, ".blob")
	}
}

// find says whether names, those in dir, are those of a store, or of none. What
// is left of a store that cannot be found any more is a *CorruptError.
func find(dir string, names []string) (bool, error) {
	if slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, manifestMarker) }) {
		return true, nil
	}
	if i := slices.IndexFunc(names, isStoreFile); i >= 0 {
		return false, &CorruptError{Path: dir, Err: fmt.Errorf("%s* is missing, but there is %s", manifestMarker, names[i])}
	}
	return false, nil
}

// Exists says whether there is a store in dir that Open would not make anew.
// What is left of one that cannot be found any more is a *CorruptError.
func Exists(fsys disk.FS, dir string) (bool, error) {
	names, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find metadata store: %w", err)
	}
	return find(dir, names)
}
