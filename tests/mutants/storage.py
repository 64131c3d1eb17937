"""Rules of the log and of the disk, broken."""

from __future__ import annotations

from tidelog_controller.core import leadership
from tidelog_replica.doubts import Doubts
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
    patch.setattr(recovery._Tail, "end_at", lambda self, segments, fault: None)


@breaks("storage", "A bad batch with whole batches behind it is no torn write.")
def look_at_nothing_behind(patch: Patch) -> None:
    """Recovery does not look for whole batches behind a bad one."""
    patch.setattr(recovery, "find_behind", lambda segments, start, fits: (False, []))


@breaks("storage", "A copy with a doubtful tail does not lead while another member may hold what it lacks.")
def lead_with_a_doubtful_tail(patch: Patch) -> None:
    """A doubtful copy settles for what it has, and leads."""

    def settle(self, key, doubt, state, members, now):
        self._report(key, doubt, state, "settled", doubt.log.start, doubt.log.end)

    patch.setattr(Doubts, "_search", settle)


@breaks("storage", "A doubtful member is not elected, and makes no majority.")
def elect_the_doubtful(patch: Patch) -> None:
    """The controller elects doubtful members like others."""
    patch.setattr(leadership, "_counting", lambda partition, is_live: is_live)


@breaks("storage", "A doubtful tail is cut for a leader only when that leader has answered.")
def cut_for_a_leader_that_may_be_dead(patch: Patch) -> None:
    """The metadata's leader is believed to serve."""
    step = Doubts._step

    def believe(self, key, now):
        doubt = self._doubts[key]
        if doubt.state is not None:
            doubt.led_by = doubt.state.leader_epoch
        step(self, key, now)

    patch.setattr(Doubts, "_step", believe)


@breaks("storage", "The recovery mark never names more than what is durable.")
def mark_ahead_of_the_sync(patch: Patch) -> None:
    """The mark names the end of a flush, durably, before the flush has run."""
    begin_flush = Log.begin_flush

    def mark_first(self, *, whole=False):
        flush = begin_flush(self, whole=whole)
        if flush is not None:
            self._mark.write(flush.end, sync=True)
        return flush

    patch.setattr(Log, "begin_flush", mark_first)


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
    patch.setattr(Lives, "_check", lambda self, cluster, node, lives: lives)
