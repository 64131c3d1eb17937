"""Rules of idempotent producers, broken."""

from __future__ import annotations

from tidelog.client.core.producer import ProducerCore
from tidelog_controller.metadata.rules import producer_ids
from tidelog_gateway.produce.queues import ProduceQueue
from tidelog_replica.partition import leader_replica as leading
from tidelog_replica.partition.produce_admission import ProduceAdmission
from tidelog_replica.partition.transaction_gate import TransactionGate
from tidelog_replica.replication import producer_state as producers
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage import log, segment

from mutants.rules import Patch, breaks


def _match(patch: Patch, also_where) -> None:
    """Take a batch for a copy by its sequence and count where ``also_where(written, header)``."""
    compare = producers._compare

    def compare_less(header, batches):
        for written in batches:
            same = (written.base_sequence, written.record_count) == (header.base_sequence, header.record_count)
            if same and also_where(written, header):
                return written
        return compare(header, batches)

    patch.setattr(producers, "_compare", compare_less)


@breaks("KIP-98", "A copy is the same bytes: a leader compares the CRC.")
def take_other_bytes_for_a_copy(patch: Patch) -> None:
    """Producer id, epoch, base sequence and count are enough."""
    _match(patch, lambda written, header: True)


@breaks("KIP-98", "A batch whose CRC is not known is never taken for a copy.")
def take_an_unknown_crc_for_a_match(patch: Patch) -> None:
    """Where a state of an earlier release has no CRC, sequence and count are enough."""
    _match(patch, lambda written, header: written.crc32c is None)


@breaks("KIP-98", "An unknown CRC is read from the log.")
def believe_the_batch_that_is_to_be_compared(patch: Patch) -> None:
    """Where the batch is still in the log, the CRC of the batch that has come is remembered instead."""

    check_sequence = ProduceAdmission.check_sequence

    def check_and_believe(self, header):
        found = self._producers.check(header)
        if getattr(found, "unverified_at", -1) >= self._log.start:
            self._producers.learn(header._replace(base_offset=found.unverified_at))
        return check_sequence(self, header)

    patch.setattr(ProduceAdmission, "check_sequence", check_and_believe)


@breaks("KIP-98", "The CRCs go with the state of the producers: into snapshots, and to copies that start over.")
def leave_the_crcs_out_of_the_state(patch: Patch) -> None:
    """The state is written as an earlier release did."""
    write = ProducerState.to_bytes
    patch.setattr(ProducerState, "to_bytes", lambda self: write(self).split(producers._CRCS_HEAD)[0])


@breaks("KIP-98", "Of a compacted batch the CRC counts that its producer sent.")
def remember_the_crc_of_a_compacted_batch(patch: Patch) -> None:
    """The CRC that compaction gave it counts."""
    for module in (leading, log, segment):
        patch.setattr(module, "with_sent_crc", lambda header, batch: header)


@breaks(
    "KIP-98",
    "A batch of a transaction is no copy of a plain one, nor the other way.",
    tests=("unit.replica.replication.test_producer_state",),
)
def compare_no_kinds(patch: Patch) -> None:
    """A batch with the same CRC counts as a copy, whatever its kind."""
    _match(patch, lambda written, header: written.crc32c == header.crc32c)


@breaks("KIP-98", "A plain batch under the id of a transaction that is open on the partition is refused.")
def take_plain_batches_under_an_open_transaction(patch: Patch) -> None:
    """The plain batch is accepted."""
    patch.setattr(TransactionGate, "check_plain", lambda self, producer_id: None)


@breaks(
    "KIP-98",
    "A leader appends no batch that pushes out of memory one that has no ack yet.",
    tests=("unit.replica.replication.test_producer_state", "unit.replica.partition.test_produce_window"),
)
def append_beyond_the_window(patch: Patch) -> None:
    """The leader appends every batch that is next in sequence."""
    patch.setattr(ProducerState, "would_push_out", lambda self, header, acked: False)


@breaks(
    "KIP-98",
    "A gateway has as many batches of a producer in flight on a partition as leaders remember.",
    tests=("unit.replica.partition.test_produce_window",),
)
def forward_beyond_the_window(patch: Patch) -> None:
    """The gateway does not bound the batches in flight."""
    patch.setattr(ProduceQueue, "occupy", lambda self, producer_id: None)
    patch.setattr(ProduceQueue, "release", lambda self, producer_id: None)


@breaks(
    "KIP-98",
    "The window of a producer begins with its oldest batch that is not settled.",
    tests=("unit.tidelog.client.core.test_producer",),
)
def count_only_what_is_in_flight(patch: Patch) -> None:
    """Only the number of batches in flight counts."""
    is_full = ProducerCore._is_full

    def is_full_by_number(self, queue):
        for batch in queue.in_flight:
            batch.ordinal = queue.numbered
        return is_full(self, queue)

    patch.setattr(ProducerCore, "_is_full", is_full_by_number)


@breaks(
    "KIP-936",
    "A producer more than are remembered makes one of the largest share forgotten.",
    tests=("unit.replica.replication.test_producer_state",),
)
def forget_the_oldest_of_all(patch: Patch) -> None:
    """The producer that appended longest ago is forgotten, whatever its share."""
    patch.setattr(ProducerState, "_to_be_forgotten", lambda self, latest_id: next(iter(self._producers)))


@breaks(
    "KIP-936",
    "All producer ids of a principal are of one share.",
    tests=("unit.controller.metadata.rules.test_recovery",),
)
def give_ids_of_any_share(patch: Patch) -> None:
    """The controllers give the next ids that there are."""
    patch.setattr(producer_ids, "first_of_share", lambda first, count, share: first)
