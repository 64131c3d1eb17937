"""Batches of transactions at a partition's leader before they are appended, and the markers that end transactions.

The first batch of a transaction waits until its coordinator has enrolled the partition. The transaction is then open,
and the partition will get its marker. Later batches of the transaction wait behind the first one. From then on the
log itself shows that the transaction is open (``replication/transaction_index.py``), and its batches cost one lookup.
A batch that comes after the end finds the marker in the log and is fenced. If the producer is forgotten here, its
coordinator does not know the transaction and refuses it. If a marker comes while the coordinator is being asked, the
answer would mean nothing any more, and the waiting batches are refused.

While a producer has an open transaction on the partition, a plain batch under its id is refused (``check_plain``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from tidelog.batch.format import BatchHeader
from tidelog.errors import TidelogError, refuse
from tidelog.types import Acks, Buffer, NodeId
from tidelog.wire.messages import Done, EnrolPartition, Message, ProduceAck, ProducePart

from tidelog_replica.effects import Effects
from tidelog_replica.replication.producer_state import ProducerState

MAX_HELD = 1000
"""Most batches of one partition that wait for a coordinator."""
PASSED_ON = ("FENCED_PRODUCER", "TRANSACTION_ABORTED", "UNKNOWN_TRANSACTION", "INVALID_TRANSACTION")
"""Codes of a coordinator's refusals that the producer gets as they are. Any other failure may pass and becomes
``OFFLINE``."""
ASK_TIMEOUT_S = 3.0


@dataclass(slots=True, eq=False)
class _Asked:
    """A transaction that its coordinator is verifying, and the batches that are held back until the answer."""

    app: str
    epoch: int
    held: list[tuple[int, ProducePart, Buffer]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Question:
    """A transaction verification that waits to be sent to a coordinator: the coordinator of transactional id ``app``
    is to enrol this partition in the transaction. ``done`` is called with the answer or error."""

    app: str
    producer_id: int
    epoch: int
    done: Callable[[Message | TidelogError, float], None]


class TransactionGate:
    """The verification of transactions at one partition's leader, before their batches are appended. A leader has one
    for its leader epoch. ``produce`` is called with each held batch once it may be appended."""

    def __init__(
        self,
        producers: ProducerState,
        effects: Effects,
        produce: Callable[[int, ProducePart, Buffer, float], None],
    ) -> None:
        self._producers = producers
        self._effects = effects
        self._produce = produce
        self._asked: dict[int, _Asked] = {}
        self._confirmed: tuple[int, int] | None = None
        """Producer id and epoch of the transaction whose held batches are being appended now, after the coordinator's
        answer; None otherwise."""
        self.unsent: list[Question] = []
        """Questions that are not sent yet; the node sends them to the coordinators at the end of the input."""

    def holds(self, source: int, part: ProducePart, batch: Buffer, header: BatchHeader) -> bool:
        """Return True if a transaction's batch must wait for its coordinator; the batch is held then, and a
        verification is queued unless one is under way. Return False if the batch may be checked further at once: the
        log shows that the transaction is open here, or that its producer is fenced. If an older epoch of the producer
        is being verified, the batches held for it are refused. Raises ``INVALID_TRANSACTION`` if the batch lacks a
        producer id, a transactional id or acks ``all``, ``FENCED_PRODUCER`` if a newer epoch of its producer is being
        verified, and ``OVERLOADED`` if too many batches wait."""
        id, epoch = header.producer_id, header.producer_epoch
        if not header.is_transactional or not part.transaction or not id or part.acks != Acks.ALL:
            text = "a batch of a transaction says so, has a producer id, and names its application; with acks all"
            raise refuse("INVALID_TRANSACTION", text)
        if self._confirmed == (id, epoch) or self._producers.fences(id, epoch):
            return False
        asked = self._asked.get(id)
        if asked is None and self._producers.transactions.is_open(id, epoch):
            return False
        if asked is not None and asked.epoch < epoch:
            self._give_up(id, "FENCED_PRODUCER", f"producer {id} is at epoch {epoch}")
            asked = None
        if asked is not None and asked.epoch > epoch:
            raise refuse("FENCED_PRODUCER", f"producer {id} is at epoch {asked.epoch}, not {epoch}")
        if sum(len(each.held) for each in self._asked.values()) >= MAX_HELD:
            raise refuse("OVERLOADED", f"{MAX_HELD} batches wait for the coordinators of their transactions")
        if asked is None:
            asked = self._asked[id] = _Asked(part.transaction, epoch)
            self.unsent.append(Question(asked.app, id, epoch, partial(self._on_answer, id, asked)))
        asked.held.append((source, part, bytes(batch)))
        return True

    def check_plain(self, producer_id: int) -> None:
        """Raise ``INVALID_TRANSACTION`` for a batch outside of transactions if its producer has a transaction here
        that is open or being verified. Such a batch could raise the producer's epoch in this log, and the marker of
        the transaction would then come too late."""
        if producer_id and (producer_id in self._asked or producer_id in self._producers.transactions.open):
            text = f"producer {producer_id} has an open transaction here, and the batch is not part of it"
            raise refuse("INVALID_TRANSACTION", text)

    def _on_answer(self, id: int, asked: _Asked, answer: Message | TidelogError, now: float) -> None:
        """Act on the coordinator's answer to a verification: append the held batches if the coordinator has enrolled
        the partition; otherwise refuse them. Does nothing if the verification was given up meanwhile."""
        if self._asked.get(id) is not asked:
            return
        del self._asked[id]
        if isinstance(answer, Done):
            self._confirmed = (id, asked.epoch)
            for source, part, batch in asked.held:
                self._produce(source, part, batch, now)
            self._confirmed = None
            return
        assert isinstance(answer, TidelogError)
        code = answer.code if answer.code in PASSED_ON else "OFFLINE"
        self._refuse(asked, code, f"the coordinator of {asked.app} says: {answer.message}")

    def on_marker(self, producer_id: int) -> None:
        """Refuse the batches of this producer that are held back, since a marker has just ended its transaction in
        this log. Does nothing if there are none."""
        self._give_up(producer_id, "OFFLINE", "its transaction has just ended")

    def _give_up(self, id: int, code: str, message: str) -> None:
        """Refuse the batches of producer ``id`` that are held back, with ``code`` and ``message``, and ignore the
        coordinator's answer. Does nothing if there are none."""
        asked = self._asked.pop(id, None)
        if asked is not None:
            self._refuse(asked, code, message)

    def resign(self, code: str, message: str) -> None:
        """Refuse all batches that are held back, with ``code`` and ``message``, and drop the unsent questions, since
        the role ends. These batches were never appended."""
        for id in list(self._asked):
            self._give_up(id, code, message)
        self.unsent.clear()

    def _refuse(self, asked: _Asked, code: str, message: str) -> None:
        """Send an error with ``code`` and ``message`` for each batch that is held back for this transaction."""
        info = refuse(code, message).to_info()
        for source, part, _ in asked.held:
            self._effects.ack(source, ProduceAck(part.id, error=info))


def enrol(node: NodeId, topic_id: str, partition: int, question: Question) -> EnrolPartition:
    """Return the message that asks a coordinator to verify a transaction and to enrol the partition that ``node``
    leads."""
    return EnrolPartition(node, question.app, question.producer_id, question.epoch, topic_id, partition)
