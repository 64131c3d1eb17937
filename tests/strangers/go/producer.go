package tidelog

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"example.org/tidelog/internal/batch"
)

// Acks says when a record counts as written.
type Acks int

// The kinds of acks; the zero value of ProducerOptions.Acks means AcksAll.
const (
	AcksAll    Acks = iota // it is committed
	AcksLeader             // it is durable on the leader
	AcksNone               // the gateway has received it
)

// wire is the number of the kind in the protocol.
func (a Acks) wire() int { return 2 - int(a) }

// ProducerOptions are the options of a producer. Zeros mean the defaults.
type ProducerOptions struct {
	Acks        Acks
	Compression string // none, zstd or lz4
	// Linger is how long a batch waits for more records.
	Linger time.Duration
	// BatchBytes is the size from which on a batch is sent; 256 KiB.
	BatchBytes int
	// DeliveryTimeout is how long a record may take; 30 s.
	DeliveryTimeout time.Duration
	// TryTimeout is how long the gateway tries at a time; 10 s.
	TryTimeout time.Duration
	// MaxInFlight bounds the batches of a partition in flight; 5.
	MaxInFlight int
	// BufferBytes is how much may wait in memory; 32 MiB.
	BufferBytes int
	// NotIdempotent: a record that is repeated may be written twice, so none is.
	NotIdempotent bool
	// Backoff is the pause before a batch is sent again; 100 ms.
	Backoff time.Duration
}

func (o *ProducerOptions) fill() (codec batch.Codec, err error) {
	if o.Acks < AcksAll || o.Acks > AcksNone {
		return 0, invalid("acks %d", o.Acks)
	}
	if o.BatchBytes < 0 || o.DeliveryTimeout < 0 || o.TryTimeout < 0 || o.MaxInFlight < 0 || o.BufferBytes < 0 || o.Linger < 0 {
		return 0, invalid("negative option")
	}
	if codec, err = batch.ParseCodec(o.Compression); err != nil {
		return 0, invalid("%v", err)
	}
	setDefault(&o.BatchBytes, 256<<10)
	setDefault(&o.DeliveryTimeout, 30*time.Second)
	setDefault(&o.TryTimeout, 10*time.Second)
	setDefault(&o.MaxInFlight, 5)
	setDefault(&o.BufferBytes, 32<<20)
	setDefault(&o.Backoff, firstBackoff)
	return codec, nil
}

func setDefault[T comparable](option *T, value T) {
	var zero T
	if *option == zero {
		*option = value
	}
}

// Message is a record to send. A nil key or value is null.
type Message struct {
	Key, Value []byte
	Headers    []Header
	// Partition to write to; nil: that of the key.
	Partition *int
	// TimestampMs is its time in milliseconds since 1970; nil: now.
	TimestampMs *int64
	// ExpectedOffset: the record is appended there or not at all.
	ExpectedOffset *int64
}

// Ack says where a record is. With AcksNone the offset is -1.
type Ack struct {
	Partition   int
	Offset      int64
	LeaderEpoch int64
	Durability  string
}

// Pending is a record that waits for its ack.
type Pending struct {
	done     chan struct{}
	ack      Ack
	err      *Error
	reported atomic.Bool
}

// Wait waits for the outcome.
func (p *Pending) Wait(ctx context.Context) (Ack, error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		return Ack{}, ctx.Err()
	}
	p.reported.Store(true)
	if p.err != nil {
		return Ack{}, p.err
	}
	return p.ack, nil
}

// Producer writes records to a topic. Its methods may be called from many
// goroutines; records are taken in the order of the calls.
type Producer struct {
	log     *Log
	options ProducerOptions
	codec   batch.Codec
	topic   *Topic
	wake    chan struct{}
	stopped chan struct{}

	mu       sync.Mutex
	lanes    []*lane
	sticky   int
	buffered int
	urgent   int           // flushes that wait: no batch lingers
	changed  chan struct{} // closed when a record is settled
	failed   []*Pending
	ended    *Error // nothing is taken any more

	// What follows belongs to the state machine in producer_core.go.
	conn      *conn
	presented map[*identity]bool
	ids       []*identity
	current   *identity
	asking    bool
}

// NewProducer opens a producer for a topic.
func (l *Log) NewProducer(ctx context.Context, topic string, options ProducerOptions) (*Producer, error) {
	codec, err := options.fill()
	if err != nil {
		return nil, err
	}
	t, err := l.topic(ctx, topic, false)
	if err != nil {
		return nil, err
	}
	p := &Producer{
		log: l, options: options, codec: codec, topic: t,
		wake: make(chan struct{}, 1), stopped: make(chan struct{}), changed: make(chan struct{}),
		presented: map[*identity]bool{}, sticky: rand.IntN(len(t.Partitions)),
	}
	for i := range t.Partitions {
		p.lanes = append(p.lanes, &lane{partition: i})
	}
	l.atEnd(p, func() { p.abandon(newError(CodeClosed, "the client is closed")) })
	go p.run()
	return p, nil
}

// Send writes a record and waits for its ack.
func (p *Producer) Send(ctx context.Context, m Message) (Ack, error) {
	pending, err := p.Submit(ctx, m)
	if err != nil {
		return Ack{}, err
	}
	return pending.Wait(ctx)
}

// Submit takes a record, and waits while too much is buffered.
func (p *Producer) Submit(ctx context.Context, m Message) (*Pending, error) {
	if err := p.check(m); err != nil {
		return nil, err
	}
	r := batch.Record{Key: m.Key, Value: m.Value, Headers: m.Headers, TimestampMs: time.Now().UnixMilli()}
	if m.TimestampMs != nil {
		r.TimestampMs = *m.TimestampMs
	}
	size := batch.Size(r)
	for {
		p.mu.Lock()
		if p.ended != nil {
			defer p.mu.Unlock()
			return nil, p.ended
		}
		if p.buffered == 0 || p.buffered+size <= p.options.BufferBytes {
			pending := &Pending{done: make(chan struct{})}
			p.buffered += size
			p.lanes[p.choose(m, size)].add(r, pending, m.ExpectedOffset, p)
			p.mu.Unlock()
			p.poke()
			return pending, nil
		}
		changed := p.changed
		p.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// check refuses what no cluster would take.
func (p *Producer) check(m Message) error {
	switch {
	case m.Partition != nil && (*m.Partition < 0 || *m.Partition >= len(p.lanes)):
		return invalid("topic %q has no partition %d", p.topic.Name, *m.Partition)
	case m.TimestampMs != nil && *m.TimestampMs < 0:
		return invalid("negative timestamp")
	case m.ExpectedOffset != nil && *m.ExpectedOffset < 0:
		return invalid("negative offset")
	case m.ExpectedOffset != nil && p.options.Acks == AcksNone:
		return invalid("a conditional append needs acks")
	}
	for _, h := range m.Headers {
		if !utf8.ValidString(h.Name) {
			return invalid("the name of a header is not UTF-8")
		}
	}
	return nil
}

// choose returns the partition of a record.
func (p *Producer) choose(m Message, size int) int {
	if m.Partition != nil {
		return *m.Partition
	}
	if m.Key != nil {
		return partitionOf(m.Key, len(p.lanes))
	}
	if !p.lanes[p.sticky].hasRoom(size, p) {
		for range p.lanes {
			p.sticky = (p.sticky + 1) % len(p.lanes)
			if at := p.topic.Partitions[p.sticky]; !at.ReadOnly && !at.Paused {
				break
			}
		}
	}
	return p.sticky
}

// Flush waits until every record that was submitted has its outcome.
func (p *Producer) Flush(ctx context.Context) error {
	p.mu.Lock()
	p.urgent++
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.urgent--
		p.mu.Unlock()
	}()
	p.poke()
	for {
		p.mu.Lock()
		left, changed := p.buffered, p.changed
		p.mu.Unlock()
		if left == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Close sends what there is and waits for the acks. Its error tells how many
// records failed whose outcome nobody has asked for.
func (p *Producer) Close(ctx context.Context) error {
	err := p.Flush(ctx)
	p.abandon(newError(CodeClosed, "the producer is closed"))
	p.log.forget(p)
	<-p.stopped
	p.mu.Lock()
	defer p.mu.Unlock()
	var first *Error
	count := 0
	for _, pending := range p.failed {
		if pending.reported.Swap(true) {
			continue
		}
		if count++; first == nil {
			first = pending.err.doubtful(false)
		}
	}
	p.failed = nil
	if first != nil {
		first.Failed = count
		return first
	}
	return err
}

// abandon fails all that is left, and takes nothing more.
func (p *Producer) abandon(err *Error) {
	p.mu.Lock()
	if p.ended == nil {
		p.ended = err
	}
	p.mu.Unlock()
	p.poke()
}

// poke has the state machine look again.
func (p *Producer) poke() { poke(p.wake) }
