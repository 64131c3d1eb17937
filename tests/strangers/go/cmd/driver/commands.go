package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"example.org/tidelog"
)

type handler func(d *driver, ctx context.Context, c *command) (any, error)

// commands by the name in "do". Those of groups and access are added by their
// files.
var commands = map[string]handler{
	"hello": func(*driver, context.Context, *command) (any, error) {
		return map[string]any{"features": features}, nil
	},
	"connect":        connect,
	"close":          closeLog,
	"create_topic":   createTopic,
	"delete_topic":   withLog(deleteTopic),
	"topics":         withLog(topics),
	"describe":       withLog(describe),
	"list_offset":    withLog(listOffset),
	"open_producer":  withLog(openProducer),
	"send":           send,
	"submit":         submit,
	"flush":          flush,
	"close_producer": closeProducer,
	"open_consumer":  withLog(openConsumer),
	"next":           next,
	"positions":      positions,
	"close_consumer": closeConsumer,
	"pause":          pause,
	"resume":         resume,
	"seek":           seek,
	"assignment":     assignment,
}

var features = []string{"zstd", "lz4", "expected_offset", "discover", "access"}

func unknown(kind, name string) error {
	return &tidelog.Error{Code: tidelog.CodeInvalidArgument, Message: fmt.Sprintf("no %s %q is open", kind, name)}
}

// withLog finds the log that the command names.
func withLog(do func(*driver, context.Context, *command, *tidelog.Log) (any, error)) handler {
	return func(d *driver, ctx context.Context, c *command) (any, error) {
		l := d.logs[c.Log]
		if l == nil {
			return nil, unknown("log", c.Log)
		}
		return do(d, ctx, c, l)
	}
}

func connect(d *driver, ctx context.Context, c *command) (any, error) {
	l, err := tidelog.Connect(ctx, tidelog.Options{
		URLs: c.URLs, Token: c.Token, ConnectTimeout: seconds(c.ConnectTimeoutS), Name: "go-driver",
	})
	if err == nil {
		d.logs[c.Log] = l
	}
	return nil, err
}

func closeLog(d *driver, _ context.Context, c *command) (any, error) {
	l := d.logs[c.Log]
	if l == nil {
		return nil, unknown("log", c.Log)
	}
	delete(d.logs, c.Log)
	l.Close()
	return nil, nil
}

func createTopic(d *driver, ctx context.Context, c *command) (any, error) {
	l := d.logs[c.Log]
	if l == nil {
		return nil, unknown("log", c.Log)
	}
	topic := tidelog.NewTopic{
		Name: c.Topic, ReplicationFactor: c.ReplicationFactor, ExistOK: c.ExistOK, Config: map[string]string{},
	}
	if len(c.Partitions) > 0 {
		if err := json.Unmarshal(c.Partitions, &topic.Partitions); err != nil {
			return nil, &tidelog.Error{Code: tidelog.CodeInvalidArgument, Message: err.Error()}
		}
	}
	for name, value := range c.Config {
		switch v := value.(type) {
		case float64:
			topic.Config[name] = strconv.FormatFloat(v, 'f', -1, 64)
		default:
			topic.Config[name] = fmt.Sprint(v)
		}
	}
	t, err := l.CreateTopic(ctx, topic)
	return topicFields(t), err
}

func deleteTopic(_ *driver, ctx context.Context, c *command, l *tidelog.Log) (any, error) {
	return nil, l.DeleteTopic(ctx, c.Topic)
}

func topics(_ *driver, ctx context.Context, _ *command, l *tidelog.Log) (any, error) {
	names, err := l.Topics(ctx)
	return map[string]any{"topics": names}, err
}

func describe(_ *driver, ctx context.Context, c *command, l *tidelog.Log) (any, error) {
	t, err := l.DescribeTopic(ctx, c.Topic)
	return topicFields(t), err
}

func topicFields(t *tidelog.Topic) any {
	if t == nil {
		return nil
	}
	partitions := []map[string]any{}
	for _, p := range t.Partitions {
		partitions = append(partitions, map[string]any{
			"partition": p.Partition, "leader": p.Leader, "leader_epoch": p.LeaderEpoch, "isr": p.ISR, "replicas": p.Replicas,
			"log_start": orNone(p.LogStart), "high_watermark": orNone(p.HighWatermark),
		})
	}
	return map[string]any{"name": t.Name, "topic_id": t.ID, "partitions": partitions}
}

func orNone(n *int64) int64 {
	if n == nil {
		return -1
	}
	return *n
}

func listOffset(_ *driver, ctx context.Context, c *command, l *tidelog.Log) (any, error) {
	at, err := l.ListOffset(ctx, c.Topic, c.Partition, c.At.or(tidelog.Earliest))
	return map[string]any{"offset": at.Offset, "leader_epoch": at.LeaderEpoch}, err
}

func openProducer(d *driver, ctx context.Context, c *command, l *tidelog.Log) (any, error) {
	o, err := c.options()
	if err != nil {
		return nil, err
	}
	po, err := o.producer()
	if err != nil {
		return nil, err
	}
	p, err := l.NewProducer(ctx, c.Topic, po)
	if err == nil {
		d.producers[c.Producer] = &producer{Producer: p}
	}
	return nil, err
}

func send(d *driver, ctx context.Context, c *command) (any, error) {
	p := d.producers[c.Producer]
	if p == nil || c.Record == nil {
		return nil, unknown("producer", c.Producer)
	}
	ack, err := p.Send(ctx, c.Record.message())
	return ackFields(ack), err
}

func submit(d *driver, ctx context.Context, c *command) (any, error) {
	p := d.producers[c.Producer]
	if p == nil {
		return nil, unknown("producer", c.Producer)
	}
	for _, r := range c.Records {
		pending, err := p.Submit(ctx, r.message())
		if err != nil && tidelog.AsError(err).Code == tidelog.CodeInvalidArgument {
			return nil, err
		}
		p.submitted = append(p.submitted, outcome{pending, err})
	}
	return nil, nil
}

func flush(d *driver, ctx context.Context, c *command) (any, error) {
	p := d.producers[c.Producer]
	if p == nil {
		return nil, unknown("producer", c.Producer)
	}
	if err := p.Flush(ctx); err != nil {
		return nil, err
	}
	outcomes := []map[string]any{}
	for _, o := range p.submitted {
		ack, err := tidelog.Ack{}, o.err
		if err == nil {
			ack, err = o.pending.Wait(ctx)
		}
		if err != nil {
			outcomes = append(outcomes, map[string]any{"error": errorFields(err)})
		} else {
			outcomes = append(outcomes, map[string]any{"ack": ackFields(ack)})
		}
	}
	p.submitted = nil
	return map[string]any{"outcomes": outcomes}, nil
}

func closeProducer(d *driver, ctx context.Context, c *command) (any, error) {
	p := d.producers[c.Producer]
	if p == nil {
		return nil, unknown("producer", c.Producer)
	}
	delete(d.producers, c.Producer)
	return nil, p.Close(ctx)
}

func openConsumer(d *driver, ctx context.Context, c *command, l *tidelog.Log) (any, error) {
	o, err := c.options()
	if err != nil {
		return nil, err
	}
	what := tidelog.Range{Start: c.Start.or(tidelog.Place{}), End: c.End.or(tidelog.Place{})}
	if len(c.Partitions) > 0 {
		if err := json.Unmarshal(c.Partitions, &what.Partitions); err != nil {
			return nil, &tidelog.Error{Code: tidelog.CodeInvalidArgument, Message: err.Error()}
		}
	}
	reader, err := l.NewConsumer(ctx, c.Topic, what, o.consumer())
	if err == nil {
		d.consumers[c.Consumer] = &consumer{source: reader}
	}
	return nil, err
}

func next(d *driver, ctx context.Context, c *command) (any, error) {
	reader := d.consumers[c.Consumer]
	if reader == nil {
		return nil, unknown("consumer", c.Consumer)
	}
	end := false
	for len(reader.kept) < c.Count {
		most := c.Count - len(reader.kept)
		if _, ok := reader.source.(*tidelog.Member); ok {
			most = 1 // each record counts as finished when the next one is asked for
		}
		records, err := reader.Next(ctx, most)
		if errors.Is(err, tidelog.ErrEnd) {
			end = true
			break
		}
		if err != nil {
			return nil, err
		}
		reader.kept = append(reader.kept, records...)
	}
	list := []map[string]any{}
	for _, r := range reader.kept[:min(c.Count, len(reader.kept))] {
		list = append(list, received(r))
	}
	reader.kept = reader.kept[len(list):]
	return map[string]any{"records": list, "end": end}, nil
}

func positions(d *driver, _ context.Context, c *command) (any, error) {
	reader := d.consumers[c.Consumer]
	if reader == nil {
		return nil, unknown("consumer", c.Consumer)
	}
	plain, ok := reader.source.(*tidelog.Consumer)
	if !ok {
		return nil, unknown("plain consumer", c.Consumer)
	}
	list := map[string]position{}
	for partition, at := range plain.Positions() {
		list[strconv.Itoa(partition)] = position{at.LeaderEpoch, at.Offset}
	}
	return map[string]any{"positions": list}, nil
}

func closeConsumer(d *driver, ctx context.Context, c *command) (any, error) {
	reader := d.consumers[c.Consumer]
	if reader == nil {
		return nil, unknown("consumer", c.Consumer)
	}
	delete(d.consumers, c.Consumer)
	switch s := reader.source.(type) {
	case *tidelog.Consumer:
		s.Close()
	case interface{ Close(context.Context) error }:
		return nil, s.Close(ctx)
	}
	return nil, nil
}
