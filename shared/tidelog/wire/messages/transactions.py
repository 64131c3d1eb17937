"""Transactions: client to gateway, and gateway to the application's coordinator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.messages.base import Done, Message, SequencedRequest
from tidelog.wire.messages.groups import TopicShare
from tidelog.wire.messages.metadata import TopicCreated


@dataclass(frozen=True, slots=True)
class TransactionBegun(Message):
    """Answer: the transaction is open; its batches carry this producer id and epoch."""

    producer_id: int
    producer_epoch: int
    ticket: str = field(default="", repr=False)
    """As in ``ProducerId``: set by the gateway."""
    window: int = 0
    """Set by the gateway; see ``ProducerId``."""


@dataclass(frozen=True, slots=True)
class BeginTransaction(Message):
    """Open a transaction of the application ``app``, which has one at a time: an earlier one that is still open is
    aborted, and who wrote it fenced. ``owner`` is a random name of this transaction: the same again gets the same
    answer. With ``staged`` (a random name, too) it is a staged one: an application has many of these at a time."""

    OP: ClassVar[str] = "begin_transaction"
    ANSWER: ClassVar[type[Message]] = TransactionBegun
    app: str
    owner: str
    staged: str = ""
    timeout_ms: int = 60_000
    """Not ended in this time it is aborted."""
    producer_id: int = 0
    """One that nobody has used: set by the gateway, taken where one is needed."""
    principal: str = ""
    """As in ``JoinGroup``."""


@dataclass(frozen=True, slots=True)
class TransactionEnded(Message):
    """Answer: how the transaction ended, which is decided for good. Without ``pending`` a commit is visible: every
    partition of it has the marker."""

    committed: bool = False
    pending: tuple[TopicShare, ...] = ()
    """Partitions that did not have the marker of the commit when the coordinator's ``visible_wait_ms`` was over:
    readers of what is committed wait there. The same request again waits again. A server of an earlier release never
    names any."""


@dataclass(frozen=True, slots=True)
class EndTransaction(Message):
    """Commit a transaction, or abort it. Aborting what is committed does nothing, and is answered with that;
    committing what is aborted is refused with ``TRANSACTION_ABORTED``."""

    OP: ClassVar[str] = "end_transaction"
    ANSWER: ClassVar[type[Message]] = TransactionEnded
    app: str
    producer_id: int
    producer_epoch: int
    commit: bool


@dataclass(frozen=True, slots=True)
class PrepareTransaction(Message):
    """A staged transaction has everything: it waits for ``commit_staged`` now, for as long as the coordinator's
    ``staged_timeout_ms``."""

    OP: ClassVar[str] = "prepare_transaction"
    ANSWER: ClassVar[type[Message]] = Done
    app: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class StagedCommitted(Message):
    """Answer: the batch is committed. ``repeated``: it was before; what this request named is not part of it, and is
    aborted, unless it was named then."""

    repeated: bool = False
    pending: tuple[TopicShare, ...] = ()
    """As of ``end_transaction``: partitions without a marker of one of the transactions that were named."""


@dataclass(frozen=True, slots=True)
class CommitStaged(Message):
    """Commit all these staged transactions of an application together, as its batch number ``batch``; once. Where one
    of them is not prepared (any more) nothing is committed: ``UNKNOWN_TRANSACTION``. ``alone``: what else it has
    staged nobody will commit, so that is aborted then."""

    OP: ClassVar[str] = "commit_staged"
    ANSWER: ClassVar[type[Message]] = StagedCommitted
    app: str
    batch: int
    staged: tuple[str, ...]
    alone: bool = False
    principal: str = ""
    """As in ``JoinGroup``."""


@dataclass(frozen=True, slots=True)
class AbortStaged(Message):
    """Abort these staged transactions, but for those that are committed or not known."""

    OP: ClassVar[str] = "abort_staged"
    ANSWER: ClassVar[type[Message]] = Done
    app: str
    staged: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TaskProducer(Message):
    """Answer: the batches of the task carry this producer id and epoch, and its records this timestamp (ms since
    1970). From a coordinator to a gateway, ``producer_id`` 0 means that the application needs a block of ids: the
    gateway asks again with one."""

    producer_id: int
    producer_epoch: int
    timestamp_ms: int
    ticket: str = field(default="", repr=False)
    """As in ``ProducerId``: set by the gateway."""
    window: int = 0
    """Set by the gateway; see ``ProducerId``."""


@dataclass(frozen=True, slots=True)
class InitTaskProducer(Message):
    """Ask for the producer of task ``task`` of the numbered batch ``batch`` of the application ``app``. The answer
    is the same for every attempt of the task, as long as ``batch`` is the application's latest. A greater number
    begins the next batch: from then on leaders refuse what tasks of the one before still send (``FENCED_PRODUCER``).
    A smaller number is refused with ``FENCED_PRODUCER``. Since feature level 4."""

    OP: ClassVar[str] = "init_task_producer"
    ANSWER: ClassVar[type[Message]] = TaskProducer
    app: str
    owner: str
    """Name of the sequence of batches, as the id of a checkpoint. An application belongs to the owner that asked
    first; any other is refused with ``INVALID_TRANSACTION``."""
    batch: int
    task: int
    """0 to ``MAX_TASKS`` - 1."""
    first_id: int = 0
    """First of ``MAX_TASKS`` ids that nobody has used: set by the gateway when the coordinator has asked for them."""
    principal: str = ""
    """As in ``JoinGroup``."""


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """Part: a transaction. ``state``: ``open``, ``prepared`` (staged, and waits for its commit), ``committing``,
    ``aborting`` (decided, and leaders have yet to hear of it), ``committed`` or ``aborted``."""

    app: str
    state: str
    producer_id: int
    producer_epoch: int
    staged: str = ""
    """Of a staged one: its name."""
    partitions: int = 0
    """How many it has written to."""
    since_ms: int = -1
    """Wall clock: since when it is in that state."""
    until_ms: int = -1
    """Wall clock: then it is aborted, unless it has ended before."""
    parts: tuple[TopicShare, ...] = ()
    """The partitions; told with ``app`` only."""
    pending: tuple[TopicShare, ...] = ()
    """Of one that is decided: partitions that are not known to have its marker. Told with ``app`` only."""


@dataclass(frozen=True, slots=True)
class ListTransactionsAnswer(Message):
    """Answer: the transactions, by application."""

    transactions: tuple[TransactionInfo, ...] = ()
    batches: tuple[int, ...] = ()
    """With ``app``: the newest of the batches that it has committed of what it staged, rising."""
    more: bool = False
    """Without ``app``: there are others, of applications behind the last one."""


@dataclass(frozen=True, slots=True)
class ListTransactions(Message):
    """Which transactions are not at their end? With ``app``: those of that application, and its last one."""

    OP: ClassVar[str] = "list_transactions"
    ANSWER: ClassVar[type[Message]] = ListTransactionsAnswer
    app: str = ""
    partition: int = -1
    """Of ``__transactions``: from a gateway to its leader; -1: of all, or the one that ``app`` belongs to."""
    after: str = ""
    """Without ``app``: those of applications behind this one."""
    most: int = 0
    """Without ``app``: so many, and the others of the last application; 0: all."""


@dataclass(frozen=True, slots=True)
class SettleTransaction(Message):
    """End a *hanging* transaction in one partition: one that is open in the log, and that no coordinator has. Refused
    with ``INVALID_TRANSACTION`` while a coordinator has a transaction of that producer, and with
    ``UNKNOWN_TRANSACTION`` unless it is the one that keeps the last stable offset where it is. Since feature level
    4."""

    OP: ClassVar[str] = "settle_transaction"
    ANSWER: ClassVar[type[Message]] = Done
    topic_id: str
    partition: int
    producer_id: int
    producer_epoch: int
    commit: bool


@dataclass(frozen=True, slots=True)
class EnrolPartition(Message):
    """A leader asks the coordinator, before it takes the first batch of a transaction: is it open? The partition is
    part of it from then on."""

    OP: ClassVar[str] = "enrol_partition"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    app: str
    producer_id: int
    producer_epoch: int
    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True)
class WriteMarker(Message):
    """A coordinator tells a leader how a transaction has ended: it writes that into the log, once, and takes nothing
    of the transaction any more. Answered when the marker is committed."""

    OP: ClassVar[str] = "write_marker"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    topic_id: str
    partition: int
    producer_id: int
    producer_epoch: int
    commit: bool


@dataclass(frozen=True, slots=True)
class PrepareTransactions(SequencedRequest):
    """A gateway wants the topic ``__transactions``; it is created where there is none yet."""

    OP: ClassVar[str] = "prepare_transactions"
    ANSWER: ClassVar[type[Message]] = TopicCreated
