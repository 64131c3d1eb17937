package tidelog

import (
	"slices"
	"time"

	"example.org/tidelog/internal/batch"
)

// The most CBOR items of a batch that is built here, below the bound of the
// format.
const mostItems = 1000000

// identity is a producer id with its ticket.
type identity struct {
	producerAnswer
	bad bool // its ticket is not valid
}

// pack is a batch: its records, and once it is numbered its bytes.
type pack struct {
	records  []batch.Record
	pendings []*Pending
	expected *int64
	size     int // of the records
	items    int
	opened   time.Time
	deadline time.Time
	closed   bool

	data     []byte
	inFlight bool
	settled  bool
	doubt    bool   // a try may have been written
	astray   bool   // the connection of a try ended before its ack
	lastErr  *Error // of the last try, if it was refused
}

// lane is the state of a producer in a partition.
type lane struct {
	partition int
	queue     []*pack // not numbered
	numbered  []*pack // in the order of their sequences, from the oldest that is not settled on
	onWire    int     // tries without an ack
	id        *identity
	sequence  uint64
	draining  bool
	spoiled   bool
	resumeAt  time.Time
}

// add puts a record into the last batch of the queue, or into a new one.
func (t *lane) add(r batch.Record, pending *Pending, expected *int64, p *Producer) {
	size, now := batch.Size(r), time.Now()
	if !t.hasRoom(size, p) || expected != nil {
		if len(t.queue) > 0 {
			t.queue[len(t.queue)-1].closed = true
		}
		t.queue = append(t.queue, &pack{opened: now, deadline: now.Add(p.options.DeliveryTimeout), expected: expected})
	}
	b := t.queue[len(t.queue)-1]
	b.records = append(b.records, r)
	b.pendings = append(b.pendings, pending)
	b.size += size
	b.items += batch.Items(r)
	b.closed = expected != nil || b.size >= p.options.BatchBytes
}

// hasRoom tells whether the last batch of the queue takes a record of that
// size.
func (t *lane) hasRoom(size int, p *Producer) bool {
	if len(t.queue) == 0 {
		return false
	}
	b := t.queue[len(t.queue)-1]
	limit := min(p.options.BatchBytes, p.topic.maxBatchBytes()-batch.HeaderSize-64)
	return !b.closed && b.size+size <= limit && len(b.records) < batch.MaxRecords && b.items < mostItems
}

// oldest is the oldest batch that has a number and no final answer.
func (t *lane) oldest() *pack {
	if len(t.numbered) == 0 {
		return nil
	}
	return t.numbered[0]
}

// tidy takes settled batches from the front.
func (t *lane) tidy() {
	for len(t.numbered) > 0 && t.numbered[0].settled {
		t.numbered = t.numbered[1:]
	}
}

// remove takes a batch out that is given up.
func (t *lane) remove(b *pack) {
	is := func(other *pack) bool { return other == b }
	if t.id != nil && slices.ContainsFunc(t.numbered, is) {
		t.spoiled = true
	}
	t.numbered = slices.DeleteFunc(t.numbered, is)
	t.queue = slices.DeleteFunc(t.queue, is)
	t.tidy()
}

// renumber puts all batches that are not settled back into the queue, to be
// encoded anew under another id.
func (t *lane) renumber() {
	var back []*pack
	for _, b := range t.numbered {
		if !b.settled {
			b.data, b.lastErr, b.closed = nil, nil, true
			back = append(back, b)
		}
	}
	t.queue = append(back, t.queue...)
	t.numbered = nil
	t.spoiled = true
}
