package tidelog

import (
	"errors"
	"slices"
	"time"

	"example.org/tidelog/internal/batch"
)

// feed is the state of a consumer in a partition. The lock of its fetcher
// guards it.
type feed struct {
	TopicPartition
	topicID  string
	begun    time.Time
	position Position // behind all that is decoded
	handed   Position // behind all that the program has got
	end      int64    // -1: none
	done     bool
	paused   bool
	halted   bool // after an error, until the program asks again
	resumeAt time.Time

	conn    *conn // of the subscription; nil: there is none
	sub     uint64
	credit  int64
	owed    int64    // credit that is to be given back
	arrived [][]byte // payloads
	records []Record // decoded, and not handed out
	err     *Error   // comes behind the records

	// Of members of a group:
	revoked   bool     // no more is handed out
	finished  Position // behind what the program has done with
	committed Position
}

// leave ends the subscription, and forgets what is not decoded.
func (f *feed) leave() {
	if f.conn != nil {
		f.conn.unsubscribe(f.sub)
	}
	f.conn, f.arrived, f.owed = nil, nil, 0
}

// moveTo goes to another position.
func (f *feed) moveTo(position Position) {
	f.leave()
	f.position, f.handed, f.records, f.err, f.halted = position, position, nil, nil, false
	f.done = f.end >= 0 && position.Offset == f.end
}

// fill decodes what has arrived until there are records, an error, or nothing
// more.
func (f *feed) fill(skipUnreadable bool) {
	for len(f.records) == 0 && f.err == nil && len(f.arrived) > 0 {
		payload := f.arrived[0]
		f.arrived = f.arrived[1:]
		f.owed += int64(len(payload))
		f.decode(payload, skipUnreadable)
	}
	if len(f.records) == 0 && f.err == nil {
		f.handed = f.position
	}
}

// decode takes the batches of a payload (rules 3 to 6 of the consumer).
func (f *feed) decode(payload []byte, skipUnreadable bool) {
	for len(payload) > 0 && !f.done {
		h, err := batch.ParseHeader(payload)
		if err != nil {
			f.fail("%v", err)
			return
		}
		data := payload[:h.BatchLength]
		payload = payload[h.BatchLength:]
		if h.NextOffset() <= f.position.Offset {
			continue
		}
		if h.BaseOffset > f.position.Offset {
			f.fail("a batch begins at %d, and records from %d on are missing", h.BaseOffset, f.position.Offset)
			return
		}
		if int64(h.LeaderEpoch) < f.position.LeaderEpoch {
			f.fail("the batch at %d is of leader epoch %d, the one before of %d", h.BaseOffset, h.LeaderEpoch, f.position.LeaderEpoch)
			return
		}
		_, records, err := batch.Decode(data)
		if err != nil && (!skipUnreadable || errors.Is(err, batch.ErrDamaged)) {
			f.fail("the batch at %d to %d of producer %d cannot be read: %v", h.BaseOffset, h.NextOffset()-1, h.ProducerID, err)
			return
		}
		for _, r := range records {
			if r.Offset >= f.position.Offset && (f.end < 0 || r.Offset < f.end) {
				f.records = append(f.records, Record{
					Topic: f.Topic, Partition: f.Partition, Offset: r.Offset, LeaderEpoch: int64(h.LeaderEpoch),
					TimestampMs: r.TimestampMs, Key: r.Key, Value: r.Value, Headers: r.Headers,
				})
			}
		}
		f.position = Position{int64(h.LeaderEpoch), h.NextOffset()}
		f.checkEnd()
	}
}

// checkEnd ends the subscription at the end.
func (f *feed) checkEnd() {
	if f.end >= 0 && f.position.Offset >= f.end {
		f.position.Offset = max(f.end, f.handed.Offset)
		f.done = true
		f.leave()
	}
}

// fail ends the subscription with an error.
func (f *feed) fail(format string, args ...any) {
	f.leave()
	f.err = newError(CodeCorruptBatch, format, args...)
}

// take hands out so many records at most, or an error.
func (f *feed) take(most int) ([]Record, error) {
	if len(f.records) == 0 {
		err := f.err
		if err == nil {
			return nil, nil
		}
		f.err, f.halted = nil, true
		return nil, err
	}
	n := min(most, len(f.records))
	taken := slices.Clone(f.records[:n])
	f.records = f.records[n:]
	last := taken[n-1]
	f.handed = Position{last.LeaderEpoch, last.Offset + 1}
	if len(f.records) == 0 {
		f.records = nil
		f.handed = f.position
	}
	return taken, nil
}

// repay gives credit back, a quarter at a time.
func (f *feed) repay() {
	if f.conn != nil && f.owed > 0 && f.owed >= f.credit/4 {
		// An error ends the connection, and with it the subscription.
		_ = f.conn.post(creditMessage{Op: "credit", Sub: f.sub, Bytes: f.owed})
		f.owed = 0
	}
}
