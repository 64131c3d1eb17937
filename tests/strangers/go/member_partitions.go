package tidelog

import (
	"context"
	"slices"
	"time"
)

// keepPartitions begins to read what is assigned, gives up what is revoked,
// and commits now and then.
func (m *Member) keepPartitions() {
	interval := m.options.AutoCommit
	if interval < 0 {
		interval = longWait
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		// What fails here is tried again: the next assignment tells what is still to be done.
		again := m.begin(m.ctx) != nil
		again = m.giveUp(m.ctx) != nil || again
		var retry <-chan time.Time
		if again {
			retry = time.After(firstBackoff)
		}
		select {
		case <-m.ctx.Done():
			return
		case <-m.work:
		case <-retry:
		case <-tick.C:
			m.fetch.mu.Lock()
			feeds := slices.Clone(m.fetch.feeds)
			m.fetch.mu.Unlock()
			_ = m.commit(m.ctx, feeds)
		}
	}
}

// begin reads partitions that are new from the position of the group.
func (m *Member) begin(ctx context.Context) error {
	m.fetch.mu.Lock()
	fresh := slices.Clone(m.starting)
	m.fetch.mu.Unlock()
	if len(fresh) == 0 {
		return nil
	}
	var answer fetchOffsetsAnswer
	err := m.log.call(ctx, "fetch_offsets", &fetchOffsetsRequest{Group: m.group, Parts: shares(fresh)}, &answer)
	if err != nil {
		return err
	}
	var found, first []*feed
	for _, f := range fresh {
		i := slices.IndexFunc(answer.Positions, func(p groupPosition) bool {
			return p.TopicID == f.topicID && p.Partition == f.Partition
		})
		if i >= 0 {
			f.position = Position{orNone(answer.Positions[i].LeaderEpoch), answer.Positions[i].Offset}
			f.handed, f.finished, f.committed = f.position, f.position, f.position
			found = append(found, f)
			continue
		}
		if f.position, err = m.log.find(ctx, f.topicID, f.Partition, m.options.Start); err != nil {
			return err
		}
		f.handed, f.finished, f.committed = f.position, f.position, Position{-1, -1}
		first = append(first, f)
	}
	m.read(found)
	if len(first) == 0 {
		return nil
	}
	if err := m.commit(ctx, first); err != nil {
		return err
	}
	m.read(first)
	return nil
}

// read begins to read partitions that are still assigned.
func (m *Member) read(feeds []*feed) {
	for _, f := range feeds {
		m.fetch.mu.Lock()
		count := len(m.starting)
		m.starting = slices.DeleteFunc(m.starting, func(other *feed) bool { return other == f })
		if len(m.starting) < count {
			f.begun = time.Now()
			m.fetch.feeds = append(m.fetch.feeds, f)
			m.fetch.tell()
		}
		m.fetch.mu.Unlock()
	}
}

// giveUp gives up what is revoked, once the program is done with its records.
func (m *Member) giveUp(ctx context.Context) error {
	m.fetch.mu.Lock()
	var done []*feed
	for _, f := range m.fetch.feeds {
		if f.revoked && (m.asking || f.handed == f.committed) {
			f.leave()
			done = append(done, f)
		}
	}
	m.fetch.mu.Unlock()
	if len(done) == 0 {
		return nil
	}
	if m.options.AutoCommit > 0 {
		if err := m.commit(ctx, done); err != nil && AsError(err).Retriable() {
			return err
		}
	}
	m.fetch.mu.Lock()
	m.fetch.feeds = slices.DeleteFunc(m.fetch.feeds, func(f *feed) bool { return f.revoked && slices.Contains(done, f) })
	m.fetch.tell()
	m.fetch.mu.Unlock()
	poke(m.beat)
	return nil
}

// commit commits what is finished in these partitions, as far as they are
// still the member's.
func (m *Member) commit(ctx context.Context, feeds []*feed) error {
	m.committing.Lock()
	defer m.committing.Unlock()
	for {
		r := &commitOffsetsRequest{Group: m.group, Member: m.name, Instance: m.options.Instance}
		positions := map[*feed]Position{}
		m.fetch.mu.Lock()
		r.Generation = m.generation
		for _, f := range feeds {
			mine := slices.Contains(m.fetch.feeds, f) || slices.Contains(m.starting, f)
			if !mine || f.finished == f.committed {
				continue
			}
			positions[f] = f.finished
			epoch := f.finished.LeaderEpoch
			r.Positions = append(r.Positions, groupPosition{f.topicID, f.Partition, f.finished.Offset, &epoch})
		}
		m.fetch.mu.Unlock()
		if len(r.Positions) == 0 {
			return nil
		}
		err := m.log.call(ctx, "commit_offsets", r, nil)
		if err == nil {
			m.fetch.mu.Lock()
			for f, position := range positions {
				f.committed = position
			}
			m.fetch.mu.Unlock()
			return nil
		}
		if isCode(err, CodeUnknownMember) {
			poke(m.beat) // its answer makes the member join again
			return err
		}
		if !isCode(err, CodeFencedGeneration) {
			return err
		}
		if !m.newGeneration(ctx, r.Generation) {
			return err
		}
	}
}

// newGeneration waits for a heartbeat, and tells whether the generation is
// another one after it.
func (m *Member) newGeneration(ctx context.Context, generation int64) bool {
	begin := time.Now()
	poke(m.beat)
	for sleep(ctx, 10*time.Millisecond) {
		m.fetch.mu.Lock()
		now, answered := m.generation, m.answered
		m.fetch.mu.Unlock()
		if now != generation {
			return true
		}
		if answered.After(begin) || time.Since(begin) > m.options.SessionTimeout {
			return false
		}
	}
	return false
}
