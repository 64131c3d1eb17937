"""Transactions: requests of clients to a gateway, of a gateway to the application's coordinator, and between
coordinators and leaders. Fields named ``app`` have the transactional id of the application (KIP-98)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.messages.base import Done, Message, SequencedRequest
from tidelog.wire.messages.groups import TopicShare
from tidelog.wire.messages.metadata import TopicCreated


@dataclass(frozen=True, slots=True)
class TransactionBegun(Message):
    """Answer to ``BeginTransaction``: the transaction is open, and its batches are written with these ids."""

    producer_id: int
    """Producer id of the batches of the transaction."""
    producer_epoch: int
    """Producer epoch of the batches of the transaction."""
    ticket: str = field(default="", repr=False)
    """As in ``ProducerId``: set by the gateway."""
    window: int = 0
    """As in ``ProducerId``: set by the gateway."""


@dataclass(frozen=True, slots=True)
class BeginTransaction(Message):
    """Open a transaction of application ``app``. An application has one transaction at a time: one that is still open
    is aborted, and its writer is fenced. A second request with the same ``owner`` gets the answer of the first."""

    OP: ClassVar[str] = "begin_transaction"
    ANSWER: ClassVar[type[Message]] = TransactionBegun
    app: str
    owner: str
    """Random name of this transaction."""
    staged: str = ""
    """Random name of a staged transaction; "": the transaction is not staged. An application may have many staged
    transactions at a time."""
    timeout_ms: int = 60_000
    """The transaction is aborted if it has not ended after so many milliseconds."""
    producer_id: int = 0
    """Producer id that is not used yet: set by the gateway, and taken by the coordinator if it needs one."""
    principal: str = ""
    """As in ``JoinGroup``."""


@dataclass(frozen=True, slots=True)
class TransactionEnded(Message):
    """Answer to ``EndTransaction``: the outcome of the transaction, which is final."""

    committed: bool = False
    """True: committed. False: aborted."""
    pending: tuple[TopicShare, ...] = ()
    """Partitions in which the marker of the commit was still missing after the coordinator's ``visible_wait_ms``.
    Readers with isolation ``committed`` wait there. If there are none, the commit is visible in every partition. A
    second request of the same kind waits again. A server of an earlier release never lists any."""


@dataclass(frozen=True, slots=True)
class EndTransaction(Message):
    """Commit or abort a transaction. The abort of a committed transaction changes nothing, and its answer has
    ``committed``. The commit of an aborted transaction is refused with ``TRANSACTION_ABORTED``."""

    OP: ClassVar[str] = "end_transaction"
    ANSWER: ClassVar[type[Message]] = TransactionEnded
    app: str
    producer_id: int
    producer_epoch: int
    commit: bool
    """True: commit. False: abort."""


@dataclass(frozen=True, slots=True)
class PrepareTransaction(Message):
    """Complete a staged transaction. It then waits for ``CommitStaged``, for as long as the coordinator's
    ``staged_timeout_ms``."""

    OP: ClassVar[str] = "prepare_transaction"
    ANSWER: ClassVar[type[Message]] = Done
    app: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class StagedCommitted(Message):
    """Answer to ``CommitStaged``: the staged transactions of the batch are committed."""

    repeated: bool = False
    """The batch was committed by an earlier request. Staged transactions that only this request has named are not
    part of it and are aborted."""
    pending: tuple[TopicShare, ...] = ()
    """Partitions without the marker of one of the named transactions, as in ``TransactionEnded``."""


@dataclass(frozen=True, slots=True)
class CommitStaged(Message):
    """Commit staged transactions of an application together, at most once for each ``batch``. If one of them is not
    prepared, or no longer, nothing is committed: ``UNKNOWN_TRANSACTION``."""

    OP: ClassVar[str] = "commit_staged"
    ANSWER: ClassVar[type[Message]] = StagedCommitted
    app: str
    batch: int
    """Number of the batch that the transactions form."""
    staged: tuple[str, ...]
    """Names of the staged transactions."""
    alone: bool = False
    """No other request commits any of the application's staged transactions. All that are not named here are then
    aborted."""
    principal: str = ""
    """As in ``JoinGroup``."""


@dataclass(frozen=True, slots=True)
class AbortStaged(Message):
    """Abort staged transactions. Those that are committed or not known are passed over."""

    OP: ClassVar[str] = "abort_staged"
    ANSWER: ClassVar[type[Message]] = Done
    app: str
    staged: tuple[str, ...]
    """Names of the staged transactions."""


@dataclass(frozen=True, slots=True)
class TaskProducer(Message):
    """Answer to ``InitTaskProducer``: the producer of a task. Its batches have this producer id and epoch, and all
    its records have this timestamp."""

    producer_id: int
    """Producer id. 0, from a coordinator to a gateway: the application needs a block of ids, and the gateway must ask
    again with one."""
    producer_epoch: int
    timestamp_ms: int
    """Timestamp of the task's records, in milliseconds since 1970."""
    ticket: str = field(default="", repr=False)
    """As in ``ProducerId``: set by the gateway."""
    window: int = 0
    """As in ``ProducerId``: set by the gateway."""


@dataclass(frozen=True, slots=True)
class InitTaskProducer(Message):
    """Get the producer of one task of a numbered batch. The answer is the same for every attempt of the task, as long
    as ``batch`` is the latest batch of the application. A greater number begins the next batch. From then on leaders
    refuse the batches that tasks of the one before still send (``FENCED_PRODUCER``). A smaller number is refused with
    ``FENCED_PRODUCER``. Since feature level 4."""

    OP: ClassVar[str] = "init_task_producer"
    ANSWER: ClassVar[type[Message]] = TaskProducer
    app: str
    owner: str
    """Name of the sequence of batches, for example the id of a checkpoint. An application belongs to the first owner
    that asked; the request of another owner is refused with ``INVALID_TRANSACTION``."""
    batch: int
    """Number of the batch."""
    task: int
    """Number of the task in the batch, from 0 to ``MAX_TASKS`` - 1."""
    first_id: int = 0
    """First of ``MAX_TASKS`` (100,000) producer ids that are not used yet. The gateway sets it when the coordinator
    has asked for a block of ids; otherwise 0."""
    principal: str = ""
    """As in ``JoinGroup``."""


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """Part of ``ListTransactionsAnswer``: the state of a transaction."""

    app: str
    state: str
    """``open``. ``prepared``: staged, and waits for its commit. ``committing`` or ``aborting``: decided, but some
    leaders do not know it yet. ``committed`` or ``aborted``."""
    producer_id: int
    producer_epoch: int
    staged: str = ""
    """Name of a staged transaction; "": it is not staged."""
    partitions: int = 0
    """Number of partitions that the transaction has written to."""
    since_ms: int = -1
    """Wall clock when the transaction came into this state, in milliseconds; -1: not known."""
    until_ms: int = -1
    """Wall clock when the transaction is aborted unless it has ended before, in milliseconds; -1: it is decided."""
    parts: tuple[TopicShare, ...] = ()
    """Partitions that the transaction has written to; empty unless the request had ``app``."""
    pending: tuple[TopicShare, ...] = ()
    """Of a decided transaction: partitions that are not known to have its marker; empty unless the request had
    ``app``."""


@dataclass(frozen=True, slots=True)
class ListTransactionsAnswer(Message):
    """Answer to ``ListTransactions``: the transactions, sorted by application."""

    transactions: tuple[TransactionInfo, ...] = ()
    batches: tuple[int, ...] = ()
    """With ``app``: the newest numbers of batches that the application has committed of what it staged, ascending."""
    more: bool = False
    """Without ``app``: there are more transactions, of applications after the last one."""


@dataclass(frozen=True, slots=True)
class ListTransactions(Message):
    """List the transactions that have not ended. With ``app`` list those of this application, and the last one that
    has ended."""

    OP: ClassVar[str] = "list_transactions"
    ANSWER: ClassVar[type[Message]] = ListTransactionsAnswer
    app: str = ""
    """Transactional id; "": transactions of all applications."""
    partition: int = -1
    """Partition of ``__transactions`` whose transactions a gateway asks its leader for. -1: all partitions, or the
    one that ``app`` belongs to."""
    after: str = ""
    """Without ``app``: answer only applications that sort after this one."""
    most: int = 0
    """Without ``app``: how many transactions to answer. The transactions of the last application are answered in
    full. 0: all."""


@dataclass(frozen=True, slots=True)
class SettleTransaction(Message):
    """End a *hanging* transaction in one partition: a transaction that is open in the log and that no coordinator
    has. It is refused with ``INVALID_TRANSACTION`` while a coordinator has a transaction of that producer, and with
    ``UNKNOWN_TRANSACTION`` unless it is the transaction that holds back the last stable offset. Since feature level
    4."""

    OP: ClassVar[str] = "settle_transaction"
    ANSWER: ClassVar[type[Message]] = Done
    topic_id: str
    partition: int
    producer_id: int
    producer_epoch: int
    commit: bool
    """True: commit. False: abort."""


@dataclass(frozen=True, slots=True)
class EnrolPartition(Message):
    """Verify that a transaction is open, and add a partition to it. A leader asks the coordinator before it accepts
    the first batch of the transaction (KIP-890)."""

    OP: ClassVar[str] = "enrol_partition"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    """Server that leads the partition."""
    app: str
    producer_id: int
    producer_epoch: int
    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True)
class WriteMarker(Message):
    """Write the outcome of a transaction into the log of one partition, at most once. A coordinator sends it to the
    leader, which then accepts no more batches of the transaction. The answer comes when the marker is committed."""

    OP: ClassVar[str] = "write_marker"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    """Server of the coordinator; "" from a gateway (``SettleTransaction``)."""
    topic_id: str
    partition: int
    producer_id: int
    producer_epoch: int
    commit: bool
    """True: the transaction is committed. False: it is aborted."""


@dataclass(frozen=True, slots=True)
class PrepareTransactions(SequencedRequest):
    """Create the topic ``__transactions``, unless it exists. A gateway sends it to the active controller before the
    first request about a transaction."""

    OP: ClassVar[str] = "prepare_transactions"
    ANSWER: ClassVar[type[Message]] = TopicCreated
