package tidelog

import (
	"context"
	"errors"
	"slices"
	"time"
)

// join becomes a member, and takes the share.
func (m *Member) join(ctx context.Context) error {
	sent := time.Now()
	var answer memberAnswer
	err := m.log.call(ctx, "join_group", &joinGroupRequest{
		Group: m.group, Member: m.name, Topics: m.topics, Instance: m.options.Instance, Assignor: m.options.Assignor,
		SessionTimeoutMs:   m.options.SessionTimeout.Milliseconds(),
		RebalanceTimeoutMs: m.options.RebalanceTimeout.Milliseconds(), Node: m.log.options.Name,
	}, &answer)
	if err != nil {
		return err
	}
	m.fetch.mu.Lock()
	m.interval = max(time.Duration(answer.HeartbeatMs)*time.Millisecond, 50*time.Millisecond)
	m.fetch.mu.Unlock()
	m.assign(answer, sent)
	return nil
}

// keepMember sends heartbeats, and joins again when the membership is lost.
func (m *Member) keepMember() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	sent := time.Now()
	for {
		m.fetch.mu.Lock()
		interval := m.interval
		m.fetch.mu.Unlock()
		timer.Reset(time.Until(sent.Add(interval)))
		select {
		case <-m.ctx.Done():
			return
		case <-timer.C:
		case <-m.beat:
		}
		sent = time.Now()
		err := m.heartbeat(m.ctx)
		for err != nil && m.ctx.Err() == nil {
			if !isLost(err) {
				m.fetch.end(AsError(err))
				return
			}
			m.lose()
			err = m.join(m.ctx)
			if err != nil && AsError(err).Retriable() {
				sleep(m.ctx, firstBackoff)
				err = newError(CodeUnknownMember, "%v", err)
			}
		}
	}
}

// isLost tells whether the member may join again after this error.
func isLost(err error) bool {
	e := AsError(err)
	return e.Code == CodeUnknownMember || e.Code == CodeFencedGeneration || e.Retriable()
}

// heartbeat sends one, and takes the share. It fails when the session is over.
func (m *Member) heartbeat(ctx context.Context) error {
	m.fetch.mu.Lock()
	r := &heartbeatRequest{
		Group: m.group, Member: m.name, Generation: m.generation, Owned: m.owned(), Instance: m.options.Instance,
	}
	over := m.answered.Add(m.options.SessionTimeout)
	m.fetch.mu.Unlock()
	ctx, cancel := context.WithDeadline(ctx, over)
	defer cancel()
	for {
		sent := time.Now()
		var answer memberAnswer
		err := m.log.call(ctx, "group_heartbeat", r, &answer)
		if err == nil {
			m.assign(answer, sent)
			return nil
		}
		if !AsError(err).Retriable() || !sleep(ctx, firstBackoff) {
			return err
		}
	}
}

// owned is all that the member owns, what it gives up included.
func (m *Member) owned() []topicShare {
	return shares(slices.Concat(m.fetch.feeds, m.starting))
}

// shares groups partitions by topic.
func shares(feeds []*feed) []topicShare {
	var list []topicShare
	for _, f := range feeds {
		i := slices.IndexFunc(list, func(s topicShare) bool { return s.TopicID == f.topicID })
		if i < 0 {
			i = len(list)
			list = append(list, topicShare{TopicID: f.topicID})
		}
		list[i].Partitions = append(list[i].Partitions, f.Partition)
	}
	for _, s := range list {
		slices.Sort(s.Partitions)
	}
	return list
}

// assign takes over a share: what is missing in it is to be given up, what is
// new begins.
func (m *Member) assign(answer memberAnswer, sent time.Time) {
	m.fetch.mu.Lock()
	defer m.fetch.mu.Unlock()
	m.generation, m.answered = answer.Generation, sent
	type key struct {
		topicID   string
		partition int
	}
	names := map[key]string{}
	for _, share := range answer.Assignment {
		for _, partition := range share.Partitions {
			names[key{share.TopicID, partition}] = share.Topic
		}
	}
	take := func(f *feed) bool {
		_, mine := names[key{f.topicID, f.Partition}]
		delete(names, key{f.topicID, f.Partition})
		return mine
	}
	for _, f := range m.fetch.feeds {
		f.revoked = !take(f)
	}
	count := len(m.starting)
	m.starting = slices.DeleteFunc(m.starting, func(f *feed) bool { return !take(f) })
	if len(m.starting) < count {
		poke(m.beat)
	}
	for k, name := range names {
		m.starting = append(m.starting, &feed{TopicPartition: TopicPartition{name, k.partition}, topicID: k.topicID, end: -1})
	}
	poke(m.work)
	m.fetch.tell()
}

// lose forgets all partitions: others may own them by now.
func (m *Member) lose() {
	m.fetch.mu.Lock()
	defer m.fetch.mu.Unlock()
	for _, f := range m.fetch.feeds {
		f.leave()
	}
	m.fetch.feeds, m.starting = nil, nil
	m.fetch.tell()
}

// isCode tells whether the error has that code.
func isCode(err error, code string) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}
