package batch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// Codec is a compression of the body of a batch.
type Codec uint16

// The codecs of the batch format.
const (
	None Codec = iota
	Zstd
	LZ4
)

// ParseCodec returns the codec of a name; the empty name means none.
func ParseCodec(name string) (Codec, error) {
	switch name {
	case "", "none":
		return None, nil
	case "zstd":
		return Zstd, nil
	case "lz4":
		return LZ4, nil
	}
	return None, fmt.Errorf("unknown compression %q", name)
}

// encoder is safe for many goroutines, because only EncodeAll is used.
var encoder = sync.OnceValues(func() (*zstd.Encoder, error) {
	return zstd.NewWriter(nil, zstd.WithEncoderConcurrency(2))
})

// decoders keeps zstd decoders, which are costly to make.
var decoders = sync.Pool{New: func() any {
	// Both bounds hold for what the decoder keeps; what it writes is bounded by unfold.
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(2*maxBody),
		zstd.WithDecoderMaxWindow(maxBody), zstd.WithDecoderLowmem(true))
	if err != nil {
		return err
	}
	return decoder
}}

// compress returns the body as one frame.
func compress(codec Codec, body []byte) ([]byte, error) {
	switch codec {
	case Zstd:
		e, err := encoder()
		if err != nil {
			return nil, err
		}
		return e.EncodeAll(body, nil), nil
	case LZ4:
		var out bytes.Buffer
		w := lz4.NewWriter(&out)
		if err := w.Apply(lz4.SizeOption(uint64(len(body)))); err != nil {
			return nil, err
		}
		if _, err := w.Write(body); err != nil {
			return nil, err
		}
		if err := w.Close(); err != nil {
			return nil, err
		}
		return out.Bytes(), nil
	}
	return body, nil
}

// unfold decompresses a body that has size bytes, and never writes more.
func unfold(codec Codec, frame []byte, size int) ([]byte, error) {
	switch codec {
	case Zstd:
		got := decoders.Get()
		decoder, ok := got.(*zstd.Decoder)
		if !ok {
			return nil, got.(error)
		}
		defer decoders.Put(decoder)
		if err := decoder.Reset(bytes.NewReader(frame)); err != nil {
			return nil, err
		}
		return readExactly(decoder, size)
	case LZ4:
		return readExactly(lz4.NewReader(bytes.NewReader(frame)), size)
	}
	if len(frame) != size {
		return nil, errors.New("body has another length than declared")
	}
	return frame, nil
}

// readExactly reads size bytes and the end. It makes room as bytes come, so
// that a small frame cannot ask for much memory.
func readExactly(from io.Reader, size int) ([]byte, error) {
	var out bytes.Buffer
	n, err := io.Copy(&out, io.LimitReader(from, int64(size)+1))
	if err != nil {
		return nil, err
	}
	if n != int64(size) {
		return nil, errors.New("body has another length than declared")
	}
	return out.Bytes(), nil
}
