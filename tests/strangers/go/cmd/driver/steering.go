package main

import (
	"context"
	"encoding/json"
	"errors"

	"example.org/tidelog"
)

// pairs reads [[topic, partition], …].
func pairs(text json.RawMessage) ([]tidelog.TopicPartition, error) {
	var list [][2]json.RawMessage
	if len(text) == 0 {
		return nil, nil
	}
	err := json.Unmarshal(text, &list)
	out := make([]tidelog.TopicPartition, len(list))
	for i, pair := range list {
		err = errors.Join(err, json.Unmarshal(pair[0], &out[i].Topic), json.Unmarshal(pair[1], &out[i].Partition))
	}
	if err != nil {
		return nil, &tidelog.Error{Code: tidelog.CodeInvalidArgument, Message: err.Error()}
	}
	return out, nil
}

// steer does something with partitions of a consumer.
func steer(d *driver, c *command, do func(source, []tidelog.TopicPartition) error) (any, error) {
	reader := d.consumers[c.Consumer]
	if reader == nil {
		return nil, unknown("consumer", c.Consumer)
	}
	partitions, err := pairs(c.Partitions)
	if err != nil {
		return nil, err
	}
	return nil, do(reader.source, partitions)
}

func pause(d *driver, _ context.Context, c *command) (any, error) {
	return steer(d, c, func(s source, at []tidelog.TopicPartition) error { return s.Pause(at...) })
}

func resume(d *driver, _ context.Context, c *command) (any, error) {
	return steer(d, c, func(s source, at []tidelog.TopicPartition) error { return s.Resume(at...) })
}

func seek(d *driver, ctx context.Context, c *command) (any, error) {
	if c.At != nil {
		return steer(d, c, func(s source, at []tidelog.TopicPartition) error { return s.Seek(ctx, c.At.Place, at...) })
	}
	for _, entry := range c.Positions {
		var at tidelog.TopicPartition
		var to position
		if len(entry) != 3 {
			return nil, unknown("position", "")
		}
		err := errors.Join(json.Unmarshal(entry[0], &at.Topic), json.Unmarshal(entry[1], &at.Partition), json.Unmarshal(entry[2], &to))
		if err != nil {
			return nil, &tidelog.Error{Code: tidelog.CodeInvalidArgument, Message: err.Error()}
		}
		place := tidelog.AtPositions(map[int]tidelog.Position{at.Partition: to.of()})
		if _, err := steer(d, c, func(s source, _ []tidelog.TopicPartition) error { return s.Seek(ctx, place, at) }); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func assignment(d *driver, _ context.Context, c *command) (any, error) {
	reader := d.consumers[c.Consumer]
	if reader == nil {
		return nil, unknown("consumer", c.Consumer)
	}
	list := [][2]any{}
	for _, at := range reader.Assignment() {
		list = append(list, [2]any{at.Topic, at.Partition})
	}
	return map[string]any{"assignment": list}, nil
}
