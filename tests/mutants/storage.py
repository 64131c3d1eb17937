"""Rules of the log and of the disk, broken."""

from __future__ import annotations

import re
from typing import NamedTuple

from tidelog.batch.fingerprints import Fingerprint, fingerprint_of, pack
from tidelog.batch.format import read_header
from tidelog_controller.metadata.rules import leader_election as leadership
from tidelog_replica.copies import checks as copy_checks
from tidelog_replica.maintenance.doubtful_tails import DoubtfulTails
from tidelog_replica.partition.partition import Partition
from tidelog_replica.registration.incarnations import Incarnations
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.replication.transaction_index import TransactionIndex
from tidelog_replica.storage import compaction, log
from tidelog_replica.storage import retention as advance
from tidelog_replica.storage.checkpoints import HighWatermarkCheckpoint
from tidelog_replica.storage.copy_reader import BatchesRead
from tidelog_replica.storage.log import Log
from tidelog_replica.storage.producer_snapshots import Snapshots
from tidelog_replica.storage.recovery import recovery, reset
from tidelog_replica.storage.recovery.pending_losses import PendingLosses
from tidelog_replica.storage.segment_list import SegmentList
from tidelog_replica.storage.tombstones import Deletions

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


@breaks("storage", "A bad batch below the recovery point is corruption, and nothing is cut there.")
def cut_at_any_bad_batch(patch: Patch) -> None:
    """Recovery cuts at the first bad batch, wherever it stands."""
    patch.setattr(recovery._EndCheck, "check", lambda self, segments, fault: None)


@breaks("storage", "A bad batch with whole batches behind it is no torn write.")
def look_at_nothing_behind(patch: Patch) -> None:
    """Recovery does not look for whole batches behind a bad batch."""
    patch.setattr(recovery, "find_behind", lambda segments, start, fits: (False, []))


@breaks("storage", "A copy with a doubtful tail does not lead while another member may hold what it lacks.")
def lead_with_a_doubtful_tail(patch: Patch) -> None:
    """A doubtful copy settles for what it has, and leads."""

    def settle(self, key, doubt, state, members, now):
        self._report(key, doubt, state, "settled", doubt.log.start, doubt.log.end)

    patch.setattr(DoubtfulTails, "_search", settle)


@breaks(
    "storage",
    "A log that begins anew takes nothing from an earlier tail file.",
    tests=("unit.replica.storage.recovery.test_doubtful_tail",),
)
def keep_the_tail_file_of_an_earlier_log(patch: Patch) -> None:
    """Throwing a log away leaves its tail file."""
    patch.setattr(reset, "_OF_THE_LOG", re.compile(reset._OF_THE_LOG.pattern.replace("|tail", "")))


@breaks("storage", "A doubtful member is not elected, and makes no majority.")
def elect_the_doubtful(patch: Patch) -> None:
    """The controller elects doubtful members like others."""
    patch.setattr(leadership, "_counting", lambda partition, is_live: is_live)


@breaks("storage", "A doubtful tail is cut for a leader only when that leader has answered.")
def cut_for_a_leader_that_may_be_dead(patch: Patch) -> None:
    """The metadata's leader is believed to serve."""
    step = DoubtfulTails._step

    def believe(self, key, now):
        doubt = self._doubts[key]
        if doubt.state is not None:
            doubt.led_by = doubt.state.leader_epoch
        step(self, key, now)

    patch.setattr(DoubtfulTails, "_step", believe)


@breaks("R13", "A cut after an unclean election is reported up to the log's end, not up to the known HW only.")
def report_what_was_known_only(patch: Patch) -> None:
    """What lies above the HW that the copy knew is cut without a report."""
    on_loss = Partition._on_loss
    patch.setattr(
        Partition,
        "_on_loss",
        lambda self, start, committed, end: on_loss(self, start, committed, max(start, committed)),
    )


@breaks(
    "R13",
    "The report of a loss is durable before the records are cut.",
    tests=("unit.replica.storage.recovery.test_pending_losses",),
)
def remember_losses_in_memory(patch: Patch) -> None:
    """A server that ends before the controllers have answered forgets what it had to report."""

    def keep(self, ranges):
        self.ranges = (*self.ranges, *ranges)

    patch.setattr(PendingLosses, "add", keep)


@breaks("storage", "The recovery point never names more than what is durable.")
def mark_ahead_of_the_sync(patch: Patch) -> None:
    """The mark names the end of a flush, durably, before the flush has run."""
    begin_flush = Log.begin_flush

    def mark_first(self, *, whole=False):
        flush = begin_flush(self, whole=whole)
        if flush is not None:
            self._recovery_point.write(flush.end, sync=True)
        return flush

    patch.setattr(Log, "begin_flush", mark_first)


@breaks("storage", "A bad batch below the written HW is corruption, however old the recovery point is.")
def cut_below_the_high_watermark(patch: Patch) -> None:
    """Only the recovery point shows what was durable."""
    patch.setattr(HighWatermarkCheckpoint, "high_watermark", property(lambda self: 0))


@breaks("storage", "A batch is checked by its CRC when a log is opened.")
def believe_the_tail(patch: Patch) -> None:
    """Recovery reads headers only."""
    patch.setattr(recovery, "check_batch", lambda batch: None)


@breaks("D10", "A data directory names the node that it belongs to, and is refused to others.")
def take_any_directory(patch: Patch) -> None:
    """The node id in the directory is not checked."""
    patch.setattr(Incarnations, "_check", lambda self, cluster, node: None)


@breaks(
    "KIP-98",
    "Compaction stops at the last stable offset.",
    tests=("unit.replica.replication.test_transaction_index",),
)
def compact_what_is_open(patch: Patch) -> None:
    """It stops at the HW: records of transactions that may be aborted take the place of older ones."""
    begin = Log.begin_compaction

    def begin_at_the_high_watermark(self, *arguments):
        with Patch.context() as inner:
            inner.setattr(TransactionIndex, "last_stable_offset", lambda self, high_watermark: high_watermark)
            return begin(self, *arguments)

    patch.setattr(Log, "begin_compaction", begin_at_the_high_watermark)


@breaks(
    "KIP-360",
    "What the producers had written before the log start is durable before the log start is.",
    tests=("unit.replica.storage.test_log_start",),
)
def begin_before_the_producers_are_known(patch: Patch) -> None:
    """The log start is written first."""
    run = advance.DeleteSegments.run

    def write_first(self):
        advance.write_log_start(self.disk, self.directory, self.log_start)
        run(self)

    patch.setattr(advance.DeleteSegments, "run", write_first)


@breaks(
    "KIP-360",
    "The producers' state at the log start is synced, not a cache.",
    tests=("unit.replica.storage.test_log_start",),
)
def begin_with_a_snapshot_that_is_not_synced(patch: Patch) -> None:
    """It is only written."""
    write = Snapshots.write
    patch.setattr(
        Snapshots, "write", lambda self, offset, chain, state, sync=False: write(self, offset, chain, state)
    )


@breaks(
    "storage",
    "How far the log was committed is durable elsewhere before the HW comes down to what is left.",
    tests=("unit.replica.storage.test_checkpoints",),
)
def lower_the_high_watermark_first(patch: Patch) -> None:
    """The HW is lowered first; a power loss in between loses the record of what is missing."""

    def lack(self, end):
        if self.high_watermark > end:
            once = self.highest_committed
            self._known.write(end, sync=True)
            self._highest_committed.write(once, sync=True)
            self._disk.sync_dir(self._directory)

    patch.setattr(HighWatermarkCheckpoint, "lack", lack)


@breaks(
    "R2",
    "A batch that is read from the disk is of the leader epoch that the log has for its offset.",
    tests=("unit.replica.storage.recovery.test_damage",),
)
def read_batches_of_any_epoch(patch: Patch) -> None:
    """The batch is served without that check, though no CRC covers its epoch."""
    patch.setattr(SegmentList, "_check_epochs", lambda self, segment, batches: None)


@breaks("D3", "The producer state in memory for an earlier offset has nothing that was written later.")
def remember_what_came_later(patch: Patch) -> None:
    """Where no snapshot has it, the state at the log end passes for that at the earlier offset."""
    patch.setattr(ProducerState, "before", lambda self, offset: self.copy())


@breaks(
    "KIP-354",
    "What compaction has removed from a segment is not served from memory either.",
    tests=("unit.replica.test_compaction_of_servers",),
)
def keep_compacted_batches_in_memory(patch: Patch) -> None:
    """The tail cache keeps the batches of a segment that was rewritten."""
    patch.setattr(SegmentList, "replace_file", lambda self, segment, index, size: segment.replace(index, size))


@breaks(
    "KIP-354",
    "A record that has waited for the maximal lag is compacted, however small the dirty part of the log.",
    tests=("unit.replica.test_compaction_of_servers",),
)
def compact_by_the_dirty_part_alone(patch: Patch) -> None:
    """A pass waits until enough is dirty."""
    patch.setattr(compaction, "has_overdue", lambda *_: False)


@breaks(
    "KIP-354",
    "A copy that missed tombstones which its leader has dropped starts over.",
    tests=("unit.replica.storage.test_tombstones",),
)
def copy_on_without_the_tombstones(patch: Patch) -> None:
    """It goes on from its end, and keeps what was deleted."""
    patch.setattr(Log, "lacks", lambda self, source: False)


@breaks(
    "KIP-354",
    "A hole is not filled where that brings back what was deleted.",
    tests=("unit.replica.storage.test_tombstones",),
)
def fill_holes_with_what_was_deleted(patch: Patch) -> None:
    """Whatever the leader has there fills it."""
    patch.setattr(Deletions, "fault_of_fill", lambda self, base, source: None)


@breaks(
    "KIP-354",
    "The segment that is written is closed in time for the maximal lag of compaction.",
    tests=("unit.replica.test_compaction_of_servers",),
)
def close_segments_by_their_own_age(patch: Patch) -> None:
    """It is closed when it is full, or at the age that a topic without compaction has."""
    patch.setattr(log, "roll_age_ms", lambda config: config.segment_max_age_ms)


@breaks(
    "storage",
    "What is synced of the segment that is written is scrubbed, too.",
    tests=("unit.replica.copies.test_checks",),
)
def scrub_full_segments_only(patch: Patch) -> None:
    """The segment that is written is passed over."""
    patch.setattr(SegmentList, "segment_after", SegmentList.closed_segment_after)


@breaks(
    "majority",
    "A copy counts as the odd one only if a majority of all replicas agree.",
    tests=("unit.replica.copies.test_checks",),
)
def believe_any_other_copy(patch: Patch) -> None:
    """The leader's copy alone is enough."""

    def believe_the_first(values, replicas):  # the preferred leader
        first = replicas[0]
        odd = tuple(node for node in values if first in values and values[node] != values[first])
        return (first,) if odd else (), odd

    patch.setattr(copy_checks, "find_odd_copies", believe_the_first)


@breaks(
    "majority",
    "The odd copy is given up only where the ISR without it goes on.",
    tests=("unit.replica.copies.test_checks",),
)
def give_up_what_is_needed(patch: Patch) -> None:
    """The copy is given up, whichever other replicas are in sync."""
    patch.setattr(copy_checks, "reason_to_keep", lambda *_: None)


@breaks(
    "KIP-320",
    "Copies are compared only where all are known to agree with one leader, in one leader epoch.",
    tests=("unit.replica.copies.test_checks",),
)
def compare_across_leader_epochs(patch: Patch) -> None:
    """What a copy reports under another leader counts, and before it is known to agree with its own."""
    patch.setattr(Partition, "agreed_epoch", property(lambda self: -1 if self.role is None else 0))


@breaks(
    "KIP-101",
    "A log that was cut or closed while others were asked is not judged by their answers.",
    tests=("unit.replica.copies.test_checks",),
)
def judge_a_log_that_was_cut(patch: Patch) -> None:
    """The answers are held against whatever the log is by then."""
    patch.setattr(copy_checks._Check, "holds", lambda self, partitions: True)


@breaks(
    "KIP-354",
    "Batches that compaction has thinned out in some copy are compared by the headers that producers sent.",
    tests=("unit.replica.copies.test_reads",),
)
def compare_thinned_batches_byte_by_byte(patch: Patch) -> None:
    """All bytes of all copies must be the same."""
    patch.setattr(Fingerprint, "agrees", lambda self, other: self == other)


@breaks(
    "storage",
    "Copies are compared by what their disks hold.",
    tests=("unit.replica.copies.test_reads",),
)
def compare_what_servers_remember(patch: Patch) -> None:
    """A server answers from memory if it can."""
    begin = Log.begin_reading

    def from_memory(self, offset, end, length):
        job = begin(self, offset, end, length)
        if job is None or self.segments._tail.read(offset, length, end) is None:
            return job
        batches = [(read_header(each), each) for each in self.segments._tail.read(offset, length, end)]
        found = b"".join(pack(fingerprint_of(header, each)) for header, each in batches)
        size = sum(len(each) for _, each in batches)
        return Remembered(job.target, job.generation, offset, BatchesRead(batches[-1][0].end_offset, size, found))

    patch.setattr(Log, "begin_reading", from_memory)


class Remembered(NamedTuple):
    """A job that reads nothing."""

    target: object
    generation: int
    offset: int
    result: BatchesRead

    def run(self) -> BatchesRead:
        return self.result
