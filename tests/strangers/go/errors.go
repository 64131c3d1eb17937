package tidelog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"
)

// Codes of errors that the library looks at or makes itself. The published
// list has all of them.
const (
	CodeUnreachable       = "UNREACHABLE"
	CodeClosed            = "CLOSED"
	CodeTimedOut          = "REQUEST_TIMED_OUT"
	CodeUnsupported       = "UNSUPPORTED"
	CodeUnknownTopic      = "UNKNOWN_TOPIC"
	CodeTopicExists       = "TOPIC_EXISTS"
	CodeCorruptBatch      = "CORRUPT_BATCH"
	CodeBatchTooLarge     = "BATCH_TOO_LARGE"
	CodeOutOfOrder        = "OUT_OF_ORDER_SEQUENCE"
	CodeInvalidTicket     = "INVALID_TICKET"
	CodeUnknownTicketKey  = "UNKNOWN_TICKET_KEY"
	CodeUnauthenticated   = "UNAUTHENTICATED"
	CodeForbidden         = "FORBIDDEN"
	CodeFencedProducer    = "FENCED_PRODUCER"
	CodeFencedGeneration  = "FENCED_GENERATION"
	CodeFencedInstance    = "FENCED_INSTANCE"
	CodeUnknownMember     = "UNKNOWN_MEMBER"
	CodeInvalidArgument   = "INVALID_ARGUMENT"
	codeFencedLeaderEpoch = "FENCED_LEADER_EPOCH"
)

// retriable has the codes after which the same request may succeed later.
var retriable = map[string]bool{
	"NOT_LEADER": true, codeFencedLeaderEpoch: true, "UNKNOWN_LEADER_EPOCH": true, "OFFSET_NOT_AVAILABLE": true,
	"STALE_REPLICA": true, "NOT_ENOUGH_REPLICAS": true, CodeTimedOut: true, CodeUnreachable: true,
	CodeOutOfOrder: true, CodeUnknownTicketKey: true, "NOT_IN_SYNC": true, "NOT_ACTIVE_CONTROLLER": true,
	"NO_QUORUM": true, "CHANGE_IN_PROGRESS": true, "NOT_COORDINATOR": true, "TRANSACTION_ENDING": true,
	"UNSTABLE_OFFSETS": true, "QUOTA_EXCEEDED": true, "NODE_IN_USE": true, "OVERLOADED": true, "DISK_FULL": true,
	"OFFLINE": true,
}

// Error is an error of the cluster or of the library. The code decides what
// to do; the message is for people.
type Error struct {
	Code           string            `cbor:"code"`
	Message        string            `cbor:"message"`
	UnknownOutcome bool              `cbor:"unknown_outcome"`
	Detail         map[string]string `cbor:"detail"`
	// Failed is how many records of a closed producer failed whose errors were
	// not reported before.
	Failed int `cbor:"-"`
}

func (e *Error) Error() string {
	text := e.Code
	if e.Message != "" {
		text += ": " + e.Message
	}
	if e.UnknownOutcome {
		text += " (the outcome is unknown)"
	}
	return text
}

// Retriable tells whether the same request may succeed later.
func (e *Error) Retriable() bool { return retriable[e.Code] }

// number returns a number of the detail.
func (e *Error) number(key string) (int64, bool) {
	n, err := strconv.ParseInt(e.Detail[key], 10, 64)
	return n, err == nil
}

// pause is how long to wait before another try: pause_ms, else the given time.
func (e *Error) pause(otherwise time.Duration) time.Duration {
	if ms, ok := e.number("pause_ms"); ok && ms > 0 {
		return min(time.Duration(ms)*time.Millisecond, time.Minute)
	}
	return otherwise
}

// doubtful returns a copy of the error whose outcome is unknown, if it is.
func (e *Error) doubtful(unknown bool) *Error {
	other := *e
	other.Detail = maps.Clone(e.Detail)
	other.UnknownOutcome = e.UnknownOutcome || unknown
	return &other
}

func newError(code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// invalid says that the program gave a wrong argument.
func invalid(format string, args ...any) *Error {
	return newError(CodeInvalidArgument, format, args...)
}

// AsError returns err as an *Error: an error of the context is a time-out.
func AsError(err error) *Error {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.DeadlineExceeded):
		return newError(CodeTimedOut, "%v", err)
	case errors.Is(err, context.Canceled):
		return newError(CodeClosed, "%v", err)
	}
	return newError(CodeUnreachable, "%v", err)
}
