package main

import (
	"context"
	"time"

	"example.org/tidelog"
)

func init() {
	features = append(features, "groups")
	commands["open_member"] = withLog(openMember)
	commands["commit"] = commit
	commands["describe_group"] = withLog(describeGroup)
}

func openMember(d *driver, ctx context.Context, c *command, l *tidelog.Log) (any, error) {
	o, err := c.options()
	if err != nil {
		return nil, err
	}
	g := tidelog.GroupOptions{
		ConsumerOptions: o.consumer(), Start: c.Start.or(tidelog.Place{}), AutoCommit: o.autoCommit(5 * time.Second),
		SessionTimeout: seconds(o.SessionS), RebalanceTimeout: seconds(o.RebalanceS), Assignor: o.Assignor, Instance: o.Instance,
	}
	if g.AutoCommit == 0 {
		g.AutoCommit = -1
	}
	m, err := l.JoinGroup(ctx, c.Group, c.Topics, g)
	if err == nil {
		d.consumers[c.Consumer] = &consumer{source: m}
	}
	return nil, err
}

func commit(d *driver, ctx context.Context, c *command) (any, error) {
	reader := d.consumers[c.Consumer]
	if reader == nil {
		return nil, unknown("consumer", c.Consumer)
	}
	m, ok := reader.source.(*tidelog.Member)
	if !ok {
		return nil, unknown("member", c.Consumer)
	}
	return nil, m.Commit(ctx)
}

func describeGroup(_ *driver, ctx context.Context, c *command, l *tidelog.Log) (any, error) {
	g, err := l.DescribeGroup(ctx, c.Group)
	if err != nil {
		return nil, err
	}
	positions := [][4]any{}
	for _, p := range g.Positions {
		positions = append(positions, [4]any{p.TopicID, p.Partition, p.Offset, p.LeaderEpoch})
	}
	return map[string]any{"state": g.State, "coordinator": g.Coordinator, "members": g.Members, "positions": positions}, nil
}
