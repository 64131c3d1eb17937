package tidelog

import (
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"testing"

	"github.com/fxamacker/cbor/v2"
)

// readVectors reads a file of the published test vectors.
func readVectors(t *testing.T, name string, into any) {
	t.Helper()
	folder := os.Getenv("TIDELOG_VECTORS")
	if folder == "" {
		folder = "../../../docs/vectors"
	}
	data, err := os.ReadFile(filepath.Join(folder, name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
}

func fromHex(t *testing.T, text string) []byte {
	t.Helper()
	data, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestPartitioner(t *testing.T) {
	var vectors []struct {
		Key         *string        `json:"key"`
		Murmur2     uint32         `json:"murmur2"`
		PartitionOf map[string]int `json:"partition_of"`
	}
	readVectors(t, "partitioner.json", &vectors)
	for _, v := range vectors {
		if v.Key == nil {
			continue
		}
		key := fromHex(t, *v.Key)
		if got := murmur2(key); got != v.Murmur2 {
			t.Errorf("murmur2(%x) is %d instead of %d", key, got, v.Murmur2)
		}
		for partitions, want := range v.PartitionOf {
			n, err := strconv.Atoi(partitions)
			if err != nil {
				t.Fatal(err)
			}
			if got := partitionOf(key, n); got != want {
				t.Errorf("of %d partitions %x is in %d instead of %d", n, key, got, want)
			}
		}
	}
}

func TestTokens(t *testing.T) {
	var vectors []struct {
		Token   string `json:"token"`
		TokenID string `json:"token_id"`
		Digest  string `json:"digest"`
	}
	readVectors(t, "tokens.json", &vectors)
	for _, v := range vectors {
		if id, digest := TokenID(v.Token), tokenDigest(v.Token); id != v.TokenID || digest != v.Digest {
			t.Errorf("%s has id %s and digest %s", v.Token, id, digest)
		}
	}
	if token := newToken(); len(token) != len(vectors[0].Token) || len(TokenID(token)) != 16 {
		t.Errorf("made the token %q", token)
	}
}

// vectorMessage is a message of messages.json.
type vectorMessage struct {
	Name    string         `json:"name"`
	Header  map[string]any `json:"header"`
	Payload string         `json:"payload"`
	Hex     string         `json:"hex"`
}

type messageVectors struct {
	Messages []vectorMessage `json:"messages"`
	Errors   []vectorMessage `json:"errors"`
}

func TestMessagesAreRead(t *testing.T) {
	var vectors messageVectors
	readVectors(t, "messages.json", &vectors)
	for _, v := range slices.Concat(vectors.Messages, vectors.Errors) {
		t.Run(v.Name, func(t *testing.T) {
			m, err := parseMessage(fromHex(t, v.Hex))
			if err != nil {
				t.Fatal(err)
			}
			if got := hex.EncodeToString(m.payload); got != v.Payload {
				t.Errorf("the payload is %s", got)
			}
			var header any
			if err := cbor.Unmarshal(m.header, &header); err != nil {
				t.Fatal(err)
			}
			if got := plain(header); !reflect.DeepEqual(got, plain(v.Header)) {
				t.Errorf("the header is %v instead of %v", got, v.Header)
			}
			if want, ok := v.Header["error"].(map[string]any); ok && v.Header["re"] != nil {
				if m.Error == nil || m.Error.Code != want["code"] || m.Error.UnknownOutcome != (want["unknown_outcome"] == true) {
					t.Errorf("the error is %v instead of %v", m.Error, want)
				}
			}
		})
	}
}

// plain makes values of CBOR and JSON comparable.
func plain(value any) any {
	switch v := value.(type) {
	case map[any]any:
		out := map[string]any{}
		for key, item := range v {
			out[key.(string)] = plain(item)
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for key, item := range v {
			out[key] = plain(item)
		}
		return out
	case []any:
		out := []any{}
		for _, item := range v {
			out = append(out, plain(item))
		}
		return out
	case uint64:
		return float64(v)
	case int64:
		return float64(v)
	}
	return value
}

// TestRequestsAreWritten encodes requests, and compares the fields with those
// of the vectors. Fields that are sent although they have their default are
// left alone.
func TestRequestsAreWritten(t *testing.T) {
	const topic = "5f0c9d1e2b3a4c5d6e7f8091a2b3c4d5"
	three := int64(3)
	head := func(op string, id uint64) requestHead { return requestHead{Op: op, ID: id} }
	requests := map[string]any{
		"init_producer":   &initProducerRequest{head("init_producer", 7)},
		"create_topic":    &createTopicRequest{requestHead: head("create_topic", 2), Name: "orders", Partitions: 3, ReplicationFactor: 3, Config: map[string]string{"retention_ms": "7d"}},
		"metadata":        &metadataRequest{requestHead: head("metadata", 3), Topics: []string{"orders"}},
		"list_offset":     &listOffsetRequest{head("list_offset", 4), topic, 0, "latest", -1},
		"subscribe":       &subscribeRequest{requestHead: head("subscribe", 5), Sub: 7, TopicID: topic, Offset: 2001, Credit: 65536, LastEpoch: 3},
		"credit":          &creditMessage{"credit", 7, 65536},
		"use_producer":    &useProducerRequest{head("use_producer", 8), 4711, 0, "000000000000000000000000000000000000000000000000000000000000000000000000"},
		"join_group":      &joinGroupRequest{requestHead: head("join_group", 9), Group: "billing", Member: "b3f0", Topics: []string{"orders"}},
		"group_heartbeat": &heartbeatRequest{requestHead: head("group_heartbeat", 10), Group: "billing", Member: "b3f0", Generation: 4, Owned: []topicShare{{TopicID: topic, Partitions: []int{0, 2}}}},
		"commit_offsets":  &commitOffsetsRequest{requestHead: head("commit_offsets", 11), Group: "billing", Member: "b3f0", Generation: 6, Positions: []groupPosition{{topic, 2, 310, &three}}},
		"fetch_offsets":   &fetchOffsetsRequest{head("fetch_offsets", 12), "billing", []topicShare{{TopicID: topic, Partitions: []int{0, 2}}}},
	}
	var vectors messageVectors
	readVectors(t, "messages.json", &vectors)
	seen := 0
	for _, v := range vectors.Messages {
		r, ok := requests[v.Name]
		if !ok {
			continue
		}
		seen++
		t.Run(v.Name, func(t *testing.T) {
			data, err := encodeMessage(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			var header any
			if err := cbor.Unmarshal(data, &header); err != nil {
				t.Fatal(err)
			}
			got, want := plain(header).(map[string]any), plain(v.Header).(map[string]any)
			maps.DeleteFunc(got, func(key string, _ any) bool { _, wanted := want[key]; return !wanted })
			if !reflect.DeepEqual(got, want) {
				t.Errorf("encoded as %v instead of %v", got, want)
			}
		})
	}
	if seen != len(requests) {
		t.Errorf("only %d of %d requests have vectors", seen, len(requests))
	}
}

func TestErrorCodes(t *testing.T) {
	var published struct {
		Codes map[string]struct {
			Retriable bool `json:"retriable"`
		} `json:"codes"`
	}
	readVectors(t, "../errors.json", &published)
	for code, about := range published.Codes {
		if got := (&Error{Code: code}).Retriable(); got != about.Retriable {
			t.Errorf("%s is retriable: %v", code, got)
		}
	}
	if (&Error{Code: "NEW_CODE"}).Retriable() {
		t.Error("a code that is not known is retriable")
	}
}
