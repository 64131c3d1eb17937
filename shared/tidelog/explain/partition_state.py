"""What the metadata and the history of a partition say, which several answers and commands need: whether its leader
refuses writes, where records were lost or may be missing, and for how long readers of committed records have
waited."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tidelog.explain.explanation import iso, moment, span

if TYPE_CHECKING:
    from tidelog.wire.messages import HistoryEntry, PartitionInfo, StableOffset, TopicInfo

BEGIN_MS = 10_000
"""Time in milliseconds in which a new leader has begun to look at the last stable offset, and by which clocks may
differ."""
LOSSES = {"records_lost": "lost", "records_possibly_lost": "possibly lost"}
"""Events of a partition's history that report records as cut off, each in words."""


def is_unclean_election(entry: HistoryEntry) -> bool:
    """Return whether an entry of a partition's history is an unclean election, after which committed records may be
    missing. Reports of records that were cut off later name such an election as their cause, and are none."""
    return entry.event not in LOSSES and entry.cause == "unclean_election"


def tells_of_loss(entry: HistoryEntry) -> bool:
    """Return whether an entry of a partition's history reports records as cut off, or an unclean election."""
    return entry.event in LOSSES or is_unclean_election(entry)


def losses_at(entries: Iterable[HistoryEntry], start: int, end: int, high_watermark: int) -> tuple[HistoryEntry, ...]:
    """Return the entries of a partition's history that tell of losses at the offsets from ``start`` up to, not
    including, ``end``, oldest first: reports of records that were cut off there and, if the offsets reach
    ``high_watermark``, unclean elections. A server that was elected that way may lack the last committed records, and
    nobody reports these: no log has them."""
    return tuple(
        entry
        for entry in entries
        if (
            int(entry.evidence["start"]) < end and int(entry.evidence["end"]) > start
            if entry.event in LOSSES
            else 0 <= high_watermark < end and is_unclean_election(entry)
        )
    )


def losses_at_in_words(losses: Sequence[HistoryEntry], high_watermark: int) -> list[str]:
    """Return sentences about what ``losses_at`` found. Of unclean elections only the last one is described, and the
    others are counted."""
    words = [_cut_in_words(entry, high_watermark) for entry in losses if entry.event in LOSSES]
    unclean = [entry for entry in losses if is_unclean_election(entry)]
    if unclean:
        last = unclean[-1]
        more = f", the last one of {len(unclean)}" if len(unclean) > 1 else ""
        words.append(
            f"At {moment(last.time_ms)} {last.leader} became leader although it may have lacked committed records"
            f" (unclean election{more}): acknowledged records behind the end of its log, if there were any, are lost."
        )
    return words


def _cut_in_words(entry: HistoryEntry, high_watermark: int) -> str:
    facts, end = entry.evidence, int(entry.evidence["end"])
    kind = "committed records were lost" if entry.event == "records_lost" else "records were possibly lost"
    now = " What is there now are other records." if 0 <= end <= high_watermark else ""
    return (
        f"At {moment(entry.time_ms)} {kind}: {facts['node']} cut off offsets {facts['start']} to {end - 1}"
        f" ({entry.cause.replace('_', ' ')}).{now}"
    )


def loss_facts(losses: Iterable[HistoryEntry]) -> list[dict[str, Any]]:
    """Return what ``losses_at`` found as values that JSON has."""
    return [
        {**entry.evidence, "event": entry.event, "cause": entry.cause, "time": iso(entry.time_ms)}
        | ({"leader": entry.leader} if is_unclean_election(entry) else {})
        for entry in losses
    ]


def refuses_all(topic: TopicInfo, partition: PartitionInfo) -> bool:
    """Return whether too few replicas are in sync for writes with acks ``all``, so that a leader refuses such writes.
    This does not check that the partition has a leader."""
    return len(partition.isr) < needed_in_sync(topic, partition)


def needed_in_sync(topic: TopicInfo, partition: PartitionInfo) -> int:
    """Return the number of replicas that must be in sync for writes with acks ``all``: ``min_insync_replicas``, and
    with commit rule ``quorum`` at least a majority."""
    least = int(topic.config["min_insync_replicas"])
    majority = len(partition.replicas) // 2 + 1
    return max(least, majority) if topic.config["commit_rule"] == "quorum" else least


def led_for(entries: Iterable[HistoryEntry], partition: PartitionInfo, now_ms: int) -> int:
    """Return for how many milliseconds the leader of a partition has led it at least, as the partition's history and
    the clock of the caller say; -1 if the history does not have its leader epoch. ``now_ms`` is since 1970."""
    times = [one.time_ms for one in entries if one.leader and one.leader_epoch == partition.leader_epoch]
    return max(0, now_ms - min(times)) if times else -1


def stood_for(stable: StableOffset, leader: str, led_ms: int) -> str:
    """Return in words for how long the last stable offset has stood where it is: ``for 5.0 s``. Each leader measures
    that anew, so it is a lower bound unless the leader has led for much longer. ``led_ms``: for how long ``leader``
    has led at least (``led_for``); -1: not known."""
    if led_ms > stable.age_ms + BEGIN_MS:
        return f"for {span(stable.age_ms)}"
    since = f", about as long as {leader} has led" if leader and 0 <= led_ms <= 2 * stable.age_ms else ""
    return f"for at least {span(stable.age_ms)}{since}"
