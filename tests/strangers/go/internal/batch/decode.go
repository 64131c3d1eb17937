package batch

import (
	"errors"
	"fmt"
	"hash/crc32"

	"example.org/tidelog/internal/cborhead"
)

// Pair is a header of a record.
type Pair struct {
	Name  string
	Value []byte
}

// Record is a record of a batch. A nil key or value is null.
type Record struct {
	Offset      int64
	TimestampMs int64
	Key, Value  []byte
	Headers     []Pair
}

// Decode checks the batch, which is all of data, and returns its records.
// Their bytes may share memory with data.
func Decode(data []byte) (Header, []Record, error) {
	h, err := ParseHeader(data)
	if err != nil {
		return h, nil, err
	}
	if h.BatchLength != len(data) {
		return h, nil, errors.New("bytes behind the batch")
	}
	if crc32.Checksum(data[16:], crcTable) != h.CRC {
		return h, nil, ErrDamaged
	}
	if err := h.check(); err != nil {
		return h, nil, err
	}
	if h.IsControl() {
		return h, nil, nil
	}
	body, err := unfold(h.Codec(), data[h.HeaderLength:], h.BodyLength)
	if err != nil {
		return h, nil, fmt.Errorf("body: %w", err)
	}
	columns, err := readBody(body, h)
	if err != nil {
		return h, nil, fmt.Errorf("body: %w", err)
	}
	records, err := columns.records(h)
	return h, records, err
}

// columns are the arrays of a body; a nil one is absent.
type columns struct {
	values, keys [][]byte
	times        []int64
	headers      [][]Pair
	places       []int64
}

// readBody reads the map with the columns.
func readBody(body []byte, h Header) (*columns, error) {
	r := &reader{data: body, left: maxItems}
	if h.IsSparse() {
		r.left += h.RecordCount
	}
	pairs, err := r.length(cborhead.Map)
	if err != nil {
		return nil, err
	}
	c := &columns{}
	seen := map[string]bool{}
	for range pairs {
		name, err := r.text()
		if err != nil {
			return nil, err
		}
		if seen[name] {
			return nil, fmt.Errorf("key %q comes twice", name)
		}
		seen[name] = true
		switch {
		case name == "v":
			c.values, err = readArray(r, h.RecordCount, (*reader).bytesOrNull)
		case name == "k":
			c.keys, err = readArray(r, h.RecordCount, (*reader).bytesOrNull)
		case name == "t":
			c.times, err = readArray(r, h.RecordCount, (*reader).integer)
		case name == "h":
			c.headers, err = readArray(r, h.RecordCount, (*reader).pairs)
		case name == "o" && h.IsSparse():
			c.places, err = readArray(r, h.RecordCount, (*reader).integer)
		default:
			err = r.skip(2)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if len(r.data) > 0 {
		return nil, errors.New("bytes behind the map")
	}
	return c, nil
}

// records joins the columns.
func (c *columns) records(h Header) ([]Record, error) {
	count := h.RecordCount
	if h.IsSparse() {
		if c.places == nil {
			return nil, errors.New("body: sparse batch without o")
		}
		count = len(c.places)
	}
	if c.values == nil || len(c.values) != count ||
		c.keys != nil && len(c.keys) != count ||
		c.times != nil && len(c.times) != count ||
		c.headers != nil && len(c.headers) != count {
		return nil, errors.New("body: columns of the wrong length")
	}
	records := make([]Record, count)
	latest, last := h.FirstTimestamp, int64(-1)
	for i := range records {
		place := int64(i)
		if h.IsSparse() {
			place = c.places[i]
			if place <= last || place >= int64(h.RecordCount) {
				return nil, errors.New("body: o does not rise within the batch")
			}
			last = place
		}
		r := Record{Offset: h.BaseOffset + place, TimestampMs: h.FirstTimestamp, Value: c.values[i]}
		if c.times != nil {
			r.TimestampMs += c.times[i]
		}
		if c.keys != nil {
			r.Key = c.keys[i]
		}
		if c.headers != nil {
			r.Headers = c.headers[i]
		}
		latest = max(latest, r.TimestampMs)
		records[i] = r
	}
	if latest > h.MaxTimestamp || !h.IsSparse() && (latest != h.MaxTimestamp || records[0].TimestampMs != h.FirstTimestamp) {
		return nil, errors.New("body: timestamps are not those of the header")
	}
	return records, nil
}
