package batch

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// vectorFolder is the folder with the published test vectors.
func vectorFolder() string {
	if path := os.Getenv("TIDELOG_VECTORS"); path != "" {
		return path
	}
	return "../../../../../docs/vectors"
}

type hexBytes []byte

func (h *hexBytes) UnmarshalJSON(text []byte) error {
	var s *string
	if err := json.Unmarshal(text, &s); err != nil || s == nil {
		return err
	}
	data, err := hex.DecodeString(*s)
	*h = data
	return err
}

type vectorRecord struct {
	Offset      int64    `json:"offset"`
	TimestampMs int64    `json:"timestamp_ms"`
	Key         hexBytes `json:"key"`
	Value       hexBytes `json:"value"`
	Headers     [][2]any `json:"headers"`
}

type vectorFile struct {
	Good []struct {
		Name    string           `json:"name"`
		Hex     hexBytes         `json:"hex"`
		Header  map[string]int64 `json:"header"`
		Records []vectorRecord   `json:"records"`
	} `json:"good"`
	Bad []struct {
		Name string   `json:"name"`
		Hex  hexBytes `json:"hex"`
	} `json:"bad"`
}

func load(t *testing.T) (file vectorFile) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(vectorFolder(), "batches.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestGoodBatches(t *testing.T) {
	for _, v := range load(t).Good {
		t.Run(v.Name, func(t *testing.T) {
			h, records, err := Decode(v.Hex)
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]int64{
				"base_offset": h.BaseOffset, "leader_epoch": int64(h.LeaderEpoch), "crc32c": int64(h.CRC),
				"magic": magic, "version": version, "header_length": int64(h.HeaderLength),
				"batch_length": int64(h.BatchLength), "attributes": int64(h.Attributes),
				"producer_epoch": int64(h.ProducerEpoch), "record_count": int64(h.RecordCount),
				"first_timestamp": h.FirstTimestamp, "max_timestamp": h.MaxTimestamp,
				"producer_id": int64(h.ProducerID), "base_sequence": int64(h.BaseSequence),
				"body_length": int64(h.BodyLength),
			}
			for name, want := range v.Header {
				if got[name] != want {
					t.Errorf("%s is %d instead of %d", name, got[name], want)
				}
			}
			compare(t, records, v.Records)
		})
	}
}

func compare(t *testing.T, got []Record, want []vectorRecord) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d records instead of %d", len(got), len(want))
	}
	for i, w := range want {
		g := got[i]
		if g.Offset != w.Offset || g.TimestampMs != w.TimestampMs || !same(g.Key, w.Key) || !same(g.Value, w.Value) ||
			len(g.Headers) != len(w.Headers) {
			t.Errorf("record %d is %+v instead of %+v", i, g, w)
			continue
		}
		for j, pair := range w.Headers {
			if g.Headers[j].Name != pair[0] || hex.EncodeToString(g.Headers[j].Value) != pair[1] {
				t.Errorf("header %d of record %d is %v instead of %v", j, i, g.Headers[j], pair)
			}
		}
	}
}

// same compares bytes, of which nil is another value than none.
func same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

func TestBadBatches(t *testing.T) {
	for _, v := range load(t).Bad {
		t.Run(v.Name, func(t *testing.T) {
			if _, records, err := Decode(v.Hex); err == nil {
				t.Errorf("accepted: %v", records)
			}
		})
	}
}

func TestEncode(t *testing.T) {
	for _, v := range load(t).Good {
		if v.Name != "producer" && v.Name != "idempotent-producer" {
			continue
		}
		t.Run(v.Name, func(t *testing.T) {
			h, records, err := Decode(v.Hex)
			if err != nil {
				t.Fatal(err)
			}
			out, err := Encode(records, Identity{h.ProducerID, h.ProducerEpoch, h.BaseSequence}, None)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(out, v.Hex) {
				t.Errorf("encoded as\n%x instead of\n%x", out, []byte(v.Hex))
			}
		})
	}
}

func TestCodecs(t *testing.T) {
	records := []Record{{Value: bytes.Repeat([]byte("tide"), 5000), TimestampMs: 7}, {TimestampMs: 5, Key: []byte{}, Value: []byte{}}}
	for _, codec := range []Codec{None, Zstd, LZ4} {
		out, err := Encode(records, Identity{}, codec)
		if err != nil {
			t.Fatal(err)
		}
		h, back, err := Decode(out)
		if err != nil {
			t.Fatal(err)
		}
		if h.Codec() != codec || len(back) != 2 || !same(back[0].Value, records[0].Value) || !same(back[1].Key, records[1].Key) {
			t.Errorf("codec %d: %+v", codec, h)
		}
	}
}

func TestBodyThatUnfoldsToMore(t *testing.T) {
	for _, codec := range []Codec{Zstd, LZ4} {
		frame, err := compress(codec, make([]byte, 1<<20))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := unfold(codec, frame, 1000); err == nil {
			t.Errorf("codec %d: accepted", codec)
		}
	}
}
