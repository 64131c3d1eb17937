"""Settings of producers and consumers: frozen, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from tidelog.batch.format import CODECS, Codec
from tidelog.errors import ConfigError
from tidelog.types import Acks

ISOLATIONS = ("committed", "uncommitted")
CONSISTENCIES = ("eventual", "bounded", "linearizable")
ON_UNREADABLE = ("raise", "skip")
ASSIGNORS = ("sticky", "range")
ACKS = {"none": Acks.NONE, "leader": Acks.LEADER, "all": Acks.ALL}


def check(faults: dict[str, bool]) -> None:
    """Raise ``ConfigError`` with every text whose condition is true, one a line."""
    found = [text for text, wrong in faults.items() if wrong]
    if found:
        raise ConfigError("\n".join(found))


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """How a producer batches and what it promises. Times in seconds, sizes in bytes.

    The defaults serve both ends: a record that comes alone leaves at once (linger only counts while earlier batches
    of its partition are still on their way), a flood of records fills batches of 128 KiB, and larger ones where it
    would have to wait anyway.
    """

    acks: str = "all"
    """``none``: nothing is known of what becomes of it; ``leader``: durable on the leader; ``all``: committed."""
    compression: Codec = "none"
    linger_s: float = 0.005
    """Longest that a batch waits for company while earlier ones are in flight; 0: never."""
    batch_bytes: int = 128 << 10
    """A batch is sent when it has this much; at most the topic's ``max_batch_bytes``, for which it is lowered. While
    ``max_in_flight`` batches are before it, it goes on to fill, to as much as half of them, and takes their places:
    one large batch costs the servers less than several."""
    delivery_timeout_s: float = 30.0
    """From ``submit`` on; then the record has failed, perhaps with unknown outcome."""
    request_timeout_s: float = 10.0
    """How long a gateway may try one batch before the producer asks again."""
    max_in_flight: int = 5
    """Batches of one partition on their way at a time. When idempotent, order is kept with any number, and there are
    at most as many as the cluster allows (``window``, 5)."""
    buffer_bytes: int = 32 << 20
    """Records that are not acknowledged yet; ``submit`` waits when there are more."""
    idempotent: bool | None = None
    """A retry never writes a record twice. None: yes, unless acks is ``none``. Without it the producer never
    retries by itself, since that could change the order or write twice."""
    backoff_s: float = 0.1
    """Pause of a partition before a batch is tried again after an error."""

    def __post_init__(self) -> None:
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
        """What ``idempotent`` means in the end."""
        return self.acks != "none" if self.idempotent is None else self.idempotent


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """How far ahead a consumer reads, from whom, and how old what it gets may be."""

    buffer_bytes: int = 32 << 20
    """Bytes that may wait in this process for the application, all partitions of the consumer together."""
    partition_bytes: int = 4 << 20
    """Of these at most so many for one partition; at least 64 KiB each, however many partitions there are."""
    backoff_s: float = 0.1
    """Pause of a partition before it is asked for again after an error that may pass."""
    read_from: str = "leader"
    """``leader``; or ``any`` replica in sync or learner, which spares the leader. Only committed records in either
    case."""
    consistency: str = "eventual"
    """What an answer holds at least, besides nothing that is not committed. ``eventual``: what the replica knows of;
    ``bounded``: everything committed until ``max_staleness_s`` before; ``linearizable``: everything committed before
    it was asked, which only a leader can tell."""
    max_staleness_s: float | None = None
    """The bound of ``bounded``. A replica that cannot show that it is as fresh as that leaves it to the leader."""
    isolation: str = "committed"
    """``committed``: of transactions only what is committed, in the order of the log: what lies behind an open one
    waits for its end. ``uncommitted``: everything, also what is aborted later."""
    on_unreadable: str = "raise"
    """What happens at a batch that cannot be decoded. ``raise``: the error ``UnreadableBatch``, and the partition
    stands before it; ``skip``: the batch is passed over, counted and logged. A batch whose CRC is wrong is never
    skipped."""

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
        """As the wire has it: -1 for none."""
        return -1 if self.max_staleness_s is None else int(self.max_staleness_s * 1000)

    def credit(self, partitions: int) -> int:
        """Bytes that one of so many partitions may have under way or waiting."""
        return max(64 << 10, min(self.partition_bytes, self.buffer_bytes // max(partitions, 1)))


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """How a consumer is a member of its group. Times in seconds."""

    session_timeout_s: float = 45.0
    """A member that is not heard of for so long has lost its partitions to others."""
    rebalance_timeout_s: float = 60.0
    """A member that is to give up partitions and does not in this time is out: the longest that the application may
    take for one record, or one batch where it takes batches."""
    assignor: str = ""
    """``sticky``: few partitions move; ``range``: neighbouring partitions, the same ones of every topic; "": the
    group's."""
    auto_commit_s: float | None = 5.0
    """What the application has finished is committed so often, and before partitions are given up. None: only
    ``commit`` commits."""
    backoff_s: float = 0.1
    """Pause before the member asks again after an error that may pass."""

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
    """Options of a consumer that may be given by name; see ``ConsumerOptions``."""

    read_from: str
    consistency: str
    max_staleness_s: float | None
    isolation: str
    on_unreadable: str
