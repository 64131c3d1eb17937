"""Rules of idempotent producers, broken."""

from __future__ import annotations

from tidelog_replica import leading
from tidelog_replica.core import producers
from tidelog_replica.core.producers import ProducerState
from tidelog_replica.leading import Leading
from tidelog_replica.log import log, segment

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
    """Where a state of an earlier release tells no CRC, sequence and count are enough."""
    _match(patch, lambda written, header: written.crc32c is None)


@breaks("KIP-98", "An unknown CRC is read from the log.")
def believe_the_batch_that_is_to_be_compared(patch: Patch) -> None:
    """Where the batch is still in the log, the CRC of the batch that has come is remembered instead."""

    def look_up(self, header):
        found = self._producers.check(header)
        if getattr(found, "unverified_at", -1) >= self._log.start:
            self._producers.learn(header.producer_id, found.unverified_at, header.crc32c)
            return self._producers.check(header)
        return found

    patch.setattr(Leading, "_look_up", look_up)


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
