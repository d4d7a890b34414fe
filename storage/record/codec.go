package record

import (
	"fmt"
	"strconv"
)

// Codec is how the records of a batch are compressed. The numbers are those
// of the attributes.
type Codec uint8

// The codecs of format v2. Zstd is KIP-110.
const (
	None Codec = iota
	Gzip
	Snappy
	LZ4
	Zstd
	codecs // how many there are
)

var codecNames = [codecs]string{"none", "gzip", "snappy", "lz4", "zstd"}

// String is the codec's name as compression.type knows it.
func (c Codec) String() string {
	if c < codecs {
		return codecNames[c]
	}
	return "codec " + strconv.Itoa(int(c))
}

// ParseCodec is the reverse of String; ErrUnsupportedCodec for other names.
func ParseCodec(name string) (Codec, error) {
	for i, n := range codecNames {
		if n == name {
			return Codec(i), nil
		}
	}
	return None, fmt.Errorf("%w: %q is none of none, gzip, snappy, lz4, zstd", ErrUnsupportedCodec, name)
}
