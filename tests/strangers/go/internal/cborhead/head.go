// Package cborhead reads and writes the heads of CBOR data items (RFC 8949).
//
// It knows only what Tidelog's record batches use: definite lengths, no tags
// and no floats.
package cborhead

import (
	"encoding/binary"
	"errors"
)

// The major types that appear in messages and batches.
const (
	Uint  = 0
	Nint  = 1
	Bytes = 2
	Text  = 3
	Array = 4
	Map   = 5
	Tag   = 6
	Other = 7
)

// Null is the argument of a head of major type Other that means null.
const Null = 22

// ErrShort says that the input ends within an item.
var ErrShort = errors.New("cbor: the input ends within an item")

// ErrUnsupported says that the input has an indefinite length or a reserved head.
var ErrUnsupported = errors.New("cbor: indefinite length or reserved head")

// Read returns the major type and the argument of the head at the beginning of
// data, and how many bytes the head has. Floats and other simple values come
// as Other, with the bits as argument.
func Read(data []byte) (major int, arg uint64, size int, err error) {
	if len(data) == 0 {
		return 0, 0, 0, ErrShort
	}
	major, low := int(data[0]>>5), data[0]&31
	if low < 24 {
		return major, uint64(low), 1, nil
	}
	if low > 27 {
		return 0, 0, 0, ErrUnsupported
	}
	width := 1 << (low - 24)
	if len(data) < 1+width {
		return 0, 0, 0, ErrShort
	}
	switch rest := data[1:]; width {
	case 1:
		arg = uint64(rest[0])
	case 2:
		arg = uint64(binary.BigEndian.Uint16(rest))
	case 4:
		arg = uint64(binary.BigEndian.Uint32(rest))
	default:
		arg = binary.BigEndian.Uint64(rest)
	}
	return major, arg, 1 + width, nil
}

// Append writes a head in its shortest form.
func Append(to []byte, major int, arg uint64) []byte {
	top := byte(major << 5)
	switch {
	case arg < 24:
		return append(to, top|byte(arg))
	case arg < 1<<8:
		return append(to, top|24, byte(arg))
	case arg < 1<<16:
		return binary.BigEndian.AppendUint16(append(to, top|25), uint16(arg))
	case arg < 1<<32:
		return binary.BigEndian.AppendUint32(append(to, top|26), uint32(arg))
	default:
		return binary.BigEndian.AppendUint64(append(to, top|27), arg)
	}
}
