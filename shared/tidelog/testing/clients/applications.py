"""The applications of a run that have transactions, in a topic of their own, and the checks of them at its end.

Their topic never loses committed records, whatever the other applications do. After the loss of disks it or the
coordinators may have no possible leader any more; then what was seen is checked as far as it goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.testing.clients.transactor import CommittedReader, Transactor
from tidelog.testing.hardware.loop import stream
from tidelog.testing.invariants.ghost import Violation
from tidelog.testing.options import TRANSACTED
from tidelog.types import GROUPS, TRANSACTIONS, TopicPartition
from tidelog.verify.check_transactions import Story, check

if TYPE_CHECKING:
    from tidelog.testing.cluster import Cluster

NAME = "transactions"
"""The name of all applications together, where clients of a run are chosen."""
TRANSACTORS: tuple[tuple[str, str, bool, bool], ...] = (
    ("x1", "one", False, True),
    ("x2", "one", False, True),
    ("x3", "two", False, False),
    ("x4", "driver", True, False),
)
"""Name, application, whether it stages, and whether it moves a group. Of the two processes of one application one is
a zombie, in turn."""


class Applications:
    """The simulated applications with transactions, and the checks of them at the end."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._story = Story()
        seed = cluster.options.seed
        self._transactors = [
            Transactor(cluster, name, stream(seed, name), app, stages=stages, moves=moves)
            for name, app, stages, moves in TRANSACTORS
        ]
        self._reader = CommittedReader(cluster, "x9", stream(seed, "x9"), self._story)

    def end(self) -> None:
        """Stop the applications, wait until open transactions have ended and the reader has read everything, and
        check the outcome. Raises ``Violation`` or AssertionError. If a needed partition has no possible leader,
        nothing is awaited."""
        cluster = self._cluster
        for transactor in self._transactors:
            transactor.stopped = True
        self._story.complete = all(map(cluster.may_be_led, self._needed()))
        if self._story.complete:
            cluster.until(lambda: all(transactor.idle for transactor in self._transactors), cluster.options.patience)
            for transactor in self._transactors:
                if transactor.stages:
                    self._drop_staged(transactor)
            cluster.until(self._is_settled, cluster.options.patience)
            for transactor in self._transactors:
                if transactor.moves and transactor.app not in self._story.moved:
                    self._find_position(transactor)
        else:
            cluster.count("transactions that cannot come to an end")
        self._judge()

    def _needed(self) -> list[TopicPartition]:
        topics = self._cluster.invariants.metadata.topics.values()
        named = [topic for topic in topics if topic.name in (TRANSACTED, TRANSACTIONS, GROUPS)]
        return [TopicPartition(topic.topic_id, p) for topic in named for p in range(len(topic.partitions))]

    def _is_settled(self) -> bool:
        """Return whether no transaction is in progress and the reader has read all committed records."""
        cluster, reader = self._cluster, self._reader
        return (
            all(transactor.idle for transactor in self._transactors)
            and all(cluster.invariants.in_sync(key) for key in cluster.transacted)
            and all(
                reader.positions.get(key, 0) == cluster.invariants.committed_end(key) for key in cluster.transacted
            )
        )

    def _drop_staged(self, transactor: Transactor) -> None:
        """Abort the last batch that a stopped driver has staged and never committed."""
        dropped: list[bool] = []
        transactor.drop_staged(dropped.append)
        self._cluster.until(lambda: bool(dropped), self._cluster.options.patience)
        assert dropped[0], f"nobody drops what {transactor.app} has staged"

    def _find_position(self, transactor: Transactor) -> None:
        """Look up where the group of an application stands in the end."""
        found: list[int | None] = []
        transactor.find_position(found.append)
        self._cluster.until(lambda: bool(found), self._cluster.options.patience)
        assert found[0] is not None, f"nobody tells where the group of {transactor.app} stands"
        self._story.moved[transactor.app] = found[0]

    def _judge(self) -> None:
        """Check the transactions and what the reader saw, and that no log has an open transaction. Raises
        ``Violation``."""
        cluster, story = self._cluster, self._story
        story.tries = [one for transactor in self._transactors for one in transactor.tries]
        anomalies = check(story)
        if anomalies:
            raise Violation("; ".join(f"{a.kind}: {a.text}" for a in anomalies[:5]))
        for name in cluster.replicas if story.complete else ():
            for key in cluster.transacted:
                partition = cluster.replica(name).core.partitions.get(key)
                if partition is not None and partition.log.producers.transactions.open:
                    raise Violation(f"T4 {name} {key}: a transaction is open for ever")
