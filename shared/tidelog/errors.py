"""All errors of Tidelog, in one table.

Client code tests attributes of an error (``retriable``, ``refresh_metadata``, ``unknown_outcome``) and never matches
texts. On the wire an error is ``{code, message, …}`` (``wire.messages.ErrorInfo``); ``from_info`` and ``to_info``
translate. A *refusal* means that nothing was changed. ``unknown_outcome`` means that something may have been.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.wire.messages import ErrorInfo


@dataclass(frozen=True, slots=True)
class Meaning:
    """One row of the table of error codes: the meaning of a code, and how the receiver of such an error may react."""

    text: str
    retriable: bool = False
    """Whether the same request may succeed later, unchanged."""
    refresh_metadata: bool = False
    """Whether the sender's metadata is out of date."""
    unknown_outcome: bool = False
    """Every error of this code has ``unknown_outcome``, whatever the message says."""


CODES: dict[str, Meaning] = {
    "NOT_LEADER": Meaning("this server does not lead the partition", True, True),
    "FENCED_LEADER_EPOCH": Meaning("the request carries an older leader epoch than the server's", True, True),
    "UNKNOWN_LEADER_EPOCH": Meaning("the request carries a newer leader epoch than the server knows yet", True),
    "FENCED_BROKER_EPOCH": Meaning("the request comes from an earlier incarnation of that replica server"),
    "NOT_REPLICA": Meaning("the sender is no replica of the partition", False, True),
    "OFFSET_NOT_AVAILABLE": Meaning("a new leader does not know yet how far the log is committed", True),
    "STALE_REPLICA": Meaning("the replica cannot show that it is as fresh as the read asks", True),
    "OFFSET_OUT_OF_RANGE": Meaning("the offset is not in the log"),
    "LOG_TRUNCATED": Meaning("the position's epoch ends earlier: the log was truncated there"),
    "NOT_ENOUGH_REPLICAS": Meaning("fewer in-sync replicas than min_insync_replicas", True),
    "REQUEST_TIMED_OUT": Meaning("no answer in time", True),
    "UNREACHABLE": Meaning("the server cannot be reached", True, True),
    "CORRUPT_BATCH": Meaning("the batch is damaged or malformed"),
    "BATCH_TOO_LARGE": Meaning("the batch is larger than max_batch_bytes"),
    "OUT_OF_ORDER_SEQUENCE": Meaning("the producer's sequence has a gap", True),
    "SEQUENCE_CONFLICT": Meaning(
        "the log has another batch with that producer id, epoch and sequence: this one was not written"
    ),
    "UNVERIFIED_SEQUENCE": Meaning(
        "the log has, or had, a batch with that sequence, and it cannot be compared: it may be this one, or another",
        unknown_outcome=True,
    ),
    "DUPLICATE_SEQUENCE": Meaning("`UNVERIFIED_SEQUENCE`, from a server of an earlier release", unknown_outcome=True),
    "FENCED_PRODUCER": Meaning("a newer epoch of this producer id exists"),
    "INVALID_TICKET": Meaning(
        "no valid ticket for that producer id and epoch was presented on this connection: nothing was written; get"
        " the id and its ticket from the cluster (`init_producer`, `begin_transaction`, `init_task_producer`), and"
        " present it (`use_producer`)"
    ),
    "UNKNOWN_TICKET_KEY": Meaning(
        "the ticket is signed by a newer key than the gateway has heard of yet: nothing was written", True
    ),
    "UNEXPECTED_OFFSET": Meaning("the log does not end where the conditional append expects"),
    "UNKNOWN_TOPIC": Meaning("no such topic or partition", False, True),
    "TOPIC_EXISTS": Meaning("a topic of that name exists"),
    "INVALID_TOPIC": Meaning("a topic name is 1 to 249 of A-Z a-z 0-9 . _ -, and not . or .."),
    "INVALID_CONFIG": Meaning("a setting is unknown or out of range"),
    "INVALID_REPLICATION_FACTOR": Meaning("fewer live replica servers than the replication factor"),
    "INVALID_REPLICAS": Meaning("replicas are distinct live servers, at least min_insync_replicas of them"),
    "UNKNOWN_SERVER": Meaning("no replica server of that name is registered"),
    "NOT_IN_SYNC": Meaning("the server is not in sync: it cannot lead without loss", True, True),
    "NO_REASSIGNMENT": Meaning("no reassignment of the partition is in progress"),
    "NOT_ACTIVE_CONTROLLER": Meaning("this controller is not the active one", True, True),
    "NO_QUORUM": Meaning("the controllers have no majority", True),
    "REQUEST_CONFLICT": Meaning(
        "the client has used this number for another request: this request was not executed; give each request a new"
        " number"
    ),
    "CHANGE_IN_PROGRESS": Meaning("another change of the group of controllers is not committed yet", True),
    "QUORUM_AT_RISK": Meaning("the change would leave fewer live controllers than a majority"),
    "UNKNOWN_CONTROLLER": Meaning("no controller of that name is in the group"),
    "TOPIC_READ_ONLY": Meaning("the partition is read-only: it takes no batches until that ends"),
    "TOPIC_PAUSED": Meaning("the partition is paused: nothing is written or read until it is resumed"),
    "NOT_COORDINATOR": Meaning("this server does not coordinate the group, or not yet", True, True),
    "UNKNOWN_MEMBER": Meaning(
        "the group does not have this member, or no longer: the member owns nothing and must join again"
    ),
    "FENCED_GENERATION": Meaning("the member is in another generation, or the partition is not its own"),
    "FENCED_INSTANCE": Meaning("another process has taken over this static member"),
    "UNKNOWN_GROUP": Meaning("no such consumer group"),
    "INVALID_GROUP": Meaning("a group's name, or a value in the request of a member, is not allowed"),
    "GROUP_NOT_EMPTY": Meaning("the group has members: only they may do this"),
    "GROUP_FULL": Meaning("the group has as many members, or its coordinator as many groups, as allowed"),
    "UNKNOWN_STREAM": Meaning("no such stream, or no longer"),
    "STREAM_EXISTS": Meaning("a stream of that path exists, with another content type, lifetime or closure"),
    "STREAM_CLOSED": Meaning("the stream is complete: nothing more is appended"),
    "STREAM_CONFLICT": Meaning("the append does not follow what the stream has: nothing was appended"),
    "TRANSACTION_ENDING": Meaning("the application's previous transaction has not ended yet", True),
    "TRANSACTION_ABORTED": Meaning(
        "the transaction is aborted, with all its records: repeat all of it in a new transaction"
    ),
    "UNKNOWN_TRANSACTION": Meaning("no such transaction is prepared, or no longer: stage it again"),
    "INVALID_TRANSACTION": Meaning("the transaction's state, or a value in the request, does not allow it"),
    "UNSTABLE_OFFSETS": Meaning("a transaction that has positions of the group has not ended yet", True),
    "STALE_EPOCH": Meaning("the partition's epoch has moved on", False, True),
    "UNAUTHENTICATED": Meaning("no valid credentials"),
    "FORBIDDEN": Meaning("not allowed to this kind of peer, or to this principal"),
    "UNKNOWN_TOKEN": Meaning("there is no such token"),
    "QUOTA_EXCEEDED": Meaning("the principal has used up its quota for now: `pause_ms` says how long to wait", True),
    "LIMIT_EXCEEDED": Meaning(
        "the principal has as many objects of this kind as it may have: `bound` names the kind, `setting` the setting"
        " with the limit"
    ),
    "ANSWER_TOO_LARGE": Meaning(
        "the answer is longer than a message may be (16 MiB): ask for less, such as fewer topics at a time"
    ),
    "SERVER_IN_USE": Meaning("the replica server is live, or has copies of partitions"),
    "NODE_IN_USE": Meaning("another live process has that node id", True),
    "METADATA_WENT_BACK": Meaning("the controllers' metadata are older than what a replica server has seen"),
    "WRONG_CLUSTER": Meaning("the peer belongs to another cluster"),
    "UNSUPPORTED": Meaning(
        "this server does not know that operation, or a key of the request (`key` names it), or lacks a capability"
        " that the request needs (`capability`)"
    ),
    "UNSUPPORTED_LEVEL": Meaning(
        "the process does not understand the cluster's feature level, or the level is too low for the request"
    ),
    "MALFORMED": Meaning("the message does not follow the protocol"),
    "OVERLOADED": Meaning("too many bytes or requests are in flight, or too many subscriptions are open", True),
    "DISK_FULL": Meaning("the disk of the server that leads the partition is full: it takes no records", True, True),
    "OFFLINE": Meaning("the partition cannot serve: its disk failed or it is not loaded yet", True, True),
    "BAD_BACKUP": Meaning("the backup is damaged or not finished, or is not of this topic"),
    "IMPORT_FAILED": Meaning("the records of another system cannot be imported as they are, or that system refuses"),
    "INVALID_VALUE": Meaning("the key or value of a record is not of the form that the reader asked for"),
    "CLOSED": Meaning("the client or connection is closed"),
}


MAX_PAUSE_MS = 60_000
"""Longest pause that a client makes because a server asks for it."""


def pause_s(pause_ms: object) -> float:
    """Return, in seconds, the pause of ``pause_ms`` that a server asks for, at most ``MAX_PAUSE_MS``; 0.0 if the
    value is no integer."""
    return min(pause_ms, MAX_PAUSE_MS) / 1000 if isinstance(pause_ms, int) else 0.0


class TidelogError(Exception):
    """Base of all errors. ``code`` is a key of ``CODES``. ``detail`` holds the values that belong to the code
    (``leader``, ``log_start``, ``end_offset``, ``leader_epoch`` …), as integers or texts. ``unknown_outcome``:
    whether the request may have had its effect all the same."""

    code = "MALFORMED"

    def __init__(
        self, message: str, *, code: str | None = None, unknown_outcome: bool = False, **detail: int | str
    ) -> None:
        super().__init__(message)
        self.code = code or self.code
        self.message = message
        self.unknown_outcome = unknown_outcome or CODES[self.code].unknown_outcome
        self.detail = detail
        self.id = ""
        """Id under which a gateway keeps the evidence of the refusal for a while; "": none. ``tidelog why ID`` shows
        it."""

    @property
    def retriable(self) -> bool:
        """Return whether the same request may succeed if it is sent again unchanged."""
        return CODES[self.code].retriable

    @property
    def refresh_metadata(self) -> bool:
        """Return whether the sender of the request should fetch the metadata again, because the error shows that they
        are out of date."""
        return CODES[self.code].refresh_metadata

    @property
    def pause_s(self) -> float:
        """Return the pause in seconds that the server asks for before another try; 0 if it does not ask for one."""
        return pause_s(self.detail.get("pause_ms", 0))

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}" + (f" (error id {self.id})" if self.id else "")

    def to_info(self) -> ErrorInfo:
        """Return the error as the ``ErrorInfo`` that is sent on the wire; details become texts."""
        from tidelog.wire.messages import ErrorInfo

        detail = {key: str(value) for key, value in self.detail.items()}
        return ErrorInfo(self.code, self.message, self.unknown_outcome, detail, self.id)


class BrokerError(TidelogError):
    """Raised when a server has answered with an error."""


class ProtocolError(TidelogError):
    """Raised when the peer has sent a message that the protocol does not allow; the connection ends."""

    code = "MALFORMED"


class CorruptBatch(TidelogError):
    """Raised when a batch fails one of its checks; the message says which."""

    code = "CORRUPT_BATCH"


class UnreadableBatch(CorruptBatch):
    """Raised for a batch of the log that a reader cannot decode. The message and ``detail`` both have its place in
    the log and the reason; the properties return what is in ``detail``.

    Usually its producer wrote it so: every replica holds the same bytes, and the batch stays unreadable.
    ``is_damaged`` is the other case: the bytes are not those that the producer sent, and another read may get a sound
    copy.
    """

    @property
    def place(self) -> str:
        """Return topic, partition, offsets and producer id of the batch, in words."""
        return str(self.detail["place"])

    @property
    def why(self) -> str:
        """Return a text that says which check of the batch failed."""
        return str(self.detail["why"])

    @property
    def topic(self) -> str:
        """Return the name of the topic."""
        return str(self.detail["topic"])

    @property
    def partition(self) -> int:
        """Return the number of the partition."""
        return int(self.detail["partition"])

    @property
    def base_offset(self) -> int:
        """Return the first offset that the batch covers."""
        return int(self.detail["offset"])

    @property
    def last_offset(self) -> int:
        """Return the last offset that the batch covers (inclusive)."""
        return int(self.detail["last_offset"])

    @property
    def next_offset(self) -> int:
        """Return the offset after the batch, at which reading may go on."""
        return self.last_offset + 1

    @property
    def producer_id(self) -> int:
        """Return the producer id of the batch; 0 if its producer was not idempotent."""
        return int(self.detail["producer_id"])

    @property
    def is_damaged(self) -> bool:
        """Return whether the CRC of the batch is wrong. Such a batch is never skipped."""
        return bool(self.detail["damaged"])


class InvalidValue(TidelogError):
    """Raised when the key or value of a record is not of the form that the reader asked for, such as text or JSON.
    The message and ``detail`` have the record's topic, partition and offset."""

    code = "INVALID_VALUE"


class Unreachable(TidelogError):
    """Raised when there is no connection to the server, or the connection broke before the answer came."""

    code = "UNREACHABLE"


class TimedOut(TidelogError):
    """Raised when no answer came in time. The outcome is unknown unless stated otherwise."""

    code = "REQUEST_TIMED_OUT"


class Closed(TidelogError):
    """Raised when an operation is called on a client, producer, consumer or connection that is closed, or when it is
    closed during the operation."""

    code = "CLOSED"


class ConfigError(TidelogError):
    """Raised when a configuration is wrong. The message has all errors, one a line."""

    code = "INVALID_CONFIG"


def without_frames(error: TidelogError) -> TidelogError:
    """Return the error itself, after removing its traceback, cause and context. Such an error may be kept for long,
    because it no longer refers to frames, which hold whole messages."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def refuse(code: str, message: str, *, unknown_outcome: bool = False, **detail: int | str) -> BrokerError:
    """Return the error with which a server refuses a request; the caller raises or sends it. ``code`` must be in
    ``CODES``. The keyword arguments become ``detail``."""
    assert code in CODES, code
    return BrokerError(message, code=code, unknown_outcome=unknown_outcome, **detail)


def from_info(info: ErrorInfo) -> BrokerError:
    """Return the error that an ``ErrorInfo`` of the wire describes. A code that this version does not know becomes
    ``UNSUPPORTED``, which is not retriable."""
    code = info.code if info.code in CODES else "UNSUPPORTED"
    error = BrokerError(info.message, code=code, unknown_outcome=info.unknown_outcome)
    error.detail = {key: int(text) if _is_integer(text) else text for key, text in info.detail.items()}
    error.id = info.id
    return error


def _is_integer(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) < 20
