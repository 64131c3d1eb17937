package tidelog

import (
	"context"
	"errors"
	"time"
)

// ErrEnd says that a consumer has reached its end.
var ErrEnd = errors.New("the end is reached")

// ConsumerOptions are the options of a consumer. Zeros mean the defaults.
type ConsumerOptions struct {
	// BufferBytes is how much may wait in memory; 32 MiB.
	BufferBytes int
	// PartitionBytes is the same for a partition; 4 MiB.
	PartitionBytes int
	// Backoff is the pause before another try; 100 ms.
	Backoff time.Duration
	// ReadFrom is leader (the default) or any.
	ReadFrom string
	// Consistency is eventual (the default), bounded or linearizable.
	Consistency string
	// MaxStaleness is the bound of bounded; 0: none.
	MaxStaleness time.Duration
	// Isolation is committed (the default) or uncommitted.
	Isolation string
	// SkipUnreadable passes over batches that cannot be decoded.
	SkipUnreadable bool
}

func (o *ConsumerOptions) fill() error {
	if o.BufferBytes < 0 || o.PartitionBytes < 0 || o.Backoff < 0 || o.MaxStaleness < 0 {
		return invalid("negative option")
	}
	setDefault(&o.BufferBytes, 32<<20)
	setDefault(&o.PartitionBytes, 4<<20)
	setDefault(&o.Backoff, firstBackoff)
	return nil
}

// Record is a record that was read. A nil key or value is null.
type Record struct {
	Topic       string
	Partition   int
	Offset      int64
	LeaderEpoch int64
	TimestampMs int64
	Key, Value  []byte
	Headers     []Header
}

// TopicPartition names a partition.
type TopicPartition struct {
	Topic     string
	Partition int
}

// Range says what a consumer reads.
type Range struct {
	Start Place // the zero value means Earliest
	End   Place // the zero value means that there is none
	// Partitions to read; nil: all.
	Partitions []int
}

// Consumer reads the partitions of a topic. It is for one goroutine.
type Consumer struct {
	log   *Log
	topic *Topic
	fetch *fetcher
}

// NewConsumer opens a consumer of a topic.
func (l *Log) NewConsumer(ctx context.Context, topic string, what Range, options ConsumerOptions) (*Consumer, error) {
	if err := options.fill(); err != nil {
		return nil, err
	}
	t, err := l.topic(ctx, topic, false)
	if err != nil {
		return nil, err
	}
	chosen := what.Partitions
	if chosen == nil {
		for i := range t.Partitions {
			chosen = append(chosen, i)
		}
	}
	if what.Start.kind == placeNone {
		what.Start = Earliest
	}
	c := &Consumer{log: l, topic: t, fetch: newFetcher(l, options)}
	for _, i := range chosen {
		if err := c.add(ctx, i, what); err != nil {
			c.fetch.close()
			return nil, err
		}
	}
	l.atEnd(c, c.fetch.close)
	go c.fetch.run()
	return c, nil
}

// add looks up where a partition begins and ends.
func (c *Consumer) add(ctx context.Context, partition int, what Range) error {
	if partition < 0 || partition >= len(c.topic.Partitions) {
		return newError(CodeUnknownTopic, "topic %q has no partition %d", c.topic.Name, partition)
	}
	start, err := c.log.find(ctx, c.topic.ID, partition, what.Start)
	if err != nil {
		return err
	}
	end := int64(-1)
	if what.End.kind != placeNone {
		at, err := c.log.find(ctx, c.topic.ID, partition, what.End)
		if err != nil {
			return err
		}
		end = at.Offset
	}
	c.fetch.add(&feed{
		TopicPartition: TopicPartition{c.topic.Name, partition}, topicID: c.topic.ID,
		position: start, handed: start, end: end, done: end >= 0 && start.Offset == end,
	})
	return nil
}

// Next waits for records, and returns one at least and so many at most. At the
// end the error is ErrEnd. After another error the consumer tries again where
// it was.
func (c *Consumer) Next(ctx context.Context, most int) ([]Record, error) {
	return c.fetch.next(ctx, most)
}

// Positions tells where another consumer would go on.
func (c *Consumer) Positions() map[int]Position {
	positions := map[int]Position{}
	for at, position := range c.fetch.positions() {
		positions[at.Partition] = position
	}
	return positions
}

// Pause holds partitions back; none: all.
func (c *Consumer) Pause(partitions ...TopicPartition) error {
	return c.fetch.pause(partitions, true)
}

// Resume goes on with partitions; none: all.
func (c *Consumer) Resume(partitions ...TopicPartition) error {
	return c.fetch.pause(partitions, false)
}

// Seek goes to another place in partitions; none: in all.
func (c *Consumer) Seek(ctx context.Context, at Place, partitions ...TopicPartition) error {
	return c.fetch.seek(ctx, at, partitions)
}

// Assignment lists the partitions that are read.
func (c *Consumer) Assignment() []TopicPartition { return c.fetch.assignment() }

// Close ends the consumer.
func (c *Consumer) Close() {
	c.log.forget(c)
	c.fetch.close()
}
