package tidelog

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/tidelog/internal/batch"
	"github.com/coder/websocket"
	"github.com/fxamacker/cbor/v2"
)

// fakeGateway answers a client as the test says.
type fakeGateway struct {
	t   *testing.T
	url string
	// onBatch says what becomes of a batch: an ack, or nil for none now.
	onBatch func(g *fakeGateway, s *fakeSession, b fakeBatch) *fakeAck
	// onSubscribe is called after the answer.
	onSubscribe func(s *fakeSession, r map[string]any)

	mu       sync.Mutex
	batches  []fakeBatch // as they came
	ops      []string
	nextID   uint64
	sessions []*fakeSession
}

type fakeBatch struct {
	part   uint64
	data   string
	header batch.Header
}

type fakeAck struct {
	ID     uint64         `cbor:"id"`
	Offset int64          `cbor:"offset"`
	Error  map[string]any `cbor:"error,omitempty"`
}

// fakeSession is a connection of the fake gateway.
type fakeSession struct{ ws *websocket.Conn }

func (s *fakeSession) send(header any, payload ...[]byte) {
	if data, err := encodeMessage(header, payload); err == nil {
		_ = s.ws.Write(context.Background(), websocket.MessageBinary, data)
	}
}

func (s *fakeSession) ack(acks ...*fakeAck) {
	s.send(map[string]any{"op": "produced", "acks": acks})
}

func refusal(id uint64, code string, unknown bool) *fakeAck {
	return &fakeAck{ID: id, Offset: -1, Error: map[string]any{"code": code, "unknown_outcome": unknown}}
}

func newFakeGateway(t *testing.T) *fakeGateway {
	g := &fakeGateway{t: t, nextID: 100}
	server := httptest.NewServer(http.HandlerFunc(g.serve))
	t.Cleanup(server.Close)
	g.url = "ws" + strings.TrimPrefix(server.URL, "http")
	return g
}

// open connects a client.
func (g *fakeGateway) open() *Log {
	g.t.Helper()
	l, err := Connect(context.Background(), Options{URLs: []string{g.url}})
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(l.Close)
	return l
}

func (g *fakeGateway) serve(w http.ResponseWriter, r *http.Request) {
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{subprotocol}})
	if err != nil {
		return
	}
	ws.SetReadLimit(maxMessageBytes)
	s := &fakeSession{ws}
	g.mu.Lock()
	g.sessions = append(g.sessions, s)
	g.mu.Unlock()
	for {
		_, data, err := ws.Read(context.Background())
		if err != nil {
			return
		}
		var header map[string]any
		rest, err := cbor.UnmarshalFirst(data, &header)
		if err != nil {
			g.t.Error(err)
			return
		}
		op, _ := header["op"].(string)
		g.mu.Lock()
		g.ops = append(g.ops, op)
		g.mu.Unlock()
		if op == "produce" {
			g.produce(s, data, rest)
			continue
		}
		g.answer(s, op, header)
	}
}

func (g *fakeGateway) answer(s *fakeSession, op string, header map[string]any) {
	answer := map[string]any{"re": header["id"]}
	switch op {
	case "hello":
		answer["version"], answer["cluster"], answer["node"], answer["role"] = 1, "c", "g", "gateway"
		answer["max_message_bytes"], answer["max_in_flight"] = maxMessageBytes, 1024
	case "metadata":
		answer["cluster"], answer["index"], answer["servers"] = "c", 1, []any{}
		answer["topics"] = []any{map[string]any{
			"topic_id": strings.Repeat("0", 32), "name": "t", "config": map[string]string{},
			"partitions": []any{map[string]any{"partition": 0, "leader": "r1", "leader_epoch": 0, "epoch": 0, "isr": []any{}, "replicas": []any{}}},
		}}
	case "init_producer":
		g.mu.Lock()
		g.nextID++
		answer["producer_id"], answer["ticket"], answer["window"] = g.nextID, "ticket", 3
		g.mu.Unlock()
	case "use_producer":
		answer["ticket"] = "newer"
	case "list_offset":
		answer["offset"] = 0
	}
	if op == "credit" {
		return
	}
	s.send(answer)
	if op == "subscribe" && g.onSubscribe != nil {
		g.onSubscribe(s, header)
	}
}

func (g *fakeGateway) produce(s *fakeSession, data, rest []byte) {
	var m produceMessage
	var payload []byte
	if _, err := cbor.UnmarshalFirst(data, &m); err != nil {
		g.t.Error(err)
	}
	if err := cbor.Unmarshal(rest, &payload); err != nil {
		g.t.Error(err)
	}
	for _, part := range m.Parts {
		one := payload[:part.Size]
		payload = payload[part.Size:]
		h, _, err := batch.Decode(one)
		if err != nil {
			g.t.Error(err)
		}
		b := fakeBatch{part.ID, string(one), h}
		g.mu.Lock()
		g.batches = append(g.batches, b)
		g.mu.Unlock()
		if ack := g.onBatch(g, s, b); ack != nil {
			s.ack(ack)
		}
	}
}

// seen returns the batches that came so far.
func (g *fakeGateway) seen() []fakeBatch {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]fakeBatch(nil), g.batches...)
}

// eventually waits until the condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatal("not in time: " + what)
}
