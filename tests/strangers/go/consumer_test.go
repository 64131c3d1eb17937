package tidelog

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"example.org/tidelog/internal/batch"
)

// appended is a batch as a leader has written it, with a record for each value.
func appended(t *testing.T, offset int64, epoch uint32, values ...string) []byte {
	t.Helper()
	var records []batch.Record
	for _, v := range values {
		records = append(records, batch.Record{Value: []byte(v)})
	}
	data, err := batch.Encode(records, batch.Identity{}, batch.None)
	if err != nil {
		t.Fatal(err)
	}
	binary.BigEndian.PutUint64(data, uint64(offset))
	binary.BigEndian.PutUint32(data[8:], epoch)
	return data
}

// read reads until there is an error or nothing comes any more.
func read(t *testing.T, deliveries ...[]byte) (values string, err error) {
	t.Helper()
	g := newFakeGateway(t)
	once := false
	g.onSubscribe = func(s *fakeSession, r map[string]any) {
		if once {
			return
		}
		once = true
		for _, payload := range deliveries {
			s.send(map[string]any{"op": "delivery", "sub": r["sub"], "high_watermark": 100}, payload)
		}
	}
	c, err := g.open().NewConsumer(context.Background(), "t", Range{Start: AtOffset(10)}, ConsumerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	for {
		records, err := c.Next(ctx, 1)
		if errors.Is(err, context.DeadlineExceeded) {
			return values, nil
		}
		if err != nil {
			return values, err
		}
		values += string(records[0].Value)
	}
}

func TestDeliveries(t *testing.T) {
	damaged := appended(t, 12, 1, "c")
	damaged[len(damaged)-1] ^= 1
	tests := []struct {
		name       string
		deliveries [][]byte
		want       string
		fails      bool
	}{
		{"in order", [][]byte{appended(t, 10, 1, "a", "b"), appended(t, 12, 2, "c")}, "abc", false},
		{"below the position", [][]byte{appended(t, 8, 1, "x", "y", "a"), appended(t, 11, 1, "b")}, "ab", false},
		{"twice", [][]byte{appended(t, 10, 1, "a"), appended(t, 10, 1, "a"), appended(t, 11, 1, "b")}, "ab", false},
		{"a gap", [][]byte{appended(t, 10, 1, "a"), appended(t, 12, 1, "c")}, "a", true},
		{"an older epoch", [][]byte{appended(t, 10, 2, "a"), appended(t, 11, 1, "b")}, "a", true},
		{"damaged", [][]byte{append(appended(t, 10, 1, "a", "b"), damaged...)}, "ab", true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			values, err := read(t, test.deliveries...)
			if values != test.want || (err != nil) != test.fails {
				t.Errorf("read %q, %v", values, err)
			}
		})
	}
}
