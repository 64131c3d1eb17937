package tidelog

import "example.org/tidelog/internal/batch"

// Messages as they travel. Fields that only services use are left out.

// requestHead begins every request.
type requestHead struct {
	Op string `cbor:"op"`
	ID uint64 `cbor:"id"`
}

func (h *requestHead) head() *requestHead { return h }

// request is a message that gets an answer.
type request interface{ head() *requestHead }

// once names a request of which the cluster does one only, however often it
// comes.
type once struct {
	Client   string `cbor:"client"`
	Sequence uint64 `cbor:"sequence"`
}

// incoming has what is looked at in each message before its kind is known.
type incoming struct {
	Re            *uint64      `cbor:"re"`
	Op            *string      `cbor:"op"`
	Error         *Error       `cbor:"error"`
	Sub           uint64       `cbor:"sub"`
	HighWatermark *int64       `cbor:"high_watermark"`
	Acks          []produceAck `cbor:"acks"`
}

type helloRequest struct {
	requestHead
	Version      uint64   `cbor:"version"`
	VersionMin   uint64   `cbor:"version_min"`
	VersionMax   uint64   `cbor:"version_max"`
	Role         string   `cbor:"role"`
	Node         string   `cbor:"node"`
	Cluster      string   `cbor:"cluster,omitempty"`
	Token        string   `cbor:"token,omitempty"`
	Capabilities []string `cbor:"capabilities"`
}

type welcome struct {
	Version         uint64            `cbor:"version"`
	Cluster         string            `cbor:"cluster"`
	Node            string            `cbor:"node"`
	Role            string            `cbor:"role"`
	MaxMessageBytes int64             `cbor:"max_message_bytes"`
	MaxInFlight     int64             `cbor:"max_in_flight"`
	Capabilities    []string          `cbor:"capabilities"`
	Limits          map[string]uint64 `cbor:"limits"`
}

type metadataRequest struct {
	requestHead
	Topics    []string `cbor:"topics,omitempty"`
	AllTopics bool     `cbor:"all_topics,omitempty"`
	Offsets   bool     `cbor:"offsets,omitempty"`
}

type gatewayInfo struct {
	Node string `cbor:"node"`
	URL  string `cbor:"url"`
}

type metadataAnswer struct {
	Cluster  string        `cbor:"cluster"`
	Topics   []Topic       `cbor:"topics"`
	Gateways []gatewayInfo `cbor:"gateways"`
}

type createTopicRequest struct {
	requestHead
	Name              string            `cbor:"name"`
	Partitions        int64             `cbor:"partitions"`
	ReplicationFactor int64             `cbor:"replication_factor"`
	Config            map[string]string `cbor:"config,omitempty"`
	once
}

type deleteTopicRequest struct {
	requestHead
	Name string `cbor:"name"`
	once
}

type listOffsetRequest struct {
	requestHead
	TopicID     string `cbor:"topic_id"`
	Partition   int64  `cbor:"partition"`
	At          string `cbor:"at"`
	TimestampMs int64  `cbor:"timestamp_ms"`
}

type offsetAnswer struct {
	Offset      int64  `cbor:"offset"`
	LeaderEpoch *int64 `cbor:"leader_epoch"`
}

type initProducerRequest struct{ requestHead }

type producerAnswer struct {
	ProducerID uint64 `cbor:"producer_id"`
	Ticket     string `cbor:"ticket"`
	Window     int    `cbor:"window"`
}

type useProducerRequest struct {
	requestHead
	ProducerID    uint64 `cbor:"producer_id"`
	ProducerEpoch uint16 `cbor:"producer_epoch"`
	Ticket        string `cbor:"ticket"`
}

type ticketAnswer struct {
	Ticket string `cbor:"ticket"`
}

type releaseProducerRequest struct {
	requestHead
	ProducerID uint64 `cbor:"producer_id"`
}

type producePart struct {
	ID             uint64 `cbor:"id"`
	TopicID        string `cbor:"topic_id"`
	Partition      int64  `cbor:"partition"`
	Acks           int    `cbor:"acks"`
	TimeoutMs      int64  `cbor:"timeout_ms"`
	Size           int    `cbor:"size"`
	ExpectedOffset *int64 `cbor:"expected_offset,omitempty"`
}

type produceMessage struct {
	Op    string        `cbor:"op"`
	Parts []producePart `cbor:"parts"`
}

type produceAck struct {
	ID          uint64 `cbor:"id"`
	Offset      *int64 `cbor:"offset"`
	LeaderEpoch *int64 `cbor:"leader_epoch"`
	Durability  string `cbor:"durability"`
	Error       *Error `cbor:"error"`
	ThrottleMs  int64  `cbor:"throttle_ms"`
}

type subscribeRequest struct {
	requestHead
	Sub            uint64 `cbor:"sub"`
	TopicID        string `cbor:"topic_id"`
	Partition      int64  `cbor:"partition"`
	Offset         int64  `cbor:"offset"`
	Credit         int64  `cbor:"credit"`
	LastEpoch      int64  `cbor:"last_epoch"`
	ReadFrom       string `cbor:"read_from,omitempty"`
	Consistency    string `cbor:"consistency,omitempty"`
	MaxStalenessMs *int64 `cbor:"max_staleness_ms,omitempty"`
	Isolation      string `cbor:"isolation,omitempty"`
}

type unsubscribeRequest struct {
	requestHead
	Sub uint64 `cbor:"sub"`
}

type creditMessage struct {
	Op    string `cbor:"op"`
	Sub   uint64 `cbor:"sub"`
	Bytes int64  `cbor:"bytes"`
}

// orNone returns the number, or -1, the default of such fields.
func orNone(n *int64) int64 {
	if n == nil {
		return -1
	}
	return *n
}

// Header is a header of a record.
type Header = batch.Pair
