package batch

import (
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"example.org/tidelog/internal/cborhead"
)

const maxDepth = 8

// reader reads the CBOR items of a body.
type reader struct {
	data []byte
	left int // items that may still come
}

func (r *reader) head() (major int, arg uint64, err error) {
	if r.left--; r.left < 0 {
		return 0, 0, errors.New("too many items")
	}
	major, arg, size, err := cborhead.Read(r.data)
	if err != nil {
		return 0, 0, err
	}
	r.data = r.data[size:]
	return major, arg, nil
}

// expect reads a head of that major type.
func (r *reader) expect(want int) (uint64, error) {
	major, arg, err := r.head()
	if err == nil && major != want {
		err = fmt.Errorf("item of type %d instead of %d", major, want)
	}
	return arg, err
}

// length reads the head of an array or map. Each item has a byte at least.
func (r *reader) length(major int) (int, error) {
	n, err := r.expect(major)
	if err == nil && n > uint64(len(r.data)) {
		err = cborhead.ErrShort
	}
	return int(n), err
}

func (r *reader) take(n uint64) ([]byte, error) {
	if n > uint64(len(r.data)) {
		return nil, cborhead.ErrShort
	}
	taken := r.data[:n:n]
	r.data = r.data[n:]
	return taken, nil
}

func (r *reader) text() (string, error) {
	n, err := r.expect(cborhead.Text)
	if err != nil {
		return "", err
	}
	data, err := r.take(n)
	if err == nil && !utf8.Valid(data) {
		err = errors.New("text is not UTF-8")
	}
	return string(data), err
}

func (r *reader) bytes() ([]byte, error) {
	n, err := r.expect(cborhead.Bytes)
	if err != nil {
		return nil, err
	}
	return r.take(n)
}

func (r *reader) bytesOrNull() ([]byte, error) {
	if len(r.data) > 0 && r.data[0] == cborhead.Other<<5|cborhead.Null {
		_, _, err := r.head()
		return nil, err
	}
	return r.bytes()
}

func (r *reader) integer() (int64, error) {
	major, arg, err := r.head()
	switch {
	case err != nil:
		return 0, err
	case arg > math.MaxInt64:
		return 0, errors.New("integer is out of range")
	case major == cborhead.Uint:
		return int64(arg), nil
	case major == cborhead.Nint:
		return -1 - int64(arg), nil
	}
	return 0, errors.New("no integer")
}

func (r *reader) pairs() ([]Pair, error) {
	n, err := r.length(cborhead.Array)
	if err != nil || n == 0 {
		return nil, err
	}
	var pairs []Pair
	for range n {
		if two, err := r.length(cborhead.Array); err != nil || two != 2 {
			return nil, errors.Join(errors.New("no pair"), err)
		}
		var pair Pair
		if pair.Name, err = r.text(); err != nil {
			return nil, err
		}
		if pair.Value, err = r.bytes(); err != nil {
			return nil, err
		}
		pairs = append(pairs, pair)
	}
	return pairs, nil
}

// skip passes over an item, which is at that depth.
func (r *reader) skip(depth int) error {
	if depth > maxDepth {
		return errors.New("nested too deep")
	}
	major, arg, err := r.head()
	if err != nil {
		return err
	}
	switch major {
	case cborhead.Bytes, cborhead.Text:
		_, err = r.take(arg)
	case cborhead.Array, cborhead.Map:
		if arg > uint64(len(r.data)) {
			return cborhead.ErrShort
		}
		if major == cborhead.Map {
			arg *= 2
		}
		for range arg {
			if err := r.skip(depth + 1); err != nil {
				return err
			}
		}
	case cborhead.Tag:
		err = errors.New("tag")
	}
	return err
}

// readArray reads an array of most items at most.
func readArray[T any](r *reader, most int, item func(*reader) (T, error)) ([]T, error) {
	n, err := r.length(cborhead.Array)
	if err != nil {
		return nil, err
	}
	if n > most {
		return nil, errors.New("more items than records")
	}
	items := make([]T, n)
	for i := range items {
		if items[i], err = item(r); err != nil {
			return nil, err
		}
	}
	return items, nil
}
