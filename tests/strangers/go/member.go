package tidelog

import (
	"context"
	"slices"
	"sync"
	"time"
)

// GroupOptions are the options of a member of a group. Zeros mean the
// defaults.
type GroupOptions struct {
	ConsumerOptions
	// Start is where a partition begins in which the group has no position;
	// Earliest.
	Start Place
	// AutoCommit is how often what is finished is committed; 5 s. Negative:
	// only Commit commits.
	AutoCommit time.Duration
	// SessionTimeout is how long a member may be silent; 45 s.
	SessionTimeout time.Duration
	// RebalanceTimeout is how long it may take to give a partition up; 60 s.
	RebalanceTimeout time.Duration
	// Assignor is sticky or range; empty: that of the group.
	Assignor string
	// Instance is the name of a static member.
	Instance string
}

// Member is a consumer that shares the partitions of topics with the other
// members of its group. Next, Commit and Close are for one goroutine.
type Member struct {
	log     *Log
	options GroupOptions
	group   string
	name    string
	topics  []string
	fetch   *fetcher
	beat    chan struct{} // a heartbeat is due
	work    chan struct{} // partitions begin or are given up
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	committing sync.Mutex // one commit at a time

	// The lock of fetch guards these.
	generation int64
	interval   time.Duration
	answered   time.Time // when the last request with an answer was sent
	starting   []*feed   // assigned, and not read yet
	asking     bool      // the program waits for records
}

// JoinGroup becomes a member of a group that reads topics.
func (l *Log) JoinGroup(ctx context.Context, group string, topics []string, options GroupOptions) (*Member, error) {
	if err := options.fill(); err != nil {
		return nil, err
	}
	if len(topics) == 0 {
		return nil, invalid("no topics")
	}
	if options.Start.kind == placeNone {
		options.Start = Earliest
	}
	setDefault(&options.AutoCommit, 5*time.Second)
	setDefault(&options.SessionTimeout, 45*time.Second)
	setDefault(&options.RebalanceTimeout, time.Minute)
	m := &Member{
		log: l, options: options, group: group, name: randomName(), topics: slices.Clone(topics),
		fetch: newFetcher(l, options.ConsumerOptions), beat: make(chan struct{}, 1), work: make(chan struct{}, 1),
	}
	m.ctx, m.cancel = context.WithCancel(l.ctx)
	if err := m.join(ctx); err != nil {
		m.cancel()
		return nil, err
	}
	_ = m.begin(ctx) // what fails is tried again by keepPartitions
	l.atEnd(m, m.stop)
	m.running.Go(m.fetch.run)
	m.running.Go(m.keepMember)
	m.running.Go(m.keepPartitions)
	return m, nil
}

// Next waits for records, and returns one at least and so many at most. The
// records that it returned before count as finished.
func (m *Member) Next(ctx context.Context, most int) ([]Record, error) {
	m.ask(true)
	defer m.ask(false)
	return m.fetch.next(ctx, most)
}

// ask notes whether the program waits for records.
func (m *Member) ask(asking bool) {
	m.fetch.mu.Lock()
	defer m.fetch.mu.Unlock()
	m.asking = asking
	if asking {
		revoked := false
		for _, f := range m.fetch.feeds {
			f.finished = f.handed
			revoked = revoked || f.revoked
		}
		if revoked {
			poke(m.work)
		}
	}
}

// Commit commits the positions after all records that Next has returned.
func (m *Member) Commit(ctx context.Context) error {
	m.fetch.mu.Lock()
	feeds := slices.Clone(m.fetch.feeds)
	for _, f := range feeds {
		f.finished = f.handed
	}
	m.fetch.mu.Unlock()
	defer poke(m.work)
	return m.commit(ctx, feeds)
}

// Pause holds partitions back; none: all.
func (m *Member) Pause(partitions ...TopicPartition) error { return m.fetch.pause(partitions, true) }

// Resume goes on with partitions; none: all.
func (m *Member) Resume(partitions ...TopicPartition) error { return m.fetch.pause(partitions, false) }

// Seek goes to another place in partitions; none: in all.
func (m *Member) Seek(ctx context.Context, at Place, partitions ...TopicPartition) error {
	return m.fetch.seek(ctx, at, partitions)
}

// Assignment lists the partitions that the member reads.
func (m *Member) Assignment() []TopicPartition { return m.fetch.assignment() }

// Close commits what is finished, unless only Commit does, and leaves the
// group.
func (m *Member) Close(ctx context.Context) error {
	var err error
	if m.options.AutoCommit > 0 {
		m.fetch.mu.Lock()
		feeds := slices.Clone(m.fetch.feeds)
		m.fetch.mu.Unlock()
		err = m.commit(ctx, feeds)
	}
	m.log.forget(m)
	m.stop()
	m.running.Wait()
	left := m.log.call(ctx, "leave_group", &leaveGroupRequest{Group: m.group, Member: m.name}, nil)
	if err == nil {
		err = left
	}
	return err
}

// stop ends the goroutines of the member.
func (m *Member) stop() {
	m.fetch.close()
	m.cancel()
}

// GroupInfo describes a group.
type GroupInfo struct {
	State, Coordinator string
	Members            int
	Positions          []GroupPosition
}

// GroupPosition is how far a group has come in a partition.
type GroupPosition struct {
	TopicID   string
	Partition int
	Position
}

// DescribeGroup describes a group.
func (l *Log) DescribeGroup(ctx context.Context, group string) (*GroupInfo, error) {
	var answer describeGroupAnswer
	if err := l.call(ctx, "describe_group", &describeGroupRequest{Group: group}, &answer); err != nil {
		return nil, err
	}
	info := &GroupInfo{State: answer.State, Coordinator: answer.Coordinator, Members: len(answer.Members)}
	for _, p := range answer.Positions {
		info.Positions = append(info.Positions, GroupPosition{p.TopicID, p.Partition, Position{orNone(p.LeaderEpoch), p.Offset}})
	}
	return info, nil
}
