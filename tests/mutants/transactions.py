"""Rules of transactions, broken."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from tidelog_gateway.rights.authorizer import Authorizer
from tidelog_replica.coordinators import runtime as coordinated
from tidelog_replica.coordinators.groups import coordinator as groups
from tidelog_replica.coordinators.groups import service as coordinating
from tidelog_replica.coordinators.transactions import markers as marking
from tidelog_replica.coordinators.transactions import service as transacting
from tidelog_replica.coordinators.transactions.coordinator import TransactionCoordinator
from tidelog_replica.coordinators.transactions.service import TransactionCoordinatorService
from tidelog_replica.coordinators.transactions.transaction import ENDING, TransactionMetadata
from tidelog_replica.partition.transaction_gate import TransactionGate
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.replication.transaction_index import TransactionIndex

from mutants.rules import Patch, breaks


@breaks("KIP-98", "A transaction is over for readers when its marker is committed.")
def believe_a_marker_at_once(patch: Patch) -> None:
    """A marker in the leader's log closes the transaction, committed or not."""

    def last_stable_offset(self, high_watermark):
        return min((high_watermark, *(begun.start for begun in self.open.values())))

    patch.setattr(TransactionIndex, "last_stable_offset", last_stable_offset)


@breaks("KIP-98", "A leader reports a marker as written when it is committed.")
def answer_a_marker_at_once(patch: Patch) -> None:
    """The leader reports the marker when it has appended it."""
    waiting = marking._Waiting
    patch.setattr(marking, "_Waiting", lambda end, *rest: waiting(0, *rest))


@breaks("KIP-98", "No request is answered before what the coordinator wrote is committed.")
def tell_a_decision_at_once(patch: Patch) -> None:
    """Answers wait for no commit."""
    waiting = coordinated.Waiting
    patch.setattr(coordinated, "Waiting", lambda end, *rest: waiting(0, *rest))


@breaks("KIP-890", "The epoch goes up with every transaction, and the marker begins the next one in the log.")
def go_on_in_the_same_epoch(patch: Patch) -> None:
    """An application keeps its epoch from one transaction to the next."""
    begin, record = TransactionCoordinator._begin, ProducerState.record

    def begin_the_same(self, asked, now, wall_ms):
        before = self.slots.get((asked.app, asked.staged))
        begun = begin(self, asked, now, wall_ms)
        if before is None:
            return begun
        self.slots[asked.app, asked.staged].epoch = before.epoch
        return replace(begun, producer_epoch=before.epoch)

    def record_no_end(self, header, base_offset):
        if header.is_transactional and header.is_control:
            self.transactions.record(header, base_offset)
        else:
            record(self, header, base_offset)

    patch.setattr(TransactionCoordinator, "_begin", begin_the_same)
    patch.setattr(ProducerState, "record", record_no_end)


@breaks("KIP-890", "A leader takes the first batch of a transaction when the coordinator confirms that it is open.")
def take_a_batch_without_asking(patch: Patch) -> None:
    """The leader does not ask the coordinator, and so the partition is not part of the transaction."""
    patch.setattr(TransactionGate, "holds", lambda self, source, part, batch, header: False)


@breaks("KIP-98", "A decision is reported to every leader whose partition is part of the transaction.")
def tell_one_leader_only(patch: Patch) -> None:
    """The decision is sent to the first leader only."""
    decide = TransactionCoordinator._decide

    def tear(self, slot, *how):
        decide(self, slot, *how)
        slot.left = dict.fromkeys(list(slot.left)[:1])

    patch.setattr(TransactionCoordinator, "_decide", tear)


@breaks(
    "KIP-98",
    "A new coordinator commits what was decided: of a staged name only the transaction that the decision names.",
    tests=("unit.replica.coordinators.transactions.test_staged_transactions",),
)
def commit_whatever_has_the_name(patch: Patch) -> None:
    """Every transaction of that name is committed, also one that began when the decided one was at its end."""
    begin = TransactionCoordinator.load_records

    def by_name(self, stored, *arguments):
        for (app, staged), record in stored.slots.items():
            known = stored.apps.get(app)
            if known is not None and staged in known.deciding:
                known.deciding[staged] = record.producer_id
        begin(self, stored, *arguments)

    patch.setattr(TransactionCoordinator, "load_records", by_name)


@breaks(
    "KIP-98",
    "A transaction that is decided comes to its end before another of the same name begins.",
    tests=("unit.replica.coordinators.transactions.test_staged_transactions",),
)
def begin_before_the_end(patch: Patch) -> None:
    """The next transaction begins at once, and a participant that has not received the decision never receives it."""
    patch.setattr(TransactionCoordinatorService, "_must_wait", lambda self, message, now: False)
    begin = TransactionCoordinator._begin

    def at_once(self, asked, now, wall_ms):
        slot = self.slots.get((asked.app, asked.staged))
        if slot is not None and slot.state in ("committing", "aborting"):
            slot.state = "committed"
        return begin(self, asked, now, wall_ms)

    patch.setattr(TransactionCoordinator, "_begin", at_once)


@breaks(
    "KIP-890",
    "A marker ends the transaction of its own epoch, or an older one.",
    tests=("unit.replica.replication.test_transaction_index",),
)
def end_a_transaction_by_an_older_marker(patch: Patch) -> None:
    """A marker ends whatever is open of its producer."""
    record = TransactionIndex.record

    def end(self, header, base_offset):
        begun = self.open.get(header.producer_id)
        if header.is_control and begun is not None:
            self.open[header.producer_id] = begun._replace(epoch=0)
        record(self, header, base_offset)

    patch.setattr(TransactionIndex, "record", end)


@breaks(
    "KIP-890",
    "A leader writes no marker of an epoch that its log has passed.",
    tests=("unit.replica.coordinators.transactions.test_service",),
)
def write_late_markers(patch: Patch) -> None:
    """It writes every marker that is reported to it."""
    mark = marking.TransactionMarkers._mark

    def write(self, source, id, message, partition, leading, now):
        partition.producers.needs_marker = lambda producer, epoch: True
        try:
            mark(self, source, id, message, partition, leading, now)
        finally:
            del partition.producers.needs_marker

    patch.setattr(marking.TransactionMarkers, "_mark", write)


@breaks(
    "KIP-890",
    "A marker settles the positions of its own epoch, or an older one.",
    tests=("unit.replica.coordinators.transactions.test_service",),
)
def settle_positions_by_an_older_marker(patch: Patch) -> None:
    """The marker settles all positions of its producer."""
    settle = groups.GroupCoordinator._settle
    patch.setattr(
        groups.GroupCoordinator, "_settle", lambda self, asked: settle(self, replace(asked, producer_epoch=1 << 16))
    )


@breaks(
    "KIP-890",
    "A leader's word that it has a marker counts for the transaction of that marker's epoch.",
    tests=("unit.replica.coordinators.transactions.test_service",),
)
def believe_the_leader_of_an_older_marker(patch: Patch) -> None:
    """The leader's word counts for whatever transaction the producer is in by then."""
    on_marker = TransactionCoordinator.on_marker

    def believe(self, marker, *rest, **options):
        slot = self.slots.get((marker.app, marker.staged))
        on_marker(self, marker if slot is None else marker._replace(epoch=slot.epoch), *rest, **options)

    patch.setattr(TransactionCoordinator, "on_marker", believe)


@breaks(
    "KIP-98",
    "A marker ends the transaction that is open, whatever else its producer id has written.",
    tests=("unit.replica.replication.test_transaction_index",),
)
def let_a_later_epoch_keep_a_marker_out(patch: Patch) -> None:
    """A leader takes a later epoch in its log for the marker, also that of a plain batch."""
    patch.setattr(ProducerState, "needs_marker", lambda self, producer, epoch: not self.fences(producer, epoch))


@breaks("KIP-98", "A commit that is answered without pending partitions is visible.")
def answer_a_commit_when_it_is_decided(patch: Patch) -> None:
    """The answer does not wait for the markers, and names no partition."""
    patch.setattr(TransactionCoordinatorService, "_holds_back", lambda self, led, message, waiting, now: False)


@breaks("KIP-98", "At the time-out the answer to a commit names the partitions without a marker.")
def call_a_commit_visible_at_the_time_out(patch: Patch) -> None:
    """The answer names no partition."""
    patch.setattr(transacting, "topic_shares", lambda partitions: ())


@breaks(
    "decision 24",
    "Positions become part of a transaction on the word of the coordinator of the application that is named.",
    tests=("unit.replica.coordinators.transactions.test_service",),
)
def take_positions_of_a_known_producer_without_asking(patch: Patch) -> None:
    """If the group has positions of that producer and epoch, the coordinator of the application is not asked."""
    enrol = coordinating.GroupCoordinatorService._enrol

    def skip(self, source, id, message, now):
        led = self._find(message, now)
        group = led.core.groups.get(message.group)
        held = None if group is None else group.pending.get(message.producer_id)
        if held is not None and held.epoch == message.producer_epoch:
            super(coordinating.GroupCoordinatorService, self).on_request(source, id, message, now)
        else:
            enrol(self, source, id, message, now)

    patch.setattr(coordinating.GroupCoordinatorService, "_enrol", skip)


@breaks(
    "decision 24",
    "A marker takes the meaning of an enrolment away for all that use that producer id.",
    tests=("unit.replica.coordinators.transactions.test_service",),
)
def let_requests_share_an_enrolment(patch: Patch) -> None:
    """Requests that name one producer id are one."""

    class Enrolment(NamedTuple):
        producer_id: int

    patch.setattr(coordinating, "_Enrolment", Enrolment)


@breaks(
    "decision 24",
    "Positions of a transaction take the right to its application.",
    tests=("unit.controller.metadata.rules.test_access",),
)
def take_positions_without_the_right_to_the_application(patch: Patch) -> None:
    """The right to the group is enough."""
    patch.setattr(Authorizer, "refuse_application", lambda self, principal, app: None)


@breaks(
    "KIP-98",
    "A transaction without open markers is over only when its decision is committed.",
    tests=("unit.replica.coordinators.transactions.test_transaction_ends",),
)
def end_before_the_decision_is_committed(patch: Patch) -> None:
    """The transaction is over when no open marker is left."""
    patch.setattr(TransactionMetadata, "is_over", property(lambda self: self.state in ENDING and not self.left))
