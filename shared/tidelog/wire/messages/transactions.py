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
    """Answer to ``BeginTransaction``: the transaction is open, and its batches must carry this producer id and
    epoch."""

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
    """Request of a client, passed on by its gateway to the application's coordinator: open a transaction of
    application ``app``. An application has one transaction at a time: a transaction that is still open is aborted,
    and its writer is fenced. A second request with the same ``owner`` gets the answer of the first. The request is
    refused with ``TRANSACTION_ENDING`` while an earlier transaction is not completely ended."""

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
    renew: bool = False
    """Begin nothing, but let the ``timeout_ms`` of the open transaction with this ``owner`` begin again. The answer
    is that of its begin. The request is refused with ``UNKNOWN_TRANSACTION``, ``FENCED_PRODUCER`` or
    ``TRANSACTION_ABORTED`` if there is none any more. A transaction may stay open for so long as the setting
    ``transactions.open_max_ms`` says. An older coordinator ignores the field, and may begin a transaction."""


@dataclass(frozen=True, slots=True)
class TransactionEnded(Message):
    """Answer to ``EndTransaction``: whether the transaction is committed or aborted, which is final, and the
    partitions that do not show it yet."""

    committed: bool = False
    """True: committed. False: aborted."""
    pending: tuple[TopicShare, ...] = ()
    """Partitions in which the marker of the commit was still missing after the coordinator's ``visible_wait_ms``.
    Readers with isolation ``committed`` wait there. If there are none, the commit is visible in every partition. A
    second request of the same kind waits again. A server of an earlier release never lists any."""


@dataclass(frozen=True, slots=True)
class EndTransaction(Message):
    """Request of a client, passed on by its gateway to the application's coordinator: commit or abort a transaction.
    The abort of a committed transaction changes nothing, and its answer has ``committed``. The commit of an aborted
    transaction is refused with ``TRANSACTION_ABORTED``. The request is refused with ``FENCED_PRODUCER`` if the
    application has begun another transaction since."""

    OP: ClassVar[str] = "end_transaction"
    ANSWER: ClassVar[type[Message]] = TransactionEnded
    app: str
    producer_id: int
    producer_epoch: int
    commit: bool
    """True: commit. False: abort."""


@dataclass(frozen=True, slots=True)
class PrepareTransaction(Message):
    """Request of a client, passed on by its gateway to the application's coordinator: complete a staged transaction,
    one of several that are committed together. From then on the transaction waits for ``CommitStaged``; it is aborted
    if none comes within the coordinator's ``staged_timeout_ms``."""

    OP: ClassVar[str] = "prepare_transaction"
    ANSWER: ClassVar[type[Message]] = Done
    app: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class StagedCommitted(Message):
    """Answer to ``CommitStaged``: the batch is committed, by this request or an earlier one."""

    repeated: bool = False
    """The batch was committed by an earlier request. Staged transactions that only this request has named are not
    part of it and are aborted."""
    pending: tuple[TopicShare, ...] = ()
    """Partitions without the marker of one of the named transactions, as in ``TransactionEnded``."""


@dataclass(frozen=True, slots=True)
class CommitStaged(Message):
    """Request of a client, passed on by its gateway to the application's coordinator: commit staged transactions of
    an application together, at most once for each ``batch``. If one of them is not, or no longer, prepared, nothing
    is committed, and the request is refused with ``UNKNOWN_TRANSACTION``."""

    OP: ClassVar[str] = "commit_staged"
    ANSWER: ClassVar[type[Message]] = StagedCommitted
    app: str
    batch: int
    """Number of the batch that the transactions form."""
    staged: tuple[str, ...]
    """Names of the staged transactions. If they begin with ``owner=OWNER/``, the application belongs to that owner:
    the request is refused with ``INVALID_TRANSACTION`` and the detail ``owner`` if the last commit was of another
    one."""
    alone: bool = False
    """No other request commits any of the application's staged transactions. All that are not named here are then
    aborted."""
    principal: str = ""
    """As in ``JoinGroup``."""


@dataclass(frozen=True, slots=True)
class AbortStaged(Message):
    """Request of a client, passed on by its gateway to the application's coordinator: abort staged transactions,
    which would otherwise be committed together. Transactions that are committed or not known are skipped."""

    OP: ClassVar[str] = "abort_staged"
    ANSWER: ClassVar[type[Message]] = Done
    app: str
    staged: tuple[str, ...]
    """Names of the staged transactions."""


@dataclass(frozen=True, slots=True)
class TaskProducer(Message):
    """Answer to ``InitTaskProducer``: the producer id and epoch under which a task must write, and the timestamp that
    all its records must have."""

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
    """Request of a client, passed on by its gateway to the application's coordinator: get the producer of one task of
    a numbered batch. The answer is the same for every attempt of the task, as long as ``batch`` is the latest batch
    of the application. A greater number begins the next batch: from then on leaders refuse what tasks of earlier
    batches still send (``FENCED_PRODUCER``). A smaller number is refused with ``FENCED_PRODUCER``. Since feature
    level 4."""

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
    """Part of ``ListTransactionsAnswer``: a transaction, with its state, its deadline and its partitions."""

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
    """Answer to ``ListTransactions``: the transactions, sorted by application, and whether there are more."""

    transactions: tuple[TransactionInfo, ...] = ()
    batches: tuple[int, ...] = ()
    """With ``app``: the newest numbers of batches that the application has committed of what it staged, ascending."""
    more: bool = False
    """Without ``app``: there are more transactions, of applications after the last one."""


@dataclass(frozen=True, slots=True)
class ListTransactions(Message):
    """Request of a client to its gateway, which asks the coordinators: list the transactions that have not ended.
    With ``app`` list those of this application, and the last one that has ended."""

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
    producer_id: int = 0
    """Without ``app``: list only the transactions of this producer id, also those that have ended, as far as their
    coordinators keep them; 0: see above. A coordinator of an earlier release ignores the field."""


@dataclass(frozen=True, slots=True)
class SettleTransaction(Message):
    """Request of a client to its gateway: end a *hanging* transaction, which is open in the log of a partition
    although no coordinator has it. The gateway ends it in that partition with a ``WriteMarker``. The request is
    refused with ``INVALID_TRANSACTION`` while a coordinator has a transaction of that producer, and with
    ``UNKNOWN_TRANSACTION`` unless the transaction holds back the last stable offset. Since feature level 4."""

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
    """Request of a partition's leader to the transaction's coordinator, before it accepts the first batch of the
    transaction (KIP-890): verify that the transaction is open, and add the partition to it. An error refuses the
    batch."""

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
    """Request of a coordinator (or of a gateway, for ``SettleTransaction``) to the leader of a partition: write the
    outcome of a transaction into the log, at most once. From then on the leader accepts no more batches of the
    transaction. The answer comes when the marker is committed."""

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
    """Request of a gateway to the active controller, before its first request about a transaction: create the topic
    ``__transactions``. Does nothing if the topic exists; the answer has its id in any case."""

    OP: ClassVar[str] = "prepare_transactions"
    ANSWER: ClassVar[type[Message]] = TopicCreated
