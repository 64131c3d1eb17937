package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"example.org/tidelog"
)

// command has the fields of all commands.
type command struct {
	Log, Producer, Consumer, Topic, Token, Principal, Group string

	URLs              []string            `json:"urls"`
	ConnectTimeoutS   float64             `json:"connect_timeout_s"`
	Partitions        json.RawMessage     `json:"partitions"`
	ReplicationFactor int64               `json:"replication_factor"`
	Config            map[string]any      `json:"config"`
	ExistOK           bool                `json:"exist_ok"`
	Partition         int                 `json:"partition"`
	At                *place              `json:"at"`
	Start             *place              `json:"start"`
	End               *place              `json:"end"`
	Positions         [][]json.RawMessage `json:"positions"`
	Options           json.RawMessage     `json:"options"`
	Record            *record             `json:"record"`
	Records           []record            `json:"records"`
	Count             int                 `json:"count"`
	Topics            []string            `json:"topics"`
	LifetimeS         float64             `json:"lifetime_s"`
	TokenID           string              `json:"token_id"`
	GraceS            float64             `json:"grace_s"`
	Add               []tidelog.Rule      `json:"add"`
	Remove            []tidelog.Rule      `json:"remove"`
	Quotas            []tidelog.Quota     `json:"quotas"`
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// record is a record to send.
type record struct {
	Value          []byte   `json:"value"`
	Key            []byte   `json:"key"`
	Headers        []header `json:"headers"`
	Partition      *int     `json:"partition"`
	TimestampMs    *int64   `json:"timestamp_ms"`
	ExpectedOffset *int64   `json:"expected_offset"`
}

func (r record) message() tidelog.Message {
	m := tidelog.Message{
		Key: r.Key, Value: r.Value, Partition: r.Partition, TimestampMs: r.TimestampMs, ExpectedOffset: r.ExpectedOffset,
	}
	for _, h := range r.Headers {
		m.Headers = append(m.Headers, tidelog.Header(h))
	}
	return m
}

// header is [name, bytes].
type header tidelog.Header

func (h *header) UnmarshalJSON(text []byte) error {
	pair := [2]any{&h.Name, &h.Value}
	return json.Unmarshal(text, &pair)
}

func (h header) MarshalJSON() ([]byte, error) { return json.Marshal([2]any{h.Name, notNull(h.Value)}) }

func notNull(data []byte) []byte {
	if data == nil {
		return []byte{}
	}
	return data
}

// received is a record that was read.
func received(r tidelog.Record) map[string]any {
	headers := []header{}
	for _, h := range r.Headers {
		headers = append(headers, header(h))
	}
	return map[string]any{
		"topic": r.Topic, "partition": r.Partition, "offset": r.Offset, "leader_epoch": r.LeaderEpoch, "timestamp_ms": r.TimestampMs,
		"key": r.Key, "value": r.Value, "headers": headers,
	}
}

func ackFields(a tidelog.Ack) map[string]any {
	return map[string]any{
		"partition": a.Partition, "offset": a.Offset, "leader_epoch": a.LeaderEpoch, "durability": a.Durability,
	}
}

// errorFields is an error as the suite reads it.
func errorFields(err error) map[string]any {
	e := tidelog.AsError(err)
	detail := map[string]any{}
	for key, text := range e.Detail {
		detail[key] = text
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			detail[key] = n
		}
	}
	fields := map[string]any{
		"code": e.Code, "message": e.Message, "retriable": e.Retriable(), "unknown_outcome": e.UnknownOutcome, "detail": detail,
	}
	if e.Failed > 0 {
		fields["failed"] = e.Failed
	}
	return fields
}

// position is [leader epoch, offset].
type position [2]int64

func (p position) of() tidelog.Position { return tidelog.Position{LeaderEpoch: p[0], Offset: p[1]} }

// place is where a consumer begins or ends.
type place struct{ tidelog.Place }

func (p *place) UnmarshalJSON(text []byte) error {
	var value any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		return err
	}
	switch v := value.(type) {
	case nil:
		return nil
	case string:
		switch v {
		case "earliest":
			p.Place = tidelog.Earliest
		case "latest":
			p.Place = tidelog.Latest
		default:
			return fmt.Errorf("no place: %q", v)
		}
		return nil
	case json.Number:
		n, err := v.Int64()
		p.Place = tidelog.AtOffset(n)
		return err
	}
	var fields struct {
		TimestampMs *int64              `json:"timestamp_ms"`
		Positions   map[string]position `json:"positions"`
	}
	if err := json.Unmarshal(text, &fields); err != nil {
		return err
	}
	if fields.TimestampMs != nil {
		p.Place = tidelog.AtTime(*fields.TimestampMs)
		return nil
	}
	positions := map[int]tidelog.Position{}
	for name, at := range fields.Positions {
		partition, err := strconv.Atoi(name)
		if err != nil {
			return err
		}
		positions[partition] = at.of()
	}
	p.Place = tidelog.AtPositions(positions)
	return nil
}

// or returns the place, or another one where there is none.
func (p *place) or(other tidelog.Place) tidelog.Place {
	if p == nil {
		return other
	}
	return p.Place
}
