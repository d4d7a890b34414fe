package record

import "encoding/binary"

// PartitionForKey is the partition in [0, partitions) that the Java client's
// default partitioner gives to a record with this key, so that a key has one
// partition through every door. partitions must be positive.
func PartitionForKey(key []byte, partitions int32) int32 {
	return int32(murmur2(key)&0x7fffffff) % partitions
}

// murmur2 is Austin Appleby's 32-bit MurmurHash2 with the seed of Kafka's
// org.apache.kafka.common.utils.Utils.
func murmur2(p []byte) uint32 {
	const (
		seed = 0x9747b28c
		m    = 0x5bd1e995
		r    = 24
	)
	h := seed ^ uint32(len(p))
	for len(p) >= 4 {
		k := binary.LittleEndian.Uint32(p)
		k *= m
		k ^= k >> r
		k *= m
		h = h*m ^ k
		p = p[4:]
	}
	switch len(p) {
	case 3:
		h ^= uint32(p[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(p[1]) << 8
		fallthrough
	case 1:
		h = (h ^ uint32(p[0])) * m
	}
	h ^= h >> 13
	h *= m
	return h ^ h>>15
}
