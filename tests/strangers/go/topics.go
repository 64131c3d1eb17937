package tidelog

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"
)

// For how long a topic that is unknown is asked for again: one that this
// client has created, and any other.
const (
	createdPatience = 5 * time.Second
	unknownPatience = 500 * time.Millisecond
)

// Topic describes a topic.
type Topic struct {
	Name       string            `cbor:"name"`
	ID         string            `cbor:"topic_id"`
	Config     map[string]string `cbor:"config"`
	Partitions []Partition       `cbor:"partitions"`
}

// Partition describes a partition. The offsets are -1 where they are not known.
type Partition struct {
	Partition     int      `cbor:"partition"`
	Leader        string   `cbor:"leader"`
	LeaderEpoch   int64    `cbor:"leader_epoch"`
	ISR           []string `cbor:"isr"`
	Replicas      []string `cbor:"replicas"`
	LogStart      *int64   `cbor:"log_start"`
	HighWatermark *int64   `cbor:"high_watermark"`
	ReadOnly      bool     `cbor:"read_only"`
	Paused        bool     `cbor:"paused"`
}

// maxBatchBytes is the length of the largest batch that the topic takes.
func (t *Topic) maxBatchBytes() int {
	if n, err := strconv.Atoi(t.Config["max_batch_bytes"]); err == nil && n > 0 {
		return n
	}
	return 1 << 20
}

// NewTopic says how a topic is created. Zeros mean one.
type NewTopic struct {
	Name              string
	Partitions        int64
	ReplicationFactor int64
	Config            map[string]string
	// ExistOK: a topic that exists stays as it is.
	ExistOK bool
}

// CreateTopic creates a topic.
func (l *Log) CreateTopic(ctx context.Context, topic NewTopic) (*Topic, error) {
	if topic.Partitions < 0 || topic.ReplicationFactor < 0 {
		return nil, invalid("negative number of partitions or replicas")
	}
	err := l.call(ctx, "create_topic", &createTopicRequest{
		Name: topic.Name, Partitions: max(topic.Partitions, 1),
		ReplicationFactor: max(topic.ReplicationFactor, 1), Config: topic.Config, once: l.nextOnce(),
	}, nil)
	if err != nil && !(topic.ExistOK && AsError(err).Code == CodeTopicExists) {
		return nil, err
	}
	l.mu.Lock()
	l.created[topic.Name] = time.Now()
	l.mu.Unlock()
	return l.DescribeTopic(ctx, topic.Name)
}

// DeleteTopic deletes a topic with all its records.
func (l *Log) DeleteTopic(ctx context.Context, name string) error {
	l.mu.Lock()
	delete(l.created, name)
	l.mu.Unlock()
	return l.call(ctx, "delete_topic", &deleteTopicRequest{Name: name, once: l.nextOnce()}, nil)
}

// Topics returns the names of all topics, sorted.
func (l *Log) Topics(ctx context.Context) ([]string, error) {
	var answer metadataAnswer
	if err := l.metadata(ctx, &metadataRequest{AllTopics: true}, &answer); err != nil {
		return nil, err
	}
	names := []string{}
	for _, t := range answer.Topics {
		names = append(names, t.Name)
	}
	slices.Sort(names)
	return names, nil
}

// DescribeTopic describes a topic, with offsets that are asked from the
// leaders. It waits a moment for leaders that do not answer yet.
func (l *Log) DescribeTopic(ctx context.Context, name string) (*Topic, error) {
	ctx, cancel := until(ctx, l.options.RequestTimeout)
	defer cancel()
	for end := time.Now().Add(createdPatience); ; {
		topic, err := l.topic(ctx, name, true)
		if err != nil || topic.hasOffsets() || time.Now().After(end) || !sleep(ctx, firstBackoff) {
			return topic, err
		}
	}
}

func (t *Topic) hasOffsets() bool {
	return !slices.ContainsFunc(t.Partitions, func(p Partition) bool { return orNone(p.HighWatermark) < 0 })
}

// metadata asks for metadata, and learns the gateways that the answer names.
func (l *Log) metadata(ctx context.Context, r *metadataRequest, answer *metadataAnswer) error {
	err := l.call(ctx, "metadata", r, answer)
	if c, _, _ := l.look(); err == nil && c != nil {
		l.learn(answer.Gateways, c.url)
	}
	return err
}

// topic asks for the metadata of a topic.
func (l *Log) topic(ctx context.Context, name string, offsets bool) (*Topic, error) {
	for begin := time.Now(); ; {
		var answer metadataAnswer
		if err := l.metadata(ctx, &metadataRequest{Topics: []string{name}, Offsets: offsets}, &answer); err != nil {
			return nil, err
		}
		for _, t := range answer.Topics {
			if t.Name == name && len(t.Partitions) > 0 {
				return &t, nil
			}
		}
		l.mu.Lock()
		patience := unknownPatience
		if time.Since(l.created[name]) < createdPatience {
			patience = createdPatience
		}
		l.mu.Unlock()
		if time.Since(begin) > patience || !sleep(ctx, firstBackoff) {
			return nil, newError(CodeUnknownTopic, "there is no topic %q", name)
		}
	}
}

// Place is where a consumer begins or ends.
type Place struct {
	kind        placeKind
	offset      int64
	timestampMs int64
	positions   map[int]Position
}

type placeKind int

const (
	placeNone placeKind = iota
	placeEarliest
	placeLatest
	placeOffset
	placeTime
	placePositions
)

// The first record that is there, and the next that will be.
var (
	Earliest = Place{kind: placeEarliest}
	Latest   = Place{kind: placeLatest}
)

// AtOffset is the place of an offset, in each partition.
func AtOffset(offset int64) Place { return Place{kind: placeOffset, offset: offset} }

// AtTime is the place of the first record at or after a time, in milliseconds
// since 1970.
func AtTime(ms int64) Place { return Place{kind: placeTime, timestampMs: ms} }

// AtPositions are places by partition. In others it is the earliest record.
func AtPositions(positions map[int]Position) Place {
	return Place{kind: placePositions, positions: positions}
}

// Position is the offset of the next record, and the leader epoch of the one
// before it (-1: not known).
type Position struct {
	LeaderEpoch int64
	Offset      int64
}

// ListOffset looks up the place in a partition.
func (l *Log) ListOffset(ctx context.Context, topic string, partition int, at Place) (Position, error) {
	t, err := l.topic(ctx, topic, false)
	if err != nil {
		return Position{}, err
	}
	if partition < 0 || partition >= len(t.Partitions) {
		return Position{}, invalid("topic %q has no partition %d", topic, partition)
	}
	return l.find(ctx, t.ID, partition, at)
}

// find returns the position of a place.
func (l *Log) find(ctx context.Context, topicID string, partition int, at Place) (Position, error) {
	r := &listOffsetRequest{TopicID: topicID, Partition: int64(partition), At: "earliest", TimestampMs: -1}
	switch at.kind {
	case placeLatest:
		r.At = "latest"
	case placeTime:
		if at.timestampMs < 0 {
			return Position{}, invalid("negative time")
		}
		r.At, r.TimestampMs = "timestamp", at.timestampMs
	case placeOffset:
		if at.offset < 0 {
			return Position{}, invalid("negative offset")
		}
		return Position{-1, at.offset}, nil
	case placePositions:
		if p, ok := at.positions[partition]; ok {
			if p.Offset < 0 {
				return Position{}, invalid("negative offset")
			}
			return p, nil
		}
	}
	var answer offsetAnswer
	// A gateway that has just begun may not have heard of a new topic yet.
	for begin := time.Now(); ; {
		err := l.call(ctx, "list_offset", r, &answer)
		var e *Error
		if errors.As(err, &e) && e.Code == CodeUnknownTopic && time.Since(begin) < unknownPatience && sleep(ctx, firstBackoff) {
			continue
		}
		return Position{orNone(answer.LeaderEpoch), answer.Offset}, err
	}
}
