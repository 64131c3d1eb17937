package batch

import (
	"encoding/binary"
	"hash/crc32"

	"example.org/tidelog/internal/cborhead"
)

// Identity is what an idempotent producer writes into its batches. The zero
// value is that of one that is not idempotent.
type Identity struct {
	ProducerID    uint64
	ProducerEpoch uint16
	BaseSequence  uint32
}

// Encode makes a batch of records, of which there is at least one. A body that
// does not get shorter by the codec stays as it is.
func Encode(records []Record, id Identity, codec Codec) ([]byte, error) {
	body := encodeBody(records)
	stored, err := compress(codec, body)
	if err != nil {
		return nil, err
	}
	if len(stored) >= len(body) {
		stored, codec = body, None
	}
	first, latest := records[0].TimestampMs, records[0].TimestampMs
	for _, r := range records {
		latest = max(latest, r.TimestampMs)
	}
	out := make([]byte, HeaderSize, HeaderSize+len(stored))
	be := binary.BigEndian
	be.PutUint16(out[16:], magic)
	out[18] = version
	out[19] = HeaderSize
	be.PutUint32(out[20:], uint32(HeaderSize+len(stored)))
	be.PutUint16(out[24:], uint16(codec))
	be.PutUint16(out[26:], id.ProducerEpoch)
	be.PutUint32(out[28:], uint32(len(records)))
	be.PutUint64(out[32:], uint64(first))
	be.PutUint64(out[40:], uint64(latest))
	be.PutUint64(out[48:], id.ProducerID)
	be.PutUint32(out[56:], id.BaseSequence)
	be.PutUint32(out[60:], uint32(len(body)))
	out = append(out, stored...)
	be.PutUint32(out[12:], crc32.Checksum(out[16:], crcTable))
	return out, nil
}

// encodeBody writes the columns that say something.
func encodeBody(records []Record) []byte {
	var keys, times, headers bool
	size := 64
	for _, r := range records {
		keys = keys || r.Key != nil
		times = times || r.TimestampMs != records[0].TimestampMs
		headers = headers || len(r.Headers) > 0
		size += Size(r)
	}
	count := uint64(1)
	for _, has := range []bool{keys, times, headers} {
		if has {
			count++
		}
	}
	out := cborhead.Append(make([]byte, 0, size), cborhead.Map, count)
	column := func(name string) {
		out = appendText(out, name)
		out = cborhead.Append(out, cborhead.Array, uint64(len(records)))
	}
	column("v")
	for _, r := range records {
		out = appendBytes(out, r.Value)
	}
	if keys {
		column("k")
		for _, r := range records {
			out = appendBytes(out, r.Key)
		}
	}
	if times {
		column("t")
		for _, r := range records {
			out = appendInt(out, r.TimestampMs-records[0].TimestampMs)
		}
	}
	if headers {
		column("h")
		for _, r := range records {
			out = cborhead.Append(out, cborhead.Array, uint64(len(r.Headers)))
			for _, pair := range r.Headers {
				out = cborhead.Append(out, cborhead.Array, 2)
				out = appendText(out, pair.Name)
				value := pair.Value
				if value == nil {
					value = []byte{}
				}
				out = appendBytes(out, value)
			}
		}
	}
	return out
}

// Size is an upper bound of what the record adds to an uncompressed body.
func Size(r Record) int {
	size := 5 + len(r.Value) + 5 + len(r.Key) + 9 + 5
	for _, pair := range r.Headers {
		size += 11 + len(pair.Name) + len(pair.Value)
	}
	return size
}

// Items is how many CBOR items the record adds to a body at most.
func Items(r Record) int { return 4 + 3*len(r.Headers) }

func appendText(out []byte, text string) []byte {
	return append(cborhead.Append(out, cborhead.Text, uint64(len(text))), text...)
}

// appendBytes writes a byte string, or null for nil.
func appendBytes(out, data []byte) []byte {
	if data == nil {
		return cborhead.Append(out, cborhead.Other, cborhead.Null)
	}
	return append(cborhead.Append(out, cborhead.Bytes, uint64(len(data))), data...)
}

func appendInt(out []byte, n int64) []byte {
	if n < 0 {
		return cborhead.Append(out, cborhead.Nint, uint64(-1-n))
	}
	return cborhead.Append(out, cborhead.Uint, uint64(n))
}
