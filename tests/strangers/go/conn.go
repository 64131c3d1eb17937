package tidelog

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
)

// Times of a connection, as the protocol has them.
const (
	maxMessageBytes = 16 << 20
	pingAfter       = 5 * time.Second
	silentAfter     = 15 * time.Second
	writeTimeout    = 15 * time.Second
)

// conn is a connection to a gateway, after its welcome.
type conn struct {
	ws        *websocket.Conn
	url       string
	welcome   welcome
	lastHeard atomic.Int64 // Unix time in milliseconds
	done      chan struct{}

	mu      sync.Mutex
	err     error
	nextID  uint64
	calls   map[uint64]func(message, error)
	subs    map[uint64]func(message)
	parts   map[uint64]*sentPart
	bytes   int64 // of parts
	onRoom  map[any]func()
	out     [][]byte
	outWake chan struct{}
}

// sentPart is a batch without an ack.
type sentPart struct {
	size int64
	ack  func(produceAck)
}

func newConn(ws *websocket.Conn, url string) *conn {
	c := &conn{
		ws: ws, url: url, done: make(chan struct{}), nextID: 1,
		calls: map[uint64]func(message, error){}, subs: map[uint64]func(message){},
		parts: map[uint64]*sentPart{}, onRoom: map[any]func(){}, outWake: make(chan struct{}, 1),
	}
	c.heard()
	return c
}

func (c *conn) heard() { c.lastHeard.Store(time.Now().UnixMilli()) }

// start begins to read, write and watch.
func (c *conn) start() {
	go c.readAll()
	go c.writeAll()
	go c.watch()
}

// fail ends the connection. What waits for an answer learns of it.
func (c *conn) fail(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	calls := c.calls
	c.calls, c.subs, c.parts = nil, nil, nil
	close(c.done)
	c.mu.Unlock()
	for _, answer := range calls {
		answer(message{}, err)
	}
	go c.ws.CloseNow()
}

func (c *conn) isAlive() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// readAll takes messages until the connection ends.
func (c *conn) readAll() {
	for {
		data, err := c.readOne(context.Background())
		if err != nil {
			c.fail(err)
			return
		}
		m, err := parseMessage(data)
		if err != nil {
			c.fail(err)
			return
		}
		c.take(m)
	}
}

// readOne reads a message, and notes whenever bytes come.
func (c *conn) readOne(ctx context.Context) ([]byte, error) {
	kind, r, err := c.ws.Reader(ctx)
	if err != nil {
		return nil, err
	}
	if kind != websocket.MessageBinary {
		return nil, errors.New("a text message")
	}
	var data bytes.Buffer
	_, err = io.Copy(&data, readerFunc(func(p []byte) (int, error) {
		n, err := r.Read(p)
		c.heard()
		return n, err
	}))
	return data.Bytes(), err
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// take hands a message to whoever waits for it; any other is ignored.
func (c *conn) take(m message) {
	switch {
	case m.Re != nil:
		c.mu.Lock()
		answer := c.calls[*m.Re]
		delete(c.calls, *m.Re)
		c.mu.Unlock()
		if answer == nil {
			return
		}
		if m.Error != nil {
			answer(m, m.Error)
		} else {
			answer(m, nil)
		}
	case *m.Op == "delivery":
		c.mu.Lock()
		deliver := c.subs[m.Sub]
		c.mu.Unlock()
		if deliver != nil {
			deliver(m)
		}
	case *m.Op == "produced":
		c.takeAcks(m.Acks)
	}
}

// takeAcks settles batches. Acks for others are ignored.
func (c *conn) takeAcks(acks []produceAck) {
	for _, ack := range acks {
		c.mu.Lock()
		part := c.parts[ack.ID]
		if part != nil {
			delete(c.parts, ack.ID)
			c.bytes -= part.size
		}
		c.mu.Unlock()
		if part != nil {
			part.ack(ack)
		}
	}
	c.mu.Lock()
	waiting := c.onRoom
	c.onRoom = map[any]func(){}
	c.mu.Unlock()
	for _, wake := range waiting {
		wake()
	}
}

// post queues a message. Messages leave in the order in which they are posted.
func (c *conn) post(header any, payload ...[]byte) error {
	data, err := encodeMessage(header, payload)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.postLocked(data)
}

func (c *conn) postLocked(data []byte) error {
	if c.err != nil {
		return c.err
	}
	c.out = append(c.out, data)
	poke(c.outWake)
	return nil
}

// ask sends a request; answer is called once, perhaps before ask returns, and
// must not block.
func (c *conn) ask(r request, op string, answer func(message, error)) {
	c.mu.Lock()
	err := c.err
	if err == nil {
		head := r.head()
		head.Op, head.ID = op, c.nextID
		c.nextID++
		var data []byte
		if data, err = encodeMessage(r, nil); err == nil {
			c.calls[head.ID] = answer
			err = c.postLocked(data)
		}
	}
	c.mu.Unlock()
	if err != nil {
		answer(message{}, err)
	}
}

// subscribe is ask for a subscription, whose deliveries go to deliver. It
// returns the number of the subscription.
func (c *conn) subscribe(r *subscribeRequest, answer func(error), deliver func(message)) uint64 {
	c.mu.Lock()
	r.Sub = c.nextID // unique, since ids are
	c.nextID++
	if c.subs != nil {
		c.subs[r.Sub] = deliver
	}
	c.mu.Unlock()
	sub := r.Sub
	c.ask(r, "subscribe", func(_ message, err error) { answer(err) })
	return sub
}

// unsubscribe ends a subscription; from now on nothing is delivered.
func (c *conn) unsubscribe(sub uint64) {
	c.mu.Lock()
	_, open := c.subs[sub]
	delete(c.subs, sub)
	c.mu.Unlock()
	if open {
		c.ask(&unsubscribeRequest{Sub: sub}, "unsubscribe", func(message, error) {})
	}
}

// produce sends a batch if the limits of the connection allow it; if not, room
// is called when that may have changed.
func (c *conn) produce(part producePart, data []byte, who any, room func(), ack func(produceAck)) (sent bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return false, c.err
	}
	size := int64(len(data))
	if len(c.parts) > 0 && (c.over("produce_bytes", c.bytes+size) || c.over("produce_batches", int64(len(c.parts))+1)) {
		c.onRoom[who] = room
		return false, nil
	}
	part.ID, part.Size = c.nextID, len(data)
	c.nextID++
	message, err := encodeMessage(produceMessage{Op: "produce", Parts: []producePart{part}}, [][]byte{data})
	if err != nil {
		return false, err
	}
	c.parts[part.ID] = &sentPart{size: size, ack: ack}
	c.bytes += size
	return true, c.postLocked(message)
}

// over tells whether the amount is more than the welcome allows.
func (c *conn) over(limit string, amount int64) bool {
	most, ok := c.welcome.Limits[limit]
	return ok && amount > int64(most)
}

// can tells whether the gateway has the capability.
func (c *conn) can(capability string) bool {
	return slices.Contains(c.welcome.Capabilities, capability)
}

// writeAll sends what is posted.
func (c *conn) writeAll() {
	for {
		select {
		case <-c.done:
			return
		case <-c.outWake:
		}
		c.mu.Lock()
		out := c.out
		c.out = nil
		c.mu.Unlock()
		for _, data := range out {
			if err := c.write(data); err != nil {
				c.fail(err)
				return
			}
		}
	}
}

func (c *conn) write(data []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	return c.ws.Write(ctx, websocket.MessageBinary, data)
}

// watch pings a silent gateway, and hangs up where it stays silent.
func (c *conn) watch() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var pinging atomic.Bool
	for {
		select {
		case <-c.done:
			return
		case <-tick.C:
		}
		silent := time.Since(time.UnixMilli(c.lastHeard.Load()))
		if silent > silentAfter {
			c.fail(errors.New("the gateway is silent"))
			return
		}
		if silent > pingAfter && pinging.CompareAndSwap(false, true) {
			go func() {
				defer pinging.Store(false)
				ctx, cancel := context.WithTimeout(context.Background(), pingAfter)
				defer cancel()
				if c.ws.Ping(ctx) == nil {
					c.heard()
				}
			}()
		}
	}
}
