package tidelog

type topicShare struct {
	TopicID    string `cbor:"topic_id"`
	Partitions []int  `cbor:"partitions"`
	Topic      string `cbor:"topic,omitempty"`
}

type groupPosition struct {
	TopicID     string `cbor:"topic_id"`
	Partition   int    `cbor:"partition"`
	Offset      int64  `cbor:"offset"`
	LeaderEpoch *int64 `cbor:"leader_epoch,omitempty"`
}

type joinGroupRequest struct {
	requestHead
	Group              string   `cbor:"group"`
	Member             string   `cbor:"member"`
	Topics             []string `cbor:"topics"`
	Instance           string   `cbor:"instance,omitempty"`
	Assignor           string   `cbor:"assignor,omitempty"`
	SessionTimeoutMs   int64    `cbor:"session_timeout_ms"`
	RebalanceTimeoutMs int64    `cbor:"rebalance_timeout_ms"`
	Node               string   `cbor:"node,omitempty"`
}

// memberAnswer is the answer to join_group and to group_heartbeat, which has
// no heartbeat_ms.
type memberAnswer struct {
	Generation  int64        `cbor:"generation"`
	HeartbeatMs int64        `cbor:"heartbeat_ms"`
	Assignment  []topicShare `cbor:"assignment"`
}

type heartbeatRequest struct {
	requestHead
	Group      string       `cbor:"group"`
	Member     string       `cbor:"member"`
	Generation int64        `cbor:"generation"`
	Owned      []topicShare `cbor:"owned,omitempty"`
	Instance   string       `cbor:"instance,omitempty"`
}

type leaveGroupRequest struct {
	requestHead
	Group  string `cbor:"group"`
	Member string `cbor:"member"`
}

type commitOffsetsRequest struct {
	requestHead
	Group      string          `cbor:"group"`
	Positions  []groupPosition `cbor:"positions"`
	Member     string          `cbor:"member"`
	Generation int64           `cbor:"generation"`
	Instance   string          `cbor:"instance,omitempty"`
}

type fetchOffsetsRequest struct {
	requestHead
	Group string       `cbor:"group"`
	Parts []topicShare `cbor:"parts"`
}

type fetchOffsetsAnswer struct {
	Positions []groupPosition `cbor:"positions"`
}

type describeGroupRequest struct {
	requestHead
	Group string `cbor:"group"`
}

type describeGroupAnswer struct {
	State       string `cbor:"state"`
	Coordinator string `cbor:"coordinator"`
	Members     []struct {
		Member string `cbor:"member"`
	} `cbor:"members"`
	Positions []groupPosition `cbor:"positions"`
}
