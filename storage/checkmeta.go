package storage

import (
	"maps"
	"slices"
)

// expected compares a partition's directory with the metadata, and says whether
// to look into it: what a deleted topic left behind is of no interest.
func (c *checker) expected(id ID) bool {
	m := &c.metadata
	if !m.Known {
		return true
	}
	if _, ok := m.Logs[id]; ok {
		return true
	}
	path := c.root.logPath(id)
	switch {
	case m.Dying[id.Topic]:
		c.found(Warning, path, -1, "its topic was deleted, the next start removes it")
		c.progress(c.logBytes(id.dirName()))
		return false
	case c.root.holdsRecords(id.dirName()):
		c.found(Damage, path, -1, "the metadata does not know it, but it has records; the next start puts it into quarantine")
	default:
		c.found(Warning, path, -1, "the metadata does not know it, and it is empty; the next start removes it")
	}
	return true
}

// absent tells of partitions without a directory that the metadata or the
// checkpoint knows. Of those that only the checkpoint knows nothing is lost if
// the metadata can be read; else they may have been deleted, unless the stop
// was clean.
func (c *checker) absent(there map[ID]bool) {
	ids := make(map[ID]bool)
	for id := range c.checkpoint.records {
		ids[id] = true
	}
	for id := range c.metadata.Logs {
		ids[id] = true
	}
	for _, id := range slices.SortedFunc(maps.Keys(ids), compareIDs) {
		if there[id] {
			continue
		}
		path := c.root.logPath(id)
		r, had := c.checkpoint.records[id]
		m, exists := c.metadata.Logs[id]
		had = had && r.recoveryOffset > max(r.logStart, m.Start)
		switch {
		case exists && had:
			c.found(Damage, path, -1, "the directory of partition %d of topic %q is missing; it had %s", id.Partition, m.Topic, records(max(r.logStart, m.Start), r.recoveryOffset))
		case exists:
			c.found(Damage, path, -1, "the directory of partition %d of topic %q is missing; it is not known that it had records", id.Partition, m.Topic)
		case c.metadata.Known:
			c.found(Warning, path, -1, "the checkpoint has a partition that does not exist, the next one forgets it")
		case had && c.report.Clean:
			c.found(Damage, path, -1, "the partition's directory is missing; it had %s", records(r.logStart, r.recoveryOffset))
		default:
			c.found(Warning, path, -1, "the partition's directory is missing; the checkpoint has it with the offsets from %d to %d", r.logStart, r.recoveryOffset)
		}
	}
}
