package tidelog

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// submitAll submits records, each of which gets a batch of its own.
func submitAll(t *testing.T, p *Producer, count int) []*Pending {
	t.Helper()
	var list []*Pending
	for i := range count {
		pending, err := p.Submit(context.Background(), Message{Value: []byte{byte(i)}})
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, pending)
	}
	return list
}

// open opens a producer whose batches have one record each.
func (g *fakeGateway) producer(options ProducerOptions) *Producer {
	g.t.Helper()
	options.BatchBytes = 1
	options.Backoff = time.Millisecond
	p, err := g.open().NewProducer(context.Background(), "t", options)
	if err != nil {
		g.t.Fatal(err)
	}
	return p
}

func sequences(batches []fakeBatch, id uint64) []uint32 {
	var list []uint32
	for _, b := range batches {
		if b.header.ProducerID == id {
			list = append(list, b.header.BaseSequence)
		}
	}
	return list
}

func TestWindowIsKept(t *testing.T) {
	g := newFakeGateway(t)
	g.onBatch = func(*fakeGateway, *fakeSession, fakeBatch) *fakeAck { return nil }
	p := g.producer(ProducerOptions{})
	list := submitAll(t, p, 6)
	eventually(t, "three batches", func() bool { return len(g.seen()) == 3 })
	// Later batches have their acks, but the window counts from the oldest one without.
	s := g.sessions[0]
	s.ack(&fakeAck{ID: g.seen()[1].part, Offset: 1}, &fakeAck{ID: g.seen()[2].part, Offset: 2})
	if _, err := list[2].Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	if n := len(g.seen()); n != 3 {
		t.Fatalf("%d batches were sent", n)
	}
	s.ack(&fakeAck{ID: g.seen()[0].part, Offset: 0})
	eventually(t, "the others", func() bool { return len(g.seen()) == 6 })
	if got := sequences(g.seen(), 101); !slices.Equal(got, []uint32{0, 1, 2, 3, 4, 5}) {
		t.Errorf("sequences %v", got)
	}
}

func TestRefusedBatchesAreRepeatedInOrder(t *testing.T) {
	g := newFakeGateway(t)
	g.onBatch = func(g *fakeGateway, s *fakeSession, b fakeBatch) *fakeAck {
		switch n := len(g.seen()); {
		case n < 3:
			return nil
		case n == 3:
			all := g.seen()
			s.ack(refusal(all[0].part, "NOT_LEADER", false))
			time.Sleep(20 * time.Millisecond) // nothing may come before the others have their acks
			if len(g.seen()) != 3 {
				t.Error("sent while it drains")
			}
			s.ack(refusal(all[1].part, CodeOutOfOrder, false), refusal(all[2].part, CodeOutOfOrder, false))
			return nil
		}
		return &fakeAck{ID: b.part, Offset: int64(b.header.BaseSequence)}
	}
	p := g.producer(ProducerOptions{})
	submitAll(t, p, 4)
	if err := p.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	all := g.seen()
	if got := sequences(all, 101); !slices.Equal(got, []uint32{0, 1, 2, 0, 1, 2, 3}) {
		t.Errorf("sequences %v", got)
	}
	for i := range 3 {
		if all[i].data != all[i+3].data || all[i].part == all[i+3].part {
			t.Errorf("batch %d was not repeated byte for byte with a new part id", i)
		}
	}
}

func TestGapIsRenumbered(t *testing.T) {
	g := newFakeGateway(t)
	g.onBatch = func(_ *fakeGateway, _ *fakeSession, b fakeBatch) *fakeAck {
		switch {
		case b.header.ProducerID != 101:
			return &fakeAck{ID: b.part, Offset: int64(b.header.BaseSequence)}
		case b.header.BaseSequence == 0:
			return refusal(b.part, CodeCorruptBatch, false)
		}
		return refusal(b.part, CodeOutOfOrder, false)
	}
	p := g.producer(ProducerOptions{})
	list := submitAll(t, p, 5)
	err := p.Close(context.Background())
	var e *Error
	if !errors.As(err, &e) || e.Code != CodeCorruptBatch || e.Failed != 1 || e.UnknownOutcome {
		t.Errorf("closed with %v", err)
	}
	for i, pending := range list[1:] {
		if ack, err := pending.Wait(context.Background()); err != nil || ack.Offset != int64(i) {
			t.Errorf("record %d: %v, %v", i+1, ack, err)
		}
	}
	if got := sequences(g.seen(), 102); !slices.Equal(got, []uint32{0, 1, 2, 3}) {
		t.Errorf("sequences under the new id %v", got)
	}
}

func TestInvalidTicket(t *testing.T) {
	g := newFakeGateway(t)
	g.onBatch = func(_ *fakeGateway, _ *fakeSession, b fakeBatch) *fakeAck {
		if b.header.ProducerID == 101 {
			return refusal(b.part, CodeInvalidTicket, false)
		}
		return &fakeAck{ID: b.part, Offset: int64(b.header.BaseSequence)}
	}
	p := g.producer(ProducerOptions{})
	submitAll(t, p, 3)
	if err := p.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := sequences(g.seen(), 102); !slices.Equal(got, []uint32{0, 1, 2}) {
		t.Errorf("sequences under the new id %v", got)
	}
}

func TestBatchesInDoubtFailWithAnInvalidTicket(t *testing.T) {
	g := newFakeGateway(t)
	tries := map[uint32]int{}
	g.onBatch = func(_ *fakeGateway, _ *fakeSession, b fakeBatch) *fakeAck {
		tries[b.header.BaseSequence]++
		switch {
		case b.header.ProducerID != 101:
			return &fakeAck{ID: b.part}
		case tries[0] > 1:
			return refusal(b.part, CodeInvalidTicket, false)
		}
		return refusal(b.part, CodeTimedOut, b.header.BaseSequence == 0)
	}
	p := g.producer(ProducerOptions{})
	list := submitAll(t, p, 2)
	_, err := list[0].Wait(context.Background())
	var e *Error
	if !errors.As(err, &e) || !e.UnknownOutcome || e.Code != CodeInvalidTicket {
		t.Errorf("the batch in doubt: %v", err)
	}
	if _, err := list[1].Wait(context.Background()); err != nil {
		t.Errorf("the other batch: %v", err)
	}
}

func TestLostConnection(t *testing.T) {
	for _, notIdempotent := range []bool{false, true} {
		g := newFakeGateway(t)
		g.onBatch = func(g *fakeGateway, s *fakeSession, b fakeBatch) *fakeAck {
			if len(g.seen()) == 1 {
				s.ws.CloseNow()
				return nil
			}
			return &fakeAck{ID: b.part}
		}
		p := g.producer(ProducerOptions{NotIdempotent: notIdempotent})
		_, err := p.Send(context.Background(), Message{})
		all := g.seen()
		if notIdempotent {
			var e *Error
			if !errors.As(err, &e) || !e.UnknownOutcome || len(all) != 1 {
				t.Errorf("%d tries, and %v", len(all), err)
			}
			continue
		}
		if err != nil || len(all) != 2 || all[0].data != all[1].data {
			t.Errorf("%d tries, and %v", len(all), err)
		}
		// The ticket is presented before the batch on each connection.
		var order []string
		for _, op := range g.ops {
			if op == "use_producer" || op == "produce" {
				order = append(order, op)
			}
		}
		if !slices.Equal(order, []string{"use_producer", "produce", "use_producer", "produce"}) {
			t.Errorf("order %v", order)
		}
	}
}

func TestDeadline(t *testing.T) {
	g := newFakeGateway(t)
	g.onBatch = func(*fakeGateway, *fakeSession, fakeBatch) *fakeAck { return nil }
	p := g.producer(ProducerOptions{DeliveryTimeout: 50 * time.Millisecond, MaxInFlight: 1})
	list := submitAll(t, p, 2)
	for i, unknown := range []bool{true, false} {
		_, err := list[i].Wait(context.Background())
		var e *Error
		if !errors.As(err, &e) || e.Code != CodeTimedOut || e.UnknownOutcome != unknown {
			t.Errorf("record %d: %v", i, err)
		}
	}
	if err := p.Close(context.Background()); err != nil {
		t.Errorf("reported again: %v", err)
	}
}
