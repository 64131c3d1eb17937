package tidelog

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	leastCredit = 64 << 10
	mostCredit  = 8 << 20
)

// fetcher subscribes to partitions, and hands out their records.
type fetcher struct {
	log     *Log
	options ConsumerOptions
	wake    chan struct{}

	mu     sync.Mutex
	feeds  []*feed
	cursor int
	news   chan struct{} // closed when there may be something to hand out
	closed *Error
}

func newFetcher(l *Log, options ConsumerOptions) *fetcher {
	return &fetcher{log: l, options: options, wake: make(chan struct{}, 1), news: make(chan struct{})}
}

// add begins to read a partition.
func (f *fetcher) add(feed *feed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	feed.begun = time.Now()
	f.feeds = append(f.feeds, feed)
	f.tell()
}

// tell wakes whoever waits for records, and run.
func (f *fetcher) tell() {
	close(f.news)
	f.news = make(chan struct{})
	poke(f.wake)
}

func (f *fetcher) close() { f.end(newError(CodeClosed, "the consumer is closed")) }

// end closes the fetcher for that reason.
func (f *fetcher) end(reason *Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed != nil {
		return
	}
	f.closed = reason
	for _, feed := range f.feeds {
		feed.leave()
	}
	f.tell()
}

// run keeps the partitions subscribed.
func (f *fetcher) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		c, changed, fatal := f.log.look()
		if fatal != nil {
			f.end(fatal)
		}
		f.mu.Lock()
		if f.closed != nil {
			f.mu.Unlock()
			return
		}
		wait := f.subscribe(c)
		f.mu.Unlock()
		var lost <-chan struct{}
		if c != nil && c.isAlive() {
			lost = c.done
		}
		timer.Reset(wait)
		select {
		case <-f.wake:
		case <-changed:
		case <-lost:
		case <-timer.C:
		}
	}
}

// subscribe subscribes to what is not subscribed, and returns when to look
// again.
func (f *fetcher) subscribe(c *conn) time.Duration {
	wait := longWait
	for _, feed := range f.feeds {
		if feed.conn != nil && !feed.conn.isAlive() {
			feed.leave()
		}
		if feed.conn != nil || feed.done || feed.paused || feed.halted || feed.revoked || feed.err != nil || c == nil || !c.isAlive() {
			continue
		}
		if until := time.Until(feed.resumeAt); until > 0 {
			wait = min(wait, until)
			continue
		}
		f.open(c, feed)
	}
	return wait
}

// open sends a subscribe from the feed's position.
func (f *fetcher) open(c *conn, feed *feed) {
	share := min(f.options.PartitionBytes, f.options.BufferBytes/len(f.feeds))
	feed.credit = int64(min(max(share, leastCredit), mostCredit))
	feed.conn, feed.arrived, feed.owed = c, nil, 0
	r := &subscribeRequest{
		TopicID: feed.topicID, Partition: int64(feed.Partition), Offset: feed.position.Offset, LastEpoch: feed.position.LeaderEpoch,
		Credit: feed.credit, ReadFrom: f.options.ReadFrom, Consistency: f.options.Consistency, Isolation: f.options.Isolation,
	}
	if f.options.MaxStaleness > 0 {
		ms := f.options.MaxStaleness.Milliseconds()
		r.MaxStalenessMs = &ms
	}
	sub := new(uint64)
	current := func() bool { return feed.conn == c && feed.sub == *sub }
	answer := func(err error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if !current() {
			return
		}
		if err != nil {
			f.refused(feed, err)
		} else {
			feed.checkEnd()
		}
		f.tell()
	}
	*sub = c.subscribe(r, func(err error) { go answer(err) }, func(m message) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if !current() {
			return
		}
		if len(m.payload) > 0 {
			feed.arrived = append(feed.arrived, m.payload)
		}
		if m.Error != nil {
			f.refused(feed, m.Error)
		}
		f.tell()
	})
	feed.sub = *sub
}

// refused takes the error that has ended a subscription (rule 9).
func (f *fetcher) refused(feed *feed, err error) {
	feed.conn = nil
	var e *Error
	switch {
	case !errors.As(err, &e): // the connection has ended
		feed.arrived = nil
	case e.Retriable(), e.Code == CodeUnknownTopic && time.Since(feed.begun) < unknownPatience:
		feed.arrived = nil
		feed.resumeAt = time.Now().Add(e.pause(f.options.Backoff))
	default:
		feed.fill(f.options.SkipUnreadable)
		feed.err = e.at(feed)
	}
}

// at returns a copy of an error of a subscription that names its position.
func (e *Error) at(feed *feed) *Error {
	other := e.doubtful(false)
	if other.Detail == nil {
		other.Detail = map[string]string{}
	}
	other.Detail["topic"] = feed.Topic
	other.Detail["partition"] = strconv.Itoa(feed.Partition)
	other.Detail["offset"] = strconv.FormatInt(feed.position.Offset, 10)
	return other
}

// next waits for records.
func (f *fetcher) next(ctx context.Context, most int) ([]Record, error) {
	for {
		f.mu.Lock()
		records, err := f.take(most)
		news := f.news
		f.mu.Unlock()
		if len(records) > 0 || err != nil {
			return records, err
		}
		select {
		case <-news:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// take hands out records of the partition whose turn it is.
func (f *fetcher) take(most int) ([]Record, error) {
	if f.closed != nil {
		return nil, f.closed
	}
	ended := len(f.feeds) > 0
	for i := range f.feeds {
		at := (f.cursor + i) % len(f.feeds)
		feed := f.feeds[at]
		if feed.paused || feed.revoked {
			ended = false
			continue
		}
		if feed.halted {
			feed.halted = false
			f.tell()
		}
		feed.fill(f.options.SkipUnreadable)
		records, err := feed.take(most)
		feed.repay()
		if len(records) > 0 || err != nil {
			f.cursor = at
			if len(feed.records) == 0 {
				f.cursor++
			}
			return records, err
		}
		ended = ended && feed.done
	}
	if ended {
		return nil, ErrEnd
	}
	return nil, nil
}

func (f *fetcher) positions() map[TopicPartition]Position {
	f.mu.Lock()
	defer f.mu.Unlock()
	positions := map[TopicPartition]Position{}
	for _, feed := range f.feeds {
		positions[feed.TopicPartition] = feed.handed
	}
	return positions
}

func (f *fetcher) assignment() []TopicPartition {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := []TopicPartition{}
	for _, feed := range f.feeds {
		if !feed.revoked {
			list = append(list, feed.TopicPartition)
		}
	}
	return list
}

// pick returns the feeds of partitions; none: all.
func (f *fetcher) pick(partitions []TopicPartition) ([]*feed, error) {
	if len(partitions) == 0 {
		return slices.Clone(f.feeds), nil
	}
	var picked []*feed
	for _, at := range partitions {
		i := slices.IndexFunc(f.feeds, func(feed *feed) bool { return feed.TopicPartition == at })
		if i < 0 {
			return nil, newError(CodeUnknownTopic, "%s/%d is not read", at.Topic, at.Partition)
		}
		picked = append(picked, f.feeds[i])
	}
	return picked, nil
}

func (f *fetcher) pause(partitions []TopicPartition, paused bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	feeds, err := f.pick(partitions)
	for _, feed := range feeds {
		feed.paused = paused
	}
	f.tell()
	return err
}

func (f *fetcher) seek(ctx context.Context, at Place, partitions []TopicPartition) error {
	f.mu.Lock()
	feeds, err := f.pick(partitions)
	f.mu.Unlock()
	for _, feed := range feeds {
		position, err := f.log.find(ctx, feed.topicID, feed.Partition, at)
		if err != nil {
			return err
		}
		f.mu.Lock()
		feed.moveTo(position)
		f.tell()
		f.mu.Unlock()
	}
	return err
}
