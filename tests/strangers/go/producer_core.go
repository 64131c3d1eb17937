package tidelog

import (
	"errors"
	"slices"
	"time"

	"example.org/tidelog/internal/batch"
)

const (
	mostThrottle    = time.Minute
	spoiledTimeout  = time.Second
	defaultWindow   = 5
	mostSequence    = 1<<32 - 1
	longWait        = time.Hour
	idRetryInterval = 200 * time.Millisecond
)

// run is the producer's goroutine: it does what is due, and waits for more.
func (p *Producer) run() {
	defer close(p.stopped)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		c, changed, fatal := p.log.look()
		now := time.Now()
		p.mu.Lock()
		if fatal != nil && p.ended == nil {
			p.ended = fatal
		}
		if p.ended != nil {
			p.failAll(p.ended)
			p.release(nil)
			p.mu.Unlock()
			return
		}
		next := p.step(c, now)
		p.mu.Unlock()
		var lost <-chan struct{}
		if c != nil {
			lost = c.done
			if !c.isAlive() {
				lost = nil // the log will tell of another one
			}
		}
		timer.Reset(time.Until(next))
		select {
		case <-p.wake:
		case <-changed:
		case <-lost:
		case <-timer.C:
		}
	}
}

// step does what is due, and returns when there will be more to do.
func (p *Producer) step(c *conn, now time.Time) time.Time {
	if c != nil && !c.isAlive() {
		c = nil
	}
	if c != p.conn {
		p.switchTo(c)
	}
	next := now.Add(longWait)
	for _, t := range p.lanes {
		if due := p.stepLane(t, now); due.Before(next) {
			next = due
		}
	}
	p.release(p.current)
	return next
}

// switchTo goes on at another connection, or at none. Batches in flight are
// astray (rule 11).
func (p *Producer) switchTo(c *conn) {
	p.conn = c
	clear(p.presented)
	for _, t := range p.lanes {
		t.onWire = 0
		for _, b := range slices.Clone(t.numbered) {
			if !b.inFlight {
				continue
			}
			b.inFlight, b.astray, b.doubt = false, true, true
			if !p.idempotent() {
				p.giveUp(t, b, newError(CodeUnreachable, "the connection ended before the ack"))
			}
		}
	}
}

func (p *Producer) idempotent() bool { return !p.options.NotIdempotent && p.options.Acks != AcksNone }

// stepLane does what is due in a partition, and returns when to look again.
func (p *Producer) stepLane(t *lane, now time.Time) time.Time {
	next := p.expire(t, now)
	if t.draining && t.onWire == 0 {
		p.drained(t, now)
	}
	if t.draining || p.conn == nil {
		return next
	}
	if now.Before(t.resumeAt) {
		return earlier(next, t.resumeAt)
	}
	for _, b := range slices.Clone(t.numbered) {
		if !b.inFlight && !b.settled && !p.send(t, b, now) {
			return next
		}
	}
	for len(t.queue) > 0 && !t.draining {
		b := t.queue[0]
		if due := b.opened.Add(p.options.Linger); !b.closed && p.urgent == 0 && now.Before(due) {
			return earlier(next, due)
		}
		if len(t.numbered) >= p.window(t) || !p.identify(t, len(b.records)) {
			return next
		}
		if !p.number(t, b) {
			continue
		}
		next = earlier(next, b.deadline)
		if !p.send(t, b, now) {
			return next
		}
	}
	return next
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// window is how many batches may have a number (rule 5).
func (p *Producer) window(t *lane) int {
	window := defaultWindow
	if t.id != nil && t.id.Window > 0 {
		window = t.id.Window
	}
	return min(window, p.options.MaxInFlight)
}

// expire gives up what is over its time (rule 12), and returns the next
// deadline.
func (p *Producer) expire(t *lane, now time.Time) time.Time {
	next := now.Add(longWait)
	for _, b := range slices.Concat(t.numbered, t.queue) {
		switch {
		case b.settled:
		case now.Before(b.deadline):
			next = earlier(next, b.deadline)
		default:
			p.giveUp(t, b, newError(CodeTimedOut, "no ack in time").doubtful(b.inFlight))
		}
	}
	return next
}

// drained decides what becomes of the batches that are left (rules 9, 15, 16).
func (p *Producer) drained(t *lane, now time.Time) {
	t.draining = false
	t.tidy()
	first := t.oldest()
	if first == nil {
		return
	}
	pause := p.options.Backoff
	if first.lastErr != nil {
		pause = max(pause, first.lastErr.pause(0))
	}
	t.resumeAt = later(t.resumeAt, now.Add(pause))
	left := slices.DeleteFunc(slices.Clone(t.numbered), func(b *pack) bool { return b.settled })
	refused := func(b *pack) bool { return b.lastErr != nil && b.lastErr.Code == CodeInvalidTicket }
	astray := func(b *pack) bool { return b.astray }
	if slices.ContainsFunc(left, refused) {
		t.id.bad = true
		for _, b := range left {
			if b.doubt {
				p.giveUp(t, b, newError(CodeInvalidTicket, "the ticket of the producer id is not valid any more"))
			}
		}
		t.renumber()
		return
	}
	if e := first.lastErr; e != nil && e.Code == CodeOutOfOrder {
		lossy := e.Detail["lossy"] == "1"
		if (lossy || !e.UnknownOutcome) && !slices.ContainsFunc(left, astray) {
			for _, b := range left {
				b.doubt = b.doubt && lossy
			}
			t.renumber()
			return
		}
	}
	for _, b := range left {
		b.lastErr = nil
	}
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// identify makes sure that the partition has a producer id under which count
// more records can be numbered (rules 2, 13, 14).
func (p *Producer) identify(t *lane, count int) bool {
	if !p.idempotent() {
		return true
	}
	if t.id != nil && t.sequence+uint64(count) > mostSequence {
		t.spoiled = true
	}
	if t.id != nil && !t.spoiled {
		return true
	}
	if len(t.numbered) > 0 || t.onWire > 0 {
		return false
	}
	if p.current == nil || p.current.bad || p.current == t.id {
		p.askForID()
		return false
	}
	t.id, t.sequence, t.spoiled = p.current, 0, false
	return true
}

// askForID gets a new producer id, unless that is under way.
func (p *Producer) askForID() {
	if p.asking {
		return
	}
	p.asking = true
	go func() {
		id := &identity{}
		err := p.log.call(p.log.ctx, "init_producer", &initProducerRequest{}, &id.producerAnswer)
		if err != nil {
			time.Sleep(idRetryInterval)
		}
		p.mu.Lock()
		p.asking = false
		var refusal *Error
		switch {
		case err == nil:
			p.current = id
			p.ids = append(p.ids, id)
		case errors.As(err, &refusal) && !refusal.Retriable():
			for _, t := range p.lanes {
				for _, b := range slices.Clone(t.queue) {
					p.giveUp(t, b, refusal)
				}
			}
		}
		p.mu.Unlock()
		p.poke()
	}()
}

// release gives up ids under which nothing will be sent any more, other than
// the one to keep.
func (p *Producer) release(keep *identity) {
	p.ids = slices.DeleteFunc(p.ids, func(id *identity) bool {
		used := func(t *lane) bool { return t.id == id && !(t.spoiled && len(t.numbered) == 0 && t.onWire == 0) }
		if id == keep || keep != nil && slices.ContainsFunc(p.lanes, used) {
			return false
		}
		if p.conn != nil && p.presented[id] {
			delete(p.presented, id)
			p.conn.ask(&releaseProducerRequest{ProducerID: id.ProducerID}, "release_producer", func(message, error) {})
		}
		return true
	})
}

// number encodes the first batch of the queue under the next sequence. It
// returns false if the batch has failed.
func (p *Producer) number(t *lane, b *pack) bool {
	var id batch.Identity
	if t.id != nil {
		id = batch.Identity{ProducerID: t.id.ProducerID, BaseSequence: uint32(t.sequence)}
	}
	data, err := batch.Encode(b.records, id, p.codec)
	if err != nil {
		p.giveUp(t, b, invalid("%v", err))
		return false
	}
	if most := p.topic.maxBatchBytes(); len(data) > most {
		p.giveUp(t, b, newError(CodeBatchTooLarge, "a batch of %d bytes, of which %d are allowed", len(data), most))
		return false
	}
	b.data, b.closed = data, true
	t.sequence += uint64(len(b.records))
	t.queue = t.queue[1:]
	t.numbered = append(t.numbered, b)
	return true
}

// send tries a batch. It returns false if nothing more can be sent now.
func (p *Producer) send(t *lane, b *pack, now time.Time) bool {
	c := p.conn
	if b.expected != nil && !c.can("conditional_append") {
		err := newError(CodeUnsupported, "the gateway does not know conditional appends")
		err.Detail = map[string]string{"capability": "conditional_append"}
		p.giveUp(t, b, err)
		return true
	}
	if t.id != nil {
		p.present(t.id)
	}
	timeout := min(b.deadline.Sub(now), p.options.TryTimeout)
	if t.spoiled {
		timeout = min(timeout, spoiledTimeout)
	}
	part := producePart{
		TopicID: p.topic.ID, Partition: int64(t.partition), Acks: p.options.Acks.wire(),
		TimeoutMs: max(timeout.Milliseconds(), 1), ExpectedOffset: b.expected,
	}
	sent, err := c.produce(part, b.data, p, p.poke, func(ack produceAck) { p.take(c, t, b, ack) })
	if !sent || err != nil {
		return false
	}
	b.inFlight = true
	t.onWire++
	return true
}

// present shows the ticket of an id once on a connection, before its first
// batch.
func (p *Producer) present(id *identity) {
	if p.presented[id] || id.Ticket == "" {
		return
	}
	p.presented[id] = true
	r := &useProducerRequest{ProducerID: id.ProducerID, Ticket: id.Ticket}
	p.conn.ask(r, "use_producer", func(m message, err error) {
		var answer ticketAnswer
		if err == nil && m.answer(&answer) == nil && answer.Ticket != "" {
			go func() {
				p.mu.Lock()
				defer p.mu.Unlock()
				id.Ticket = answer.Ticket
			}()
		}
	})
}

// take is called with the ack of a try.
func (p *Producer) take(c *conn, t *lane, b *pack, ack produceAck) {
	defer p.poke()
	p.mu.Lock()
	defer p.mu.Unlock()
	if c != p.conn {
		return // the batch is astray
	}
	t.onWire--
	b.inFlight = false
	if throttle := time.Duration(ack.ThrottleMs) * time.Millisecond; throttle > 0 {
		t.resumeAt = later(t.resumeAt, time.Now().Add(min(throttle, mostThrottle)))
	}
	if b.settled {
		return // it was given up
	}
	e := ack.Error
	if e == nil {
		p.settle(t, b, ack)
		return
	}
	again := p.idempotent() && (e.Retriable() || e.Code == CodeInvalidTicket)
	if !again {
		p.giveUp(t, b, e)
		if e.Code == CodeFencedProducer {
			p.ended = e
		}
		return
	}
	b.lastErr = e
	b.doubt = b.doubt || e.UnknownOutcome
	t.draining = true
}

// settle tells that the records of a batch are written (rule 8).
func (p *Producer) settle(t *lane, b *pack, ack produceAck) {
	b.settled = true
	offset, epoch := orNone(ack.Offset), orNone(ack.LeaderEpoch)
	for i, pending := range b.pendings {
		pending.ack = Ack{Partition: t.partition, Offset: offset, LeaderEpoch: epoch, Durability: ack.Durability}
		if offset >= 0 {
			pending.ack.Offset += int64(i)
		}
		close(pending.done)
	}
	t.tidy()
	p.settled(b)
}

// giveUp tells that a batch has failed (rules 12, 13, 19).
func (p *Producer) giveUp(t *lane, b *pack, e *Error) {
	e = e.doubtful(b.doubt)
	b.settled = true
	for _, pending := range b.pendings {
		pending.err = e
		close(pending.done)
	}
	p.failed = slices.DeleteFunc(p.failed, func(pending *Pending) bool { return pending.reported.Load() })
	p.failed = append(p.failed, b.pendings...)
	t.remove(b)
	p.settled(b)
}

// settled frees the memory of a batch, and wakes whoever waits.
func (p *Producer) settled(b *pack) {
	p.buffered -= b.size
	b.data, b.records, b.pendings = nil, nil, nil
	close(p.changed)
	p.changed = make(chan struct{})
}

// failAll gives up everything.
func (p *Producer) failAll(e *Error) {
	for _, t := range p.lanes {
		for _, b := range slices.Concat(t.numbered, t.queue) {
			if !b.settled {
				p.giveUp(t, b, e.doubtful(b.inFlight))
			}
		}
	}
}
