package main

import (
	"encoding/json"
	"time"

	"example.org/tidelog"
)

// options has the options of all that can be opened, by their names in the
// suite.
type options struct {
	Acks             *string         `json:"acks"`
	Compression      string          `json:"compression"`
	LingerS          float64         `json:"linger_s"`
	BatchBytes       int             `json:"batch_bytes"`
	DeliveryTimeoutS float64         `json:"delivery_timeout_s"`
	RequestTimeoutS  float64         `json:"request_timeout_s"`
	MaxInFlight      int             `json:"max_in_flight"`
	BufferBytes      int             `json:"buffer_bytes"`
	Idempotent       *bool           `json:"idempotent"`
	BackoffS         float64         `json:"backoff_s"`
	PartitionBytes   int             `json:"partition_bytes"`
	ReadFrom         string          `json:"read_from"`
	Consistency      string          `json:"consistency"`
	MaxStalenessS    float64         `json:"max_staleness_s"`
	Isolation        string          `json:"isolation"`
	OnUnreadable     string          `json:"on_unreadable"`
	SessionS         float64         `json:"session_timeout_s"`
	RebalanceS       float64         `json:"rebalance_timeout_s"`
	Assignor         string          `json:"assignor"`
	AutoCommitS      json.RawMessage `json:"auto_commit_s"`
	Instance         string          `json:"instance"`
}

func (c *command) options() (options, error) {
	var o options
	if len(c.Options) == 0 {
		return o, nil
	}
	if err := json.Unmarshal(c.Options, &o); err != nil {
		return o, &tidelog.Error{Code: tidelog.CodeInvalidArgument, Message: err.Error()}
	}
	return o, nil
}

func (o options) producer() (tidelog.ProducerOptions, error) {
	p := tidelog.ProducerOptions{
		Compression: o.Compression, Linger: seconds(o.LingerS), BatchBytes: o.BatchBytes,
		DeliveryTimeout: seconds(o.DeliveryTimeoutS), TryTimeout: seconds(o.RequestTimeoutS),
		MaxInFlight: o.MaxInFlight, BufferBytes: o.BufferBytes, Backoff: seconds(o.BackoffS),
		NotIdempotent: o.Idempotent != nil && !*o.Idempotent,
	}
	if o.Acks != nil {
		switch *o.Acks {
		case "all":
			p.Acks = tidelog.AcksAll
		case "leader":
			p.Acks = tidelog.AcksLeader
		case "none":
			p.Acks = tidelog.AcksNone
		default:
			return p, &tidelog.Error{Code: tidelog.CodeInvalidArgument, Message: "acks " + *o.Acks}
		}
	}
	return p, nil
}

func (o options) consumer() tidelog.ConsumerOptions {
	return tidelog.ConsumerOptions{
		BufferBytes: o.BufferBytes, PartitionBytes: o.PartitionBytes, Backoff: seconds(o.BackoffS),
		ReadFrom: o.ReadFrom, Consistency: o.Consistency, MaxStaleness: seconds(o.MaxStalenessS),
		Isolation: o.Isolation, SkipUnreadable: o.OnUnreadable == "skip",
	}
}

// autoCommit is how often a member commits by itself; 0: never.
func (o options) autoCommit(otherwise time.Duration) time.Duration {
	var s *float64
	if len(o.AutoCommitS) == 0 {
		return otherwise
	}
	if err := json.Unmarshal(o.AutoCommitS, &s); err != nil || s == nil {
		return 0
	}
	return seconds(*s)
}
