package record

import (
	"errors"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// compressor builds a batch from records that come piece by piece. Its encoders
// and buffers are used again.
type compressor struct {
	appender
	codec  Codec
	stream io.WriteCloser // nil for None and Snappy
	gzip   *gzip.Writer
	lz4    *lz4.Writer
	zstd   *zstd.Encoder
	block  []byte // Snappy's next
	head   []byte // of the record that is being written
	err    error
}

// begin starts a batch with these bytes in front of the records.
func (c *compressor) begin(header []byte, codec Codec) {
	c.codec, c.stream, c.err = codec, nil, nil
	c.p = append(c.p[:0], header...)
	c.block = c.block[:0]
	switch codec {
	case Gzip:
		if c.gzip == nil {
			c.gzip = gzip.NewWriter(nil)
		}
		c.gzip.Reset(&c.appender)
		c.stream = c.gzip
	case Snappy:
		c.p = appendXerial(c.p, nil)
	case LZ4:
		if c.lz4 == nil {
			c.lz4 = newLZ4Writer()
		}
		c.lz4.Reset(&c.appender)
		c.stream = c.lz4
	case Zstd:
		if c.zstd == nil {
			c.zstd = newZstdWriter()
		}
		c.zstd.Reset(&c.appender)
		c.stream = c.zstd
	default:
	}
}

func (c *compressor) write(p []byte) {
	switch {
	case c.stream != nil:
		_, err := c.stream.Write(p)
		c.err = errors.Join(c.err, err)
	case c.codec == Snappy:
		for len(p) > 0 {
			n := min(len(p), xerialBlock-len(c.block))
			c.block = append(c.block, p[:n]...)
			p = p[n:]
			if len(c.block) == xerialBlock {
				c.flush()
			}
		}
	default:
		c.p = append(c.p, p...)
	}
}

// flush ends a chunk of the xerial framing.
func (c *compressor) flush() {
	c.p = appendXerialChunk(c.p, c.block)
	c.block = c.block[:0]
}

// end is the whole batch, valid until the next one is begun.
func (c *compressor) end() (Batch, *Error) {
	if len(c.block) > 0 {
		c.flush()
	}
	if c.stream != nil {
		c.err = errors.Join(c.err, c.stream.Close())
	}
	if c.err != nil {
		return nil, fault(ErrInvalid, "%s: %v", c.codec, c.err)
	}
	return c.p, nil
}
