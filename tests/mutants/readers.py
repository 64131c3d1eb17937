"""Rules of readers and of the scrubber at batches that cannot be decoded, broken."""

from __future__ import annotations

from tidelog.client.core.consumer import ConsumerCore
from tidelog.client.group_consumer import GroupConsumer
from tidelog.client.record_stream import RecordStream
from tidelog.errors import CorruptBatch, UnreadableBatch
from tidelog_replica.storage import segment_scrub as scrub

from mutants.rules import Patch, breaks

SOURCE = "decision 25"
TESTS = ("unit.tidelog.client.test_unreadable_rules",)


@breaks(SOURCE, "Skipping passes over the batch that cannot be decoded, and over no other.", tests=TESTS)
def skip_the_next_batch_too(patch: Patch) -> None:
    """The batch behind it is passed over, too."""
    decoded = RecordStream._decoded

    def skip_two(self, fetched):
        before = self.skipped_batches
        records = decoded(self, fetched)
        pending, self._greedy = getattr(self, "_greedy", False), self.skipped_batches > before
        return [] if pending else records

    patch.setattr(RecordStream, "_decoded", skip_two)


@breaks(SOURCE, "The position of a group moves on behind a batch that its member skips.", tests=TESTS)
def leave_the_group_before_a_skipped_batch(patch: Patch) -> None:
    """It stays before the batch until a record behind it is finished."""
    decoded = RecordStream._decoded

    def forget(self, fetched):
        before = self.skipped_batches
        records = decoded(self, fetched)
        if self.skipped_batches > before:
            self._hand = None
        return records

    patch.setattr(GroupConsumer, "_decoded", forget)


@breaks(SOURCE, "After the error the position of a group stays before the batch.", tests=TESTS)
def finish_a_batch_that_was_not_read(patch: Patch) -> None:
    """The batch counts as finished when the application asks for more."""

    def keep(self, fetched, error):
        self._readers.fail(self._hand.key, fetched, error)

    patch.setattr(GroupConsumer, "_stop_before", keep)


@breaks(
    SOURCE, "After the error a consumer stays before the batch until the program says where to go on.", tests=TESTS
)
def go_on_behind_the_error(patch: Patch) -> None:
    """The next record comes from behind the batch."""
    patch.setattr(ConsumerCore, "fail", lambda self, fetched, error: [])


@breaks(SOURCE, "A batch with a wrong CRC is never skipped: another read may get it whole.", tests=TESTS)
def skip_a_damaged_batch(patch: Patch) -> None:
    """It is skipped like one that its producer wrote so."""
    patch.setattr(UnreadableBatch, "is_damaged", False)


@breaks(
    SOURCE,
    "The scrubber decodes the bodies of batches, as a reader does.",
    tests=("unit.replica.maintenance.test_scrubber",),
)
def take_a_right_crc_for_readable(patch: Patch) -> None:
    """A batch with a right CRC counts as readable."""
    patch.setattr(scrub, "_is_readable", lambda header, batch: True)


@breaks(
    SOURCE,
    "A batch that no reader can decode is no damage: all copies hold it.",
    tests=("unit.replica.maintenance.test_scrubber",),
)
def repair_what_cannot_be_decoded(patch: Patch) -> None:
    """Its segment is set aside, and fetched again."""
    is_readable = scrub._is_readable

    def refuse(header, batch):
        if not is_readable(header, batch):
            raise CorruptBatch("it cannot be decoded")
        return True

    patch.setattr(scrub, "_is_readable", refuse)
