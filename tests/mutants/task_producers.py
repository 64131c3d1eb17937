"""Rules of the producers of numbered batches, broken."""

from __future__ import annotations

from dataclasses import replace

from tidelog.errors import TidelogError
from tidelog_replica.coordinators.transactions import coordinator
from tidelog_replica.coordinators.transactions.coordinator import TransactionCoordinator

from mutants.rules import Patch, breaks

SOURCE = "decision 16"
record_of_batch = coordinator.record_of_batch


@breaks(SOURCE, "A replay of a batch has the producers of the first attempt.")
def replay_under_a_new_epoch(patch: Patch) -> None:
    """Each request begins another epoch."""

    def begin_anew(known, asked, wall_ms):
        record = record_of_batch(known, asked, wall_ms)
        return replace(known, epoch=known.epoch + 1) if record is known and known is not None else record

    patch.setattr(coordinator, "record_of_batch", begin_anew)


@breaks(SOURCE, "A replay of a batch has the timestamp of the first attempt.")
def stamp_a_replay_anew(patch: Patch) -> None:
    """The timestamp is the time of the request."""

    def stamp(known, asked, wall_ms):
        record = record_of_batch(known, asked, wall_ms)
        return record and replace(record, timestamp_ms=wall_ms)

    patch.setattr(coordinator, "record_of_batch", stamp)


@breaks("KIP-98", "The next batch has a newer producer epoch, which fences the tasks of the one before.")
def keep_the_epoch_of_the_batch_before(patch: Patch) -> None:
    """All batches of an application have one epoch."""

    def keep(known, asked, wall_ms):
        record = record_of_batch(known, asked, wall_ms)
        return record and replace(record, epoch=0)

    patch.setattr(coordinator, "record_of_batch", keep)


@breaks(SOURCE, "An earlier batch is refused: its producers would write under those of the latest one.")
def serve_an_earlier_batch(patch: Patch) -> None:
    """The earlier batch gets the producers of the latest batch."""

    def serve(known, asked, wall_ms):
        try:
            return record_of_batch(known, asked, wall_ms)
        except TidelogError as error:
            if error.code != "FENCED_PRODUCER":
                raise
            return known

    patch.setattr(coordinator, "record_of_batch", serve)


@breaks(SOURCE, "An application belongs to one sequence of batches.")
def share_an_application(patch: Patch) -> None:
    """Any caller goes on with its batches."""

    def share(known, asked, wall_ms):
        return record_of_batch(known and replace(known, owner=asked.owner), asked, wall_ms)

    patch.setattr(coordinator, "record_of_batch", share)


@breaks(SOURCE, "What a coordinator reported to a task outlives the coordinator.")
def forget_producers_with_their_coordinator(patch: Patch) -> None:
    """The next coordinator knows of no batch."""
    begin = TransactionCoordinator.load_records

    def forget(self, *stored):
        begin(self, *stored)
        self.task_producers.clear()

    patch.setattr(TransactionCoordinator, "load_records", forget)
