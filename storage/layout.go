package storage

import (
	"fmt"
	"path/filepath"
	"strconv"
	"time"
)

// Names in a data directory; the drawing is in the package comment.
const (
	lockFile      = "LOCK"
	metaDir       = "db"
	logsDir       = "logs"
	trashDir      = "trash"
	quarantineDir = "quarantine"
	ballastFile   = "BALLAST"

	partitionFile = "partition"
	logSuffix     = ".log"
	indexSuffix   = ".index"
	timeSuffix    = ".timeindex"

	baseDigits = 20
	genDigits  = 6
)

// segmentName is the stem of a segment's file names.
func segmentName(base int64, gen uint32) string {
	return fmt.Sprintf("%0*d-%0*x", baseDigits, base, genDigits, gen)
}

// parseSegmentName splits a file name into its segment and its suffix.
func parseSegmentName(name string) (base int64, gen uint32, suffix string, ok bool) {
	const stem = baseDigits + 1 + genDigits
	if len(name) <= stem || name[baseDigits] != '-' {
		return 0, 0, "", false
	}
	suffix = name[stem:]
	base, err := strconv.ParseInt(name[:baseDigits], 10, 64)
	if err != nil || base < 0 {
		return 0, 0, "", false
	}
	g, err := strconv.ParseUint(name[baseDigits+1:stem], 16, 32)
	if err != nil || segmentName(base, uint32(g)) != name[:stem] {
		return 0, 0, "", false
	}
	switch suffix {
	case logSuffix, indexSuffix, timeSuffix:
		return base, uint32(g), suffix, true
	default:
		return 0, 0, "", false
	}
}

// asideName is a name under trash/ or quarantine/ that was not used before.
func asideName(name string, now time.Time) string {
	return name + "." + strconv.FormatInt(now.UnixNano(), 10)
}

func (d *Dir) path(names ...string) string {
	return filepath.Join(append([]string{d.opts.Path}, names...)...)
}
