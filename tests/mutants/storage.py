"""Rules of the log and of the disk, broken."""

from __future__ import annotations

import json

from tidelog_replica.core.producers import ProducerState
from tidelog_replica.lives import Lives
from tidelog_replica.log import recovery
from tidelog_replica.log.committed import Committed
from tidelog_replica.log.log import Log
from tidelog_replica.partition import Partition

from mutants.rules import Patch, breaks


@breaks("fsyncgate", "After a failed flush nothing that it covered counts, in this life or in the next.")
def trust_the_page_cache(patch: Patch) -> None:
    """What the failed flush covered stays in the files for the next life to find."""
    patch.setattr(Log, "discard_unsynced", lambda self: None)


@breaks("fsyncgate", "A flush that failed is never tried again.")
def retry_a_failed_flush(patch: Patch) -> None:
    """An error of a flush is passed over: the next one, which succeeds, covers its offsets too."""
    on_flushed = Partition.on_flushed

    def ignore(self, flush, error):
        on_flushed(self, flush, None)

    patch.setattr(Partition, "on_flushed", ignore)


@breaks("storage", "A bad batch below the recovery mark is corruption, and nothing is cut there.")
def cut_at_any_bad_batch(patch: Patch) -> None:
    """Recovery cuts at the first bad batch, wherever it stands."""
    patch.setattr(recovery, "_end_at", lambda segment, kept, floor, fault: kept)


@breaks("storage", "A bad batch below the written HW is corruption, however old the recovery mark is.")
def cut_below_the_high_watermark(patch: Patch) -> None:
    """Only the recovery mark tells what was durable."""
    patch.setattr(Committed, "high_watermark", property(lambda self: 0))


@breaks("storage", "A batch is checked by its CRC when a log is opened.")
def believe_the_tail(patch: Patch) -> None:
    """Recovery reads headers only."""
    patch.setattr(recovery, "check_batch", lambda batch: None)


@breaks("D10", "A data directory names the node that it belongs to, and is refused to others.")
def take_any_directory(patch: Patch) -> None:
    """Whose directory it is is not looked at."""
    patch.setattr(Lives, "_check", lambda self, data: list(json.loads(data)["lives"]))


@breaks("D3", "What memory tells of the producers at an earlier offset has nothing that was written later.")
def remember_what_came_later(patch: Patch) -> None:
    """Where no snapshot tells it, the state at the log end passes for that at the earlier offset."""
    patch.setattr(ProducerState, "before", lambda self, offset: self.copy())
