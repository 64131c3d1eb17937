package tidelog

import (
	"errors"

	"example.org/tidelog/internal/cborhead"
	"github.com/fxamacker/cbor/v2"
)

// decoding is strict where the protocol is; keys that are not known are
// ignored.
var decoding = func() cbor.DecMode {
	mode, err := cbor.DecOptions{
		DupMapKey:         cbor.DupMapKeyEnforcedAPF,
		IndefLength:       cbor.IndefLengthForbidden,
		TagsMd:            cbor.TagsForbidden,
		MaxNestedLevels:   16,
		FieldNameMatching: cbor.FieldNameMatchingCaseSensitive,
	}.DecMode()
	if err != nil {
		panic(err)
	}
	return mode
}()

// message is what came over a connection.
type message struct {
	incoming
	header  []byte // CBOR
	payload []byte
}

// parseMessage splits a WebSocket message into header and payload.
func parseMessage(data []byte) (message, error) {
	var m message
	rest, err := decoding.UnmarshalFirst(data, &m.incoming)
	if err != nil {
		return m, err
	}
	m.header = data[:len(data)-len(rest)]
	if major, _, _, err := cborhead.Read(data); err != nil || major != cborhead.Map {
		return m, errors.New("the header is no map")
	}
	if (m.Re == nil) == (m.Op == nil) {
		return m, errors.New("neither an answer nor a notice")
	}
	if len(rest) == 0 {
		return m, nil
	}
	major, size, head, err := cborhead.Read(rest)
	if err != nil || major != cborhead.Bytes || uint64(len(rest)-head) != size {
		return m, errors.New("the payload is no byte string")
	}
	m.payload = rest[head:]
	return m, nil
}

// answer decodes the fields of an answer.
func (m message) answer(into any) error {
	if into == nil {
		return nil
	}
	return decoding.Unmarshal(m.header, into)
}

// encodeMessage makes a WebSocket message.
func encodeMessage(header any, payload [][]byte) ([]byte, error) {
	out, err := cbor.Marshal(header)
	if err != nil || len(payload) == 0 {
		return out, err
	}
	size := 0
	for _, piece := range payload {
		size += len(piece)
	}
	out = cborhead.Append(out, cborhead.Bytes, uint64(size))
	for _, piece := range payload {
		out = append(out, piece...)
	}
	return out, nil
}
