"""The errors that a gateway may answer to each operation of a client, with their details, and what a client does.

The table of ``docs/errors.md`` and ``docs/errors.json``, for authors of clients. ``tidelog conformance`` checks the
gateways by it, and so do the tests that run whole clusters: they fail for a code, or a key of ``detail``, that is
missing here. The meaning of each code is in ``tidelog.errors``.
"""

from __future__ import annotations

from collections.abc import Iterable

REACTIONS = {
    "retry": "Wait (`pause_ms` of `detail`, else 100 ms, then twice as long each time up to 1 s), and send the same"
    " request again, over this connection or another, until your own time-out is over.",
    "reconnect": "Connect to another gateway, or to the same one after a pause, and go on there.",
    "refresh": "Send `metadata` again. If the topic has another id now, or is not there, tell the program.",
    "resend": "Drain: send nothing for the partition until every batch in flight has its ack. Then send those that"
    " are left again, in order, byte for byte.",
    "renumber": "Drain as for `resend`. Get a new producer id, and number what is certainly not in the log anew, from"
    " sequence 0 (rules 14 to 16 of the producer).",
    "fail": "Tell the program. The same request would be refused again.",
    "fail-batch": "Tell the program that this batch was not written. An idempotent producer goes on under a new"
    " producer id (rule 13 of the producer).",
    "look": "Tell the program that the outcome is unknown. It reads before it sends the records again.",
    "stop": "Stop for good: another process has taken over this name.",
    "reposition": "The position is gone. Tell the program, or begin at a position that it has chosen for that case."
    " Never choose one silently.",
    "heartbeat": "Send a heartbeat with the generation that you have, take over its answer, and commit again what is"
    " still yours.",
    "rejoin": "Nothing is owned any more: stop processing, drop the positions, and join again.",
    "abort": "Abort the transaction. The program repeats all of it in a new one.",
    "present": "Ask for the producer id again (`init_producer`, `begin_transaction`), and present the new ticket.",
}
"""What a client does after an error, by a word."""

_RETRY = (
    *("NOT_LEADER", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH", "OFFSET_NOT_AVAILABLE", "STALE_REPLICA"),
    *("NOT_ENOUGH_REPLICAS", "REQUEST_TIMED_OUT", "NOT_IN_SYNC", "NOT_ACTIVE_CONTROLLER", "NO_QUORUM"),
    *("CHANGE_IN_PROGRESS", "NOT_COORDINATOR", "TRANSACTION_ENDING", "UNSTABLE_OFFSETS", "QUOTA_EXCEEDED"),
    *("OVERLOADED", "DISK_FULL", "OFFLINE", "UNKNOWN_TICKET_KEY", "UNREACHABLE"),
)
_BY_CODE = {
    **dict.fromkeys(_RETRY, "retry"),
    "UNKNOWN_TOPIC": "refresh",
    "OFFSET_OUT_OF_RANGE": "reposition",
    "LOG_TRUNCATED": "reposition",
    "FENCED_PRODUCER": "stop",
    "FENCED_INSTANCE": "stop",
    "UNKNOWN_MEMBER": "rejoin",
    "FENCED_GENERATION": "heartbeat",
    "TRANSACTION_ABORTED": "abort",
    "UNKNOWN_TRANSACTION": "abort",
    "INVALID_TICKET": "present",
}
"""The reaction to a code, whatever the operation; all others: ``fail``."""
_BY_OPERATION = {
    "hello": {"OVERLOADED": "reconnect", "QUOTA_EXCEEDED": "reconnect", "OFFLINE": "reconnect"},
    "produce": {
        **dict.fromkeys(("NOT_LEADER", "NOT_ENOUGH_REPLICAS", "REQUEST_TIMED_OUT", "UNREACHABLE"), "resend"),
        **dict.fromkeys(("OVERLOADED", "QUOTA_EXCEEDED", "DISK_FULL", "OFFLINE", "UNKNOWN_TICKET_KEY"), "resend"),
        "OUT_OF_ORDER_SEQUENCE": "renumber",
        "INVALID_TICKET": "renumber",
        "UNVERIFIED_SEQUENCE": "look",
        "DUPLICATE_SEQUENCE": "look",
        **dict.fromkeys(("MALFORMED", "UNSUPPORTED", "FORBIDDEN", "CORRUPT_BATCH", "BATCH_TOO_LARGE"), "fail-batch"),
        **dict.fromkeys(("UNKNOWN_TOPIC", "TOPIC_READ_ONLY", "TOPIC_PAUSED", "UNEXPECTED_OFFSET"), "fail-batch"),
        "SEQUENCE_CONFLICT": "fail-batch",
    },
    "group_heartbeat": {"FENCED_GENERATION": "rejoin"},
}
"""The reactions of an operation that differ."""

DETAILS: dict[str, dict[str, str]] = {
    "NOT_LEADER": {
        "leader": "node id of the leader, empty if not known",
        "leader_epoch": "its leader epoch, -1 if not known",
    },
    "FENCED_LEADER_EPOCH": {"leader_epoch": "leader epoch of the server", "leader": "node id of the leader"},
    "UNKNOWN_LEADER_EPOCH": {
        "leader_epoch": "leader epoch of the server",
        "leader": "node id of the leader",
        "log_start": "first offset of the log",
        "high_watermark": "everything below it is committed",
    },
    "NOT_REPLICA": {"members": "node ids, separated by commas"},
    "OFFSET_NOT_AVAILABLE": {
        "log_start": "first offset of the log",
        "high_watermark": "everything below it is committed, and perhaps more",
        "leader_epoch": "leader epoch of the server",
        "waited_ms": "for so long this leader has led",
        "awaited": "node ids of the replicas for which it waits, separated by spaces",
        "awaited_offset": "up to this offset they have to hold the log",
        "leader": "node id of the leader, empty if not known: a follower was asked",
    },
    "STALE_REPLICA": {"leader": "node id of the leader, that may have committed more"},
    "FENCED_PRODUCER": {"epoch": "epoch that the producer of a stream has begun"},
    "STREAM_CLOSED": {"stream_id": "id of the stream", "end": "position behind its last byte"},
    "STREAM_CONFLICT": {
        "expected": "number of the next append of the producer, if the append has another",
        "received": "number of the append, likewise",
    },
    "UNKNOWN_STREAM": {"stream_id": "id of the stream that has the path now, if the position is of an earlier one"},
    "OFFSET_OUT_OF_RANGE": {
        "end": "position behind the last byte of a stream",
        "log_start": "first offset of the log: the least position that can be read",
        "high_watermark": "the greatest position that can be read",
        "leader_epoch": "leader epoch of the server",
    },
    "LOG_TRUNCATED": {
        "leader_epoch": "the greatest leader epoch of this log that is not above the one asked with",
        "end_offset": "where that epoch ends here: up to it both logs are the same",
        "log_start": "first offset of the log",
        "high_watermark": "everything below it is committed",
    },
    "NOT_ENOUGH_REPLICAS": {"in_sync": "number of replicas that are in sync"},
    "CORRUPT_BATCH": {
        "offset": "over HTTP: first offset of the batch that cannot be decoded",
        "last_offset": "over HTTP: its last offset; reading goes on behind it",
    },
    "OUT_OF_ORDER_SEQUENCE": {
        "lossy": "1: the topic may lose records, and the refusal speaks of the log of this leader only"
    },
    "SEQUENCE_CONFLICT": {"offset": "base offset of the other batch, where it is known"},
    "UNEXPECTED_OFFSET": {"end_offset": "where the log of the leader ends: the offset of the next record"},
    "INVALID_REPLICATION_FACTOR": {"live": "number of replica servers that are live"},
    "NOT_ACTIVE_CONTROLLER": {"leader": "node id of the active controller, or empty", "url": "its URL, or empty"},
    "INVALID_TRANSACTION": {"owner": "owner that the application belongs to, empty if not known"},
    "UNKNOWN_TRANSACTION": {"missing": "number of staged transactions that are not prepared"},
    "STALE_EPOCH": {"epoch": "the partition's epoch"},
    "FORBIDDEN": {
        "principal": "who asked",
        "operation": "the right that is missing",
        "resource": "to what, as `topic:orders`",
        "role": "to hello: role of the server, which is no gateway",
    },
    "UNAUTHENTICATED": {"role": "to hello: role of the server, which is no gateway"},
    "WRONG_CLUSTER": {"role": "to hello: role of the server, which is no gateway"},
    "QUOTA_EXCEEDED": {
        "pause_ms": "wait so long before another try",
        "rate": "which quota is used up: `requests_s`, `bytes_in_s` or `bytes_out_s`",
        "principal": "whose bound it is",
        "bound": "what is bounded, in words",
        "setting": "the setting of the bound",
        "limit": "its value",
    },
    "LIMIT_EXCEEDED": {
        "principal": "whose bound it is",
        "bound": "what is bounded, in words",
        "setting": "the setting of the bound",
        "limit": "its value",
    },
    "METADATA_WENT_BACK": {"index": "index of the newest metadata that a replica server has seen"},
    "UNSUPPORTED": {
        "key": "a key of the request that the gateway does not know",
        "capability": "made by the client library: the capability that the gateway lacks",
        "version_min": "to hello: lowest version that the server speaks",
        "version_max": "to hello: highest version that it speaks",
        "role": "to hello: role of the server, which is no gateway",
    },
    "UNSUPPORTED_LEVEL": {
        "level": "feature level of the cluster",
        "role": "to hello: role of the server, which is no gateway",
    },
    "OVERLOADED": {
        "limit": "name of the limit of the connection that is reached, as in the welcome",
        "most": "value of that limit",
        "window": "batches that a producer may have in flight on one partition",
        "cause": "to hello: `gateway_full`, `address_full` (it has as many connections as one may have) or `ending`",
        "role": "to hello: role of the server, which is no gateway",
    },
    "OFFLINE": {
        "opening": "1: the log is being opened, which takes a moment",
        "handing_over": "1: another server is about to lead",
        "pause_ms": "wait so long before another try",
        "role": "to hello: role of the server, which is no gateway",
    },
}
"""The keys that ``detail`` may have, by code; a code that is missing has none. Values are texts on the wire, numbers
in decimal digits. A key may be absent, and later releases may add others."""

_ANY = frozenset(
    {"MALFORMED", "UNSUPPORTED", "FORBIDDEN", "OVERLOADED", "QUOTA_EXCEEDED", "UNREACHABLE", "ANSWER_TOO_LARGE"}
)
"""What any request may get."""
_ASKED_CONTROLLER = {"NOT_ACTIVE_CONTROLLER", "NO_QUORUM", "REQUEST_TIMED_OUT", "METADATA_WENT_BACK"}
_DECIDED = _ASKED_CONTROLLER | {"REQUEST_CONFLICT"}
"""What a request may get that the active controller decides."""
_LED = {
    *("UNKNOWN_TOPIC", "NOT_LEADER", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH", "OFFSET_NOT_AVAILABLE"),
    *("STALE_REPLICA", "OFFLINE", "REQUEST_TIMED_OUT", "TOPIC_PAUSED"),
}
"""What a request may get that a partition's leader answers."""
_LISTED = {"NOT_COORDINATOR", "REQUEST_TIMED_OUT"}
_COORDINATED = {
    *_LISTED,
    *("OFFLINE", "DISK_FULL", "NOT_ENOUGH_REPLICAS", "NOT_ACTIVE_CONTROLLER", "NO_QUORUM", "METADATA_WENT_BACK"),
}
"""What a request may get that a coordinator answers: the internal topic may have to be created first, and the answer
waits for its record."""
_OF_GROUP = _COORDINATED | {"INVALID_GROUP"}
_OF_TRANSACTION = _COORDINATED | {"INVALID_TRANSACTION"}
_OF_COPY = {"UNKNOWN_TOPIC", "NOT_REPLICA", "OFFLINE", "NOT_LEADER", "TOPIC_PAUSED", "REQUEST_TIMED_OUT"}
_NAMED = _DECIDED | {"UNKNOWN_TOPIC", "INVALID_TOPIC", "INVALID_CONFIG"}
"""What a request may get that changes a topic by its name."""


def _only(codes: str) -> frozenset[str]:
    return frozenset(codes.split())


def _with(base: Iterable[str], more: str = "") -> frozenset[str]:
    """Return the codes of any request, those of ``base``, and those that ``more`` names."""
    return _ANY | frozenset(base) | _only(more)


ERRORS: dict[str, frozenset[str]] = {
    "hello": _only(
        "MALFORMED UNSUPPORTED UNSUPPORTED_LEVEL FORBIDDEN UNAUTHENTICATED WRONG_CLUSTER OVERLOADED QUOTA_EXCEEDED"
        " OFFLINE"
    ),
    "metadata": _with((), "REQUEST_TIMED_OUT"),
    "produce": _only(
        "MALFORMED UNSUPPORTED FORBIDDEN OVERLOADED QUOTA_EXCEEDED UNREACHABLE REQUEST_TIMED_OUT NOT_LEADER OFFLINE"
        " DISK_FULL NOT_ENOUGH_REPLICAS UNKNOWN_TOPIC TOPIC_READ_ONLY TOPIC_PAUSED CORRUPT_BATCH BATCH_TOO_LARGE"
        " INVALID_TICKET UNKNOWN_TICKET_KEY OUT_OF_ORDER_SEQUENCE SEQUENCE_CONFLICT UNVERIFIED_SEQUENCE"
        " DUPLICATE_SEQUENCE FENCED_PRODUCER UNEXPECTED_OFFSET INVALID_TRANSACTION TRANSACTION_ABORTED"
        " UNKNOWN_TRANSACTION"
    ),
    "read": _with(_LED, "OFFSET_OUT_OF_RANGE LOG_TRUNCATED"),
    "subscribe": _with(_LED, "OFFSET_OUT_OF_RANGE LOG_TRUNCATED LIMIT_EXCEEDED"),
    "unsubscribe": _with(()),
    "list_offset": _with(_LED, "OFFSET_OUT_OF_RANGE LOG_TRUNCATED CORRUPT_BATCH"),
    "init_producer": _with(_DECIDED, "INVALID_CONFIG"),
    "use_producer": _with((), "INVALID_TICKET UNKNOWN_TICKET_KEY"),
    "release_producer": _with(()),
    "join_group": _with(_OF_GROUP, "INVALID_TOPIC GROUP_FULL LIMIT_EXCEEDED FENCED_INSTANCE"),
    "group_heartbeat": _with(_OF_GROUP, "UNKNOWN_MEMBER FENCED_INSTANCE FENCED_GENERATION"),
    "leave_group": _with(_OF_GROUP),
    "commit_offsets": _with(
        _OF_GROUP,
        "UNKNOWN_TOPIC UNKNOWN_MEMBER FENCED_INSTANCE FENCED_GENERATION GROUP_NOT_EMPTY GROUP_FULL LIMIT_EXCEEDED"
        " FENCED_PRODUCER UNKNOWN_TRANSACTION TRANSACTION_ABORTED INVALID_TRANSACTION",
    ),
    "fetch_offsets": _with(_OF_GROUP, "UNKNOWN_TOPIC UNSTABLE_OFFSETS"),
    "list_groups": _with(_LISTED),
    "describe_group": _with(_OF_GROUP, "UNKNOWN_GROUP"),
    "delete_group": _with(_OF_GROUP, "UNKNOWN_GROUP GROUP_NOT_EMPTY UNSTABLE_OFFSETS"),
    "begin_transaction": _with(
        _OF_TRANSACTION | _DECIDED,
        "TRANSACTION_ENDING LIMIT_EXCEEDED UNKNOWN_TRANSACTION FENCED_PRODUCER TRANSACTION_ABORTED",
    ),
    "end_transaction": _with(_OF_TRANSACTION, "UNKNOWN_TRANSACTION FENCED_PRODUCER TRANSACTION_ABORTED"),
    "prepare_transaction": _with(_OF_TRANSACTION, "UNKNOWN_TRANSACTION FENCED_PRODUCER TRANSACTION_ABORTED"),
    "commit_staged": _with(_OF_TRANSACTION, "UNKNOWN_TRANSACTION LIMIT_EXCEEDED"),
    "abort_staged": _with(_OF_TRANSACTION),
    "init_task_producer": _with(
        _OF_TRANSACTION | _DECIDED, "FENCED_PRODUCER UNSUPPORTED_LEVEL LIMIT_EXCEEDED INVALID_CONFIG"
    ),
    "list_transactions": _with(_LISTED, "INVALID_TRANSACTION"),
    "create_stream": _with(_COORDINATED, "STREAM_EXISTS LIMIT_EXCEEDED UNSUPPORTED_LEVEL"),
    "append_stream": _with(
        _COORDINATED, "UNKNOWN_STREAM STREAM_CLOSED STREAM_CONFLICT FENCED_PRODUCER LIMIT_EXCEEDED BATCH_TOO_LARGE"
    ),
    "read_stream": _with(_COORDINATED, "UNKNOWN_STREAM OFFSET_OUT_OF_RANGE CORRUPT_BATCH"),
    "describe_stream": _with(_COORDINATED, "UNKNOWN_STREAM"),
    "delete_stream": _with(_COORDINATED, "UNKNOWN_STREAM"),
    "settle_transaction": _with(
        _LED | _LISTED, "UNSUPPORTED_LEVEL INVALID_TRANSACTION UNKNOWN_TRANSACTION DISK_FULL NOT_ENOUGH_REPLICAS"
    ),
    "create_topic": _with(
        _DECIDED, "INVALID_TOPIC INVALID_CONFIG TOPIC_EXISTS INVALID_REPLICATION_FACTOR LIMIT_EXCEEDED"
    ),
    "alter_topic": _with(_NAMED),
    "delete_topic": _with(_NAMED),
    "grow_topic": _with(_NAMED, "INVALID_REPLICATION_FACTOR STALE_EPOCH LIMIT_EXCEEDED"),
    "alter_learners": _with(_NAMED),
    "set_read_only": _with(_NAMED),
    "pause_topic": _with(_NAMED),
    "transfer_leader": _with(_NAMED, "TOPIC_PAUSED OFFLINE NOT_REPLICA NOT_IN_SYNC UNKNOWN_SERVER STALE_EPOCH"),
    "reassign": _with(_NAMED, "UNKNOWN_SERVER INVALID_REPLICAS STALE_EPOCH"),
    "cancel_reassignment": _with(_NAMED, "NO_REASSIGNMENT INVALID_REPLICAS STALE_EPOCH"),
    "drain_server": _with(_DECIDED, "UNKNOWN_SERVER"),
    "forget_server": _with(_DECIDED, "UNKNOWN_SERVER SERVER_IN_USE UNSUPPORTED_LEVEL"),
    "describe_features": _with(_ASKED_CONTROLLER),
    "raise_level": _with(_DECIDED, "UNSUPPORTED_LEVEL"),
    "plan_rebalance": _with(_ASKED_CONTROLLER),
    "rebalance": _with(_DECIDED),
    "history": _with(_ASKED_CONTROLLER, "UNKNOWN_TOPIC"),
    "describe_quorum": _with(_ASKED_CONTROLLER),
    "add_controller": _with(_DECIDED, "CHANGE_IN_PROGRESS QUORUM_AT_RISK"),
    "remove_controller": _with(_DECIDED, "CHANGE_IN_PROGRESS QUORUM_AT_RISK UNKNOWN_CONTROLLER"),
    "put_token": _with(_DECIDED, "UNKNOWN_TOKEN INVALID_CONFIG"),
    "revoke_tokens": _with(_DECIDED, "UNKNOWN_TOKEN"),
    "alter_acls": _with(_DECIDED, "INVALID_CONFIG UNSUPPORTED_LEVEL"),
    "alter_quotas": _with(_DECIDED, "INVALID_CONFIG"),
    "describe_access": _with(()),
    "rotate_ticket_keys": _with(_DECIDED, "UNSUPPORTED_LEVEL"),
    "digest": _with(_OF_COPY),
    "read_copy": _with(_OF_COPY, "OFFSET_OUT_OF_RANGE UNSUPPORTED_LEVEL"),
    "scrub_server": _with((), "NOT_REPLICA REQUEST_TIMED_OUT UNSUPPORTED_LEVEL"),
    "describe_metrics": _with(_ASKED_CONTROLLER, "UNKNOWN_SERVER"),
    "describe_refusal": _with(()),
    "play": _with((), "INVALID_CONFIG UNKNOWN_SERVER REQUEST_TIMED_OUT"),
}
"""The codes that a gateway may answer to each operation. Those of ``produce`` stand in acks; those of ``subscribe``
in its answer, or in the last delivery. ``credit`` has no answer."""


def reaction(operation: str, code: str) -> str:
    """Return what a client does after an error of this code to this operation: a key of ``REACTIONS``."""
    return _BY_OPERATION.get(operation, {}).get(code) or _BY_CODE.get(code, "fail")


def fault_of(operation: str, code: str, detail: Iterable[str]) -> str:
    """Return in words what is wrong with an error that a gateway has answered to an operation: its code, or a key of
    its detail, is not in the tables. Returns "" if nothing is wrong."""
    if code not in ERRORS.get(operation, ()):
        return f"{operation} is answered with {code}, which is not among its errors"
    unknown = sorted(set(detail) - DETAILS.get(code, {}).keys())
    return f"{code}, answered to {operation}, has {', '.join(unknown)} in detail" if unknown else ""
