// Package batch encodes and decodes Tidelog's record batches.
package batch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// Sizes and bounds of the batch format.
const (
	HeaderSize       = 64
	sparseHeaderSize = 88
	MaxRecords       = 262144
	maxBody          = 64 << 20
	maxItems         = 2097152
	magic            = 0x544C
	version          = 1
)

// Bits of the attributes.
const (
	codecMask       = 7
	AttrTransaction = 1 << 3
	attrControl     = 1 << 4
	attrSparse      = 1 << 5
)

// ErrDamaged says that the bytes of a batch were changed on the way: reading
// it again may succeed.
var ErrDamaged = errors.New("the CRC of the batch is wrong")

// crcTable is that of CRC-32C.
var crcTable = crc32.MakeTable(crc32.Castagnoli)

// Header has the fields at the beginning of a batch.
type Header struct {
	BaseOffset     int64
	LeaderEpoch    uint32
	CRC            uint32
	HeaderLength   int
	BatchLength    int
	Attributes     uint16
	ProducerEpoch  uint16
	RecordCount    int
	FirstTimestamp int64
	MaxTimestamp   int64
	ProducerID     uint64
	BaseSequence   uint32
	BodyLength     int
}

// NextOffset is the offset behind the batch.
func (h Header) NextOffset() int64 { return h.BaseOffset + int64(h.RecordCount) }

// IsControl tells whether the batch has no records for readers.
func (h Header) IsControl() bool { return h.Attributes&attrControl != 0 }

// IsSparse tells whether compaction has taken records out of the batch.
func (h Header) IsSparse() bool { return h.Attributes&attrSparse != 0 }

// Codec is the compression of the body.
func (h Header) Codec() Codec { return Codec(h.Attributes & codecMask) }

// ParseHeader reads the header at the beginning of data, which may go on
// behind the batch, and checks the fields by which batches are told apart.
func ParseHeader(data []byte) (Header, error) {
	if len(data) < HeaderSize {
		return Header{}, errors.New("shorter than a header")
	}
	be := binary.BigEndian
	h := Header{
		BaseOffset:     int64(be.Uint64(data)),
		LeaderEpoch:    be.Uint32(data[8:]),
		CRC:            be.Uint32(data[12:]),
		HeaderLength:   int(data[19]),
		BatchLength:    int(be.Uint32(data[20:])),
		Attributes:     be.Uint16(data[24:]),
		ProducerEpoch:  be.Uint16(data[26:]),
		RecordCount:    int(be.Uint32(data[28:])),
		FirstTimestamp: int64(be.Uint64(data[32:])),
		MaxTimestamp:   int64(be.Uint64(data[40:])),
		ProducerID:     be.Uint64(data[48:]),
		BaseSequence:   be.Uint32(data[56:]),
		BodyLength:     int(be.Uint32(data[60:])),
	}
	switch {
	case be.Uint16(data[16:]) != magic:
		return h, errors.New("wrong magic number")
	case data[18] != version:
		return h, fmt.Errorf("unknown version %d", data[18])
	case h.HeaderLength != HeaderSize && h.HeaderLength != sparseHeaderSize:
		return h, fmt.Errorf("wrong header length %d", h.HeaderLength)
	case h.BatchLength < h.HeaderLength || h.BatchLength > len(data):
		return h, fmt.Errorf("wrong batch length %d", h.BatchLength)
	}
	return h, nil
}

// check compares the rest of the header with what the format allows.
func (h Header) check() error {
	stored := h.BatchLength - h.HeaderLength
	switch {
	case h.Codec() > LZ4:
		return fmt.Errorf("unknown codec %d", h.Codec())
	case h.Attributes&^(codecMask|AttrTransaction|attrControl|attrSparse) != 0:
		return fmt.Errorf("unknown attributes %#x", h.Attributes)
	case h.IsSparse() != (h.HeaderLength == sparseHeaderSize):
		return errors.New("sparse bit and header length do not belong together")
	case h.BodyLength > maxBody:
		return errors.New("body is too long")
	case h.Codec() == None && h.BodyLength != stored:
		return errors.New("body length does not fit the batch length")
	case h.RecordCount < 1 || h.RecordCount > MaxRecords:
		return fmt.Errorf("wrong record count %d", h.RecordCount)
	case !h.IsSparse() && h.RecordCount > h.BodyLength:
		return errors.New("more records than bytes")
	case h.FirstTimestamp < 0 || h.MaxTimestamp < h.FirstTimestamp:
		return errors.New("wrong timestamps")
	case h.BaseOffset < 0:
		return errors.New("negative base offset")
	}
	return nil
}
