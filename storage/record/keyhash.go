package record

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"sync"
)

// KeyHash stands for a key: 128 bits of a function that nobody outside of the
// process can compute, so that no two keys have the same by intent, and none
// have by chance. It means nothing to another process.
type KeyHash struct{ Hi, Lo uint64 }

// keyCipher has the secret of this process.
var keyCipher = sync.OnceValue(func() cipher.Block {
	var secret [16]byte
	_, _ = rand.Read(secret[:]) // never fails
	block, err := aes.NewCipher(secret[:])
	if err != nil {
		panic(err) // the key has the right size
	}
	return block
})

// keyHasher computes the hash of one key after the other: a CBC-MAC with AES
// whose first block is the key's length. It is a pseudo-random function, because
// no such message is the beginning of another, and with the processor's AES it
// costs a few nanoseconds for 16 bytes.
type keyHasher struct {
	block cipher.Block
	state [aes.BlockSize]byte
	fill  int // bytes of the block that begins
}

func (h *keyHasher) begin(size int64) {
	if h.block == nil {
		h.block = keyCipher()
	}
	h.state = [aes.BlockSize]byte{}
	binary.LittleEndian.PutUint64(h.state[:], uint64(size))
	h.block.Encrypt(h.state[:], h.state[:])
	h.fill = 0
}

func (h *keyHasher) write(p []byte) {
	for len(p) > 0 {
		for h.fill < aes.BlockSize && len(p) > 0 {
			h.state[h.fill] ^= p[0]
			h.fill++
			p = p[1:]
		}
		if h.fill == aes.BlockSize {
			h.block.Encrypt(h.state[:], h.state[:])
			h.fill = 0
		}
	}
}

func (h *keyHasher) sum() KeyHash {
	if h.fill > 0 {
		h.block.Encrypt(h.state[:], h.state[:])
	}
	return KeyHash{Hi: binary.LittleEndian.Uint64(h.state[:]), Lo: binary.LittleEndian.Uint64(h.state[8:])}
}
