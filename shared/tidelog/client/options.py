"""The settings of producers, consumers and members of groups. They are frozen, and checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from tidelog.errors import ConfigError
from tidelog.types import Acks

if TYPE_CHECKING:
    from tidelog.batch.format import Codec

ISOLATIONS = ("committed", "uncommitted")
CONSISTENCIES = ("eventual", "bounded", "linearizable")
ON_UNREADABLE = ("raise", "skip")
ASSIGNORS = ("sticky", "range")
TRANSACTION_TIMEOUT_S = 60.0
"""Seconds after which the cluster aborts a transaction that has not ended, by default."""
TABLE_COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers", "leader_epoch")
"""The columns of a table (``Log.read_arrow``) unless others are asked for: all but ``topic``."""
ACKS = {"none": Acks.NONE, "leader": Acks.LEADER, "all": Acks.ALL}


def check(faults: dict[str, bool]) -> None:
    """Raise ``ConfigError`` with every text in ``faults`` whose condition is true, one per line. Does nothing if no
    condition is true."""
    found = [text for text, wrong in faults.items() if wrong]
    if found:
        raise ConfigError("\n".join(found))


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """The settings of a producer: how it batches and which durability it waits for. Times in seconds, sizes in bytes.
    The defaults serve two loads. A lone record leaves at once, since linger only counts while earlier batches of its
    partition are in flight. A flood of records fills batches of 128 KiB, and larger ones while they have to wait
    anyway."""

    acks: str = "all"
    """Durability to wait for. ``none``: none, so a record may be lost after its ack; ``leader``: durable on the
    leader; ``all``: committed."""
    compression: Codec = "none"
    linger_s: float = 0.005
    """Longest time that a batch waits for more records while earlier batches of its partition are in flight; 0:
    never."""
    batch_bytes: int = 128 << 10
    """Size at which a batch is sent; lowered to the topic's ``max_batch_bytes``. While ``max_in_flight`` batches
    precede it, a batch goes on to fill, up to half of their total size, and takes the places of several: one large
    batch costs the servers less than several."""
    delivery_timeout_s: float = 30.0
    """Seconds after ``submit`` at which a record that is not acknowledged fails, with unknown outcome if it may be in
    the log."""
    request_timeout_s: float = 10.0
    """Time that a gateway may try one batch before the producer sends it again."""
    max_in_flight: int = 5
    """Most batches of one partition in flight. An idempotent producer keeps the order with any number, and never has
    more in flight than the cluster allows (``window``, 5)."""
    buffer_bytes: int = 32 << 20
    """Bytes of records that may be unacknowledged; ``submit`` waits when there are more."""
    idempotent: bool | None = None
    """Whether a retry never writes a record twice. None: yes, unless acks is ``none``. Without idempotence the
    producer does not retry by itself, since a retry could change the order or write twice."""
    backoff_s: float = 0.1
    """Pause of a partition before a batch is tried again after an error."""

    def __post_init__(self) -> None:
        from tidelog.batch.format import CODECS

        check(
            {
                f"acks must be one of {', '.join(ACKS)}, not {self.acks!r}": self.acks not in ACKS,
                f"compression must be one of {', '.join(CODECS)}": self.compression not in CODECS,
                "linger_s must not be negative": self.linger_s < 0,
                "batch_bytes must be at least 1": self.batch_bytes < 1,
                "buffer_bytes must be at least batch_bytes": self.buffer_bytes < self.batch_bytes,
                "request_timeout_s must be above 0": self.request_timeout_s <= 0,
                "delivery_timeout_s must be above linger_s": self.delivery_timeout_s <= self.linger_s,
                "max_in_flight must be at least 1": self.max_in_flight < 1,
                "backoff_s must be above 0": self.backoff_s <= 0,
                "acks none cannot be idempotent": self.acks == "none" and self.idempotent is True,
            }
        )

    @property
    def is_idempotent(self) -> bool:
        """Whether the producer is idempotent: the value of ``idempotent``, or, if that is None, whether ``acks`` is
        not ``none``."""
        return self.acks != "none" if self.idempotent is None else self.idempotent


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """The settings of a consumer: how far ahead it reads, from which replicas, and how stale the records may be."""

    buffer_bytes: int = 32 << 20
    """Bytes that may have arrived in this process and not been returned to the application, over all partitions of
    the consumer."""
    partition_bytes: int = 4 << 20
    """Most bytes of ``buffer_bytes`` for one partition; each has at least 64 KiB, with any number of partitions. More
    than the gateway sends ahead, 8 MiB, has no effect."""
    backoff_s: float = 0.1
    """Pause before a partition is read again after a retriable error."""
    read_from: str = "leader"
    """Replicas to read from: only the ``leader``, or ``any`` replica in sync or learner, which spares the leader.
    Only committed records are read in either case."""
    consistency: str = "eventual"
    """What a read must include of the committed records. ``eventual``: what the replica knows of; ``bounded``:
    everything committed until ``max_staleness_s`` before; ``linearizable``: everything committed before the request,
    which only a leader can guarantee."""
    max_staleness_s: float | None = None
    """How stale a read with ``consistency`` ``bounded`` may be, in seconds. A replica that cannot show that it is
    fresh enough leaves the read to the leader."""
    isolation: str = "committed"
    """Which records of transactions are read. ``committed``: only records of committed transactions, in the order of
    the log, so records behind an open transaction wait for its end. ``uncommitted``: all records, also those of
    transactions that are aborted later."""
    on_unreadable: str = "raise"
    """What happens at a batch that cannot be decoded. ``raise``: the error ``UnreadableBatch``, and the partition
    stops before the batch. ``skip``: the batch is passed over, counted and logged. A batch whose CRC is wrong is
    never skipped."""

    def __post_init__(self) -> None:
        check(
            {
                "partition_bytes must be at least 1": self.partition_bytes < 1,
                "buffer_bytes must be at least partition_bytes": self.buffer_bytes < self.partition_bytes,
                "backoff_s must be above 0": self.backoff_s <= 0,
                f"read_from must be leader or any, not {self.read_from!r}": self.read_from not in ("leader", "any"),
                f"consistency must be one of {', '.join(CONSISTENCIES)}, not {self.consistency!r}": self.consistency
                not in CONSISTENCIES,
                f"isolation must be one of {', '.join(ISOLATIONS)}, not {self.isolation!r}": self.isolation
                not in ISOLATIONS,
                f"on_unreadable must be raise or skip, not {self.on_unreadable!r}": self.on_unreadable
                not in ON_UNREADABLE,
                "consistency bounded needs max_staleness_s": self.consistency == "bounded"
                and self.max_staleness_s is None,
                f"max_staleness_s is the bound of consistency bounded, not of {self.consistency}": self.consistency
                != "bounded"
                and self.max_staleness_s is not None,
                "max_staleness_s must be 0 or more, below a day": self.max_staleness_s is not None
                and not 0 <= self.max_staleness_s < 86_400,
                "linearizable reads come from the leader: read_from any cannot serve them": self.read_from == "any"
                and self.consistency == "linearizable",
            }
        )

    @property
    def max_staleness_ms(self) -> int:
        """``max_staleness_s`` in milliseconds, as sent on the wire; -1 if there is no bound."""
        return -1 if self.max_staleness_s is None else int(self.max_staleness_s * 1000)

    def credit(self, partitions: int) -> int:
        """Return the number of bytes that one partition may have in flight or waiting, if the consumer reads this
        many partitions: its share of ``buffer_bytes``, at most ``partition_bytes``, at least 64 KiB."""
        return max(64 << 10, min(self.partition_bytes, self.buffer_bytes // max(partitions, 1)))


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """The settings of a member of a consumer group: timeouts, assignor and commits. Times are seconds."""

    session_timeout_s: float = 45.0
    """Time without a heartbeat after which the coordinator gives the member's partitions to others."""
    rebalance_timeout_s: float = 60.0
    """Time within which a member must give up partitions, or else it is removed from the group. This is the longest
    time that the application may take for one record, or for one batch if it takes batches."""
    assignor: str = ""
    """Rule by which the group assigns partitions. ``sticky``: few partitions move; ``range``: neighbouring
    partitions, with equal numbers in every topic; "": the rule that the group has."""
    auto_commit_s: float | None = 5.0
    """Interval at which finished positions are committed; they are also committed before partitions are given up.
    None: positions are committed only by ``commit``."""
    backoff_s: float = 0.1
    """Pause before the member repeats a request after a retriable error."""

    def __post_init__(self) -> None:
        check(
            {
                "session_timeout_s must be above 0": self.session_timeout_s <= 0,
                "rebalance_timeout_s must be above 0": self.rebalance_timeout_s <= 0,
                f"assignor must be one of {', '.join(ASSIGNORS)}": self.assignor not in ("", *ASSIGNORS),
                "auto_commit_s must be above 0, or None": self.auto_commit_s is not None and self.auto_commit_s <= 0,
                "backoff_s must be above 0": self.backoff_s <= 0,
            }
        )


class Reading(TypedDict, total=False):
    """The fields of ``ConsumerOptions`` that ``Log.consume`` also takes by name."""

    read_from: str
    consistency: str
    max_staleness_s: float | None
    isolation: str
    on_unreadable: str
