"""Counts what a recording holds, for the output of ``tidelog verify check``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tidelog.verify.history import COMMITTED, FAILED, OK, UNKNOWN, CommitCall, Latest, ReadCall, SendCall
from tidelog.verify.history_reader import Recording


@dataclass(slots=True)
class RunSummary:
    """The figures of one recording, as ``tidelog verify check`` prints them and ``summarize`` counts them. ``sends``,
    ``commits`` and ``transactions`` are numbers by result."""

    operations: int = 0
    seconds: float = 0.0
    complete: bool = False
    """Whether the recorder has closed the file."""
    drained: int = 0
    """Number of partitions whose log was read to its end when the run was over."""
    partitions: int = 0
    sends: dict[str, int] = field(default_factory=dict)
    """Number of batches by result."""
    acked_records: int = 0
    read_records: int = 0
    reads: int = 0
    fresh: int = 0
    """Number of answers that had to cover every earlier acknowledgement."""
    conditional: int = 0
    commits: dict[str, int] = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)
    stored_records: int = 0
    """Number of records in the logs at the end."""
    replicas_compared: int = 0
    """Number of copies that were compared, over all partitions."""
    longest_silence_s: float = 0.0
    """Longest time in seconds without an acknowledgement in one partition while a producer waited for one."""
    silence_from_s: float = 0.0
    """Time at which the longest silence began."""
    silent_partition: str = ""
    """Partition of the longest silence; "": there was none."""
    may_be_lost: int = 0
    """Number of times that the topic's settings allowed records to be lost."""


def summarize(recording: Recording) -> RunSummary:
    """Return the figures of a recording: how many operations, results and records it has, and the longest time
    without an acknowledgement in one partition while a producer waited for one."""
    history = recording.history
    found = RunSummary(len(history.operations) + len(history.transactions), recording.seconds, recording.complete)
    sends, commits = Counter[str](), Counter[str]()
    partitions = {*history.undrained, *history.final, *history.deleted}
    tried: dict[str, list[SendCall]] = {}
    for op in history.operations:
        match op:
            case SendCall():
                sends[op.result] += 1
                found.conditional += op.expected_offset >= 0
                tried.setdefault(op.partition, []).append(op)
                if op.result == OK:
                    found.acked_records += len(op.values)
            case ReadCall():
                found.reads += 1
                found.read_records += len(op.rows)
            case Latest():
                found.fresh += op.linearizable
            case CommitCall():
                commits[op.result] += 1
    for partition, sends_of_it in sorted(tried.items()):
        for since, until in _silences(sends_of_it):
            if until - since > found.longest_silence_s:
                found.longest_silence_s, found.silence_from_s = round(until - since, 6), since
                found.silent_partition = partition
    fates = Counter(one.fate for one in history.transactions)
    found.partitions, found.drained = len(partitions), len(history.final)
    found.sends = {result: sends[result] for result in (OK, FAILED, UNKNOWN)}
    found.commits = {result: commits[result] for result in (OK, FAILED, UNKNOWN)}
    found.transactions = {fate: fates[fate] for fate in (COMMITTED, "aborted", UNKNOWN)}
    found.stored_records = sum(map(len, history.final.values()))
    found.replicas_compared = sum(count for count, _ in recording.compared.values())
    found.may_be_lost = len(history.losses)
    return found


def _silences(sends: list[SendCall]) -> Iterator[tuple[float, float]]:
    """Yield the times without an acknowledgement in one partition, latest first, as (since, until). Each ends at an
    acknowledgement, or at the end of the last send; it begins at the acknowledgement before, or when a producer began
    to wait if that is later. ``sends`` must not be empty."""
    ordered = sorted(sends, key=lambda op: op.end, reverse=True)
    until, waiting_since = ordered[0].end, math.inf
    for op in ordered:
        if op.result == OK:
            yield max(op.end, waiting_since), until
            until = op.end
        waiting_since = min(waiting_since, op.start)
    yield waiting_since, until
