"""Judges a history, after Jepsen's Kafka workload: two passes, linear in its length.

The kinds, with the letters of the test plan. Each anomaly is reported under one kind: the most telling.

====================  ==============================================================================
lost_write (A1)       acked ``all``, not in the final log
phantom (A2)          in the log or in a read, and nobody sent it
vanished (A3)         a consumer saw it; the final log has nothing, or something else, there
failed_seen (A4)      refused, and in the log all the same
conflict (A5)         two values at one offset, among acks, reads and the replicas' dumps
order (A6)            one producer's records inverted, or against real time
consumer_skip (A7)    a consumer goes back or skips
duplicate (A8)        twice in the log under an idempotent producer
stale_latest (A9)     a linearizable "latest" older than an ack that came before the question
gap (A10)             offsets missing in the log
wrong_partition (A11) a record of another partition
no_progress (A12)     no send succeeds for a while although the cluster could
double_win (A13)      a conditional append won twice
====================  ==============================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from simulation.history import FAILED, OK, History, Latest, Loss, Read, Send

KINDS = (
    "lost_write",
    "phantom",
    "vanished",
    "failed_seen",
    "conflict",
    "order",
    "consumer_skip",
    "duplicate",
    "stale_latest",
    "gap",
    "wrong_partition",
    "no_progress",
    "double_win",
)


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Something that must not happen: its kind and what was seen."""

    kind: str
    text: str


def check(history: History) -> list[Anomaly]:
    """All anomalies, in the order in which they are found; an empty list for a sound history."""
    return _Check(history).run()


class _Check:
    def __init__(self, history: History) -> None:
        self.history = history
        self.found: list[Anomaly] = []
        self.sends = [op for op in history.operations if isinstance(op, Send)]
        self.reads = [op for op in history.operations if isinstance(op, Read)]
        self.latest = [op for op in history.operations if isinstance(op, Latest)]
        self.sent: dict[bytes, Send] = {value: op for op in self.sends for value in op.values}
        self.losses: dict[str, list[Loss]] = {}
        for loss in history.losses:
            self.losses.setdefault(loss.partition, []).append(loss)
        self.final = {partition: dict(rows) for partition, rows in history.final.items()}
        self.offsets: dict[bytes, list[int]] = {}
        """Where each value of the final log stands."""

    def run(self) -> list[Anomaly]:
        self.check_final_log()
        self.check_sources()
        self.check_sends()
        self.check_order()
        self.check_reads()
        self.check_dumps()
        self.check_latest()
        self.check_progress()
        return self.found

    def flag(self, kind: str, text: str) -> None:
        self.found.append(Anomaly(kind, text))

    def may_be_lost(self, partition: str, epoch: int, offset: int) -> bool:
        """Whether the topic's settings, and what happened, allow the record of that leader epoch to be gone."""
        return any(loss.covers(epoch, offset) for loss in self.losses.get(partition, ()))

    def follows(self, partition: str, wanted: int, offset: int) -> bool:
        """Whether nothing but what the cluster itself took lies between the two."""
        taken = self.history.control.get(partition, ())
        return wanted <= offset and all(between in taken for between in range(wanted, min(offset, wanted + 100)))

    def check_final_log(self) -> None:
        """A8, A10, and two values at one offset within the drain."""
        for partition, rows in self.history.final.items():
            wanted = self.history.retained_from.get(partition, 0)
            for offset, value in rows:
                if self.follows(partition, wanted, offset):
                    wanted = offset
                if offset > wanted:
                    self.flag("gap", f"{partition}: {wanted} to {offset} missing in the final log")
                elif offset < wanted:
                    self.flag("conflict", f"{partition}: offset {offset} twice in the final log")
                wanted = offset + 1
                self.offsets.setdefault(value, []).append(offset)
        for value, offsets in self.offsets.items():
            if len(offsets) > 1 and value in self.sent and self.sent[value].idempotent:
                self.flag("duplicate", f"{value!r} stands at {offsets}")

    def check_sources(self) -> None:
        """A2, A4, A11: where does each record that was ever seen come from?"""
        seen: dict[tuple[str, bytes], None] = {}
        for partition, rows in self.history.final.items():
            seen.update(((partition, value), None) for _, value in rows)
        for read in self.reads:
            seen.update(((read.partition, value), None) for _, value in read.rows)
        for partition, value in seen:
            op = self.sent.get(value)
            if op is None:
                self.flag("phantom", f"{partition}: {value!r} was never sent")
            elif op.partition != partition:
                self.flag("wrong_partition", f"{value!r} of {op.partition} is in {partition}")
            elif op.result == FAILED:
                self.flag("failed_seen", f"{partition}: {value!r} was refused and is there")

    def check_sends(self) -> None:
        """A1, A5 (an ack that names another record's offset), A13."""
        winners: dict[tuple[str, int], Send] = {}
        for op in self.sends:
            if op.result != OK:
                continue
            if op.expected_offset >= 0 and not self.may_be_lost(op.partition, op.epoch, op.offset):
                first = winners.setdefault((op.partition, op.expected_offset), op)
                if first is not op:
                    text = f"{op.partition}: {first.process} and {op.process} both won {op.expected_offset}"
                    self.flag("double_win", text)
                    continue
            if op.level != "all" or op.partition in self.history.deleted:
                continue
            final = self.final.get(op.partition, {})
            for place, value in enumerate(op.values):
                offset = op.offset + place
                if self.may_be_lost(op.partition, op.epoch, offset) or not self._is_kept(op.partition, offset):
                    continue
                if value not in self.offsets:
                    self.flag("lost_write", f"{op.partition}: {value!r} acked at {op.offset + place} is gone")
                elif final.get(op.offset + place) != value and self.sent[value].partition == op.partition:
                    at = self.offsets[value]
                    self.flag("conflict", f"{op.partition}: {value!r} acked at {op.offset + place}, is at {at}")

    def check_order(self) -> None:
        """A6: per producer in the order of its sends; across producers against real time."""
        last: dict[tuple[str, str], tuple[int, int, Send]] = {}
        for op in sorted(self.sends, key=lambda op: (op.process, op.partition, op.number)):
            if not (op.idempotent or op.result == OK):
                continue  # an unknown single try may land late: that breaks no promise
            places = [self.offsets[value][0] for value in op.values if value in self.offsets]
            if not places:
                continue
            before = last.get((op.process, op.partition))
            if before is not None and places[0] < before[0]:
                self.flag("order", f"{op.partition}: {op.process}'s send {op.number} precedes {before[1]}")
            elif places != sorted(places):
                self.flag("order", f"{op.partition}: the batch {op.values!r} is not in order: {places}")
            last[(op.process, op.partition)] = (places[-1], op.number, op)
        self._check_real_time()

    def _check_real_time(self) -> None:
        """An acked send stands before every send that began after its ack."""
        flagged = {anomaly.text for anomaly in self.found if anomaly.kind == "order"}
        acked = [
            op
            for op in self.sends
            if op.result == OK and op.level == "all" and not self.may_be_lost(op.partition, op.epoch, op.offset)
        ]
        for partition in self.history.final:
            ends = sorted((op.end, op.offset, op.process) for op in acked if op.partition == partition)
            starts = sorted((op.start, op.offset, op.process) for op in acked if op.partition == partition)
            highest, process, place = -1, "", 0
            for start, offset, who in starts:
                while place < len(ends) and ends[place][0] < start:
                    if ends[place][1] > highest:
                        highest, process = ends[place][1], ends[place][2]
                    place += 1
                if offset < highest and process != who and not flagged:
                    self.flag("order", f"{partition}: {who}'s {offset} began after {process}'s {highest} was acked")

    def check_reads(self) -> None:
        """A3, A5 (reads that differ), A7."""
        shown: dict[tuple[str, int, int], bytes] = {}
        """By the leader epoch where it may be lost: each loss may have shown another record there."""
        positions: dict[tuple[str, str], int] = {}
        for read in self.reads:
            who = (read.process, read.partition)
            wanted = positions.get(who, read.position)
            if not self.follows(read.partition, wanted, read.position) and not read.start_over:
                self.flag("consumer_skip", f"{read.partition}: {read.process} asked {read.position}, not {wanted}")
            wanted = read.position
            for place, (offset, value) in enumerate(read.rows):
                epoch = read.epochs[place] if read.epochs else -1
                lost = self.may_be_lost(read.partition, epoch, offset)
                if not self.follows(read.partition, wanted, offset):
                    text = f"{read.partition}: {read.process} got {offset} instead of {wanted}"
                    self.flag("consumer_skip", text)
                wanted = offset + 1
                before = shown.setdefault((read.partition, offset, epoch if lost else -1), value)
                if before != value:
                    self.flag("conflict", f"{read.partition}: {offset} was shown as {before!r} and as {value!r}")
                elif not lost and self._is_kept(read.partition, offset):
                    self._check_shown(read.partition, offset, value)
            positions[who] = wanted

    def _is_kept(self, partition: str, offset: int) -> bool:
        """Nothing but a fault can have removed it."""
        return partition not in self.history.deleted and offset >= self.history.retained_from.get(partition, 0)

    def _check_shown(self, partition: str, offset: int, value: bytes) -> None:
        kept = self.final.get(partition, {}).get(offset)
        if kept != value and value in self.sent and self.sent[value].partition == partition:
            now = "nothing" if kept is None else repr(kept)
            self.flag("vanished", f"{partition}: {value!r} was shown at {offset}; {now} is there at the end")

    def check_dumps(self) -> None:
        """A5, A10 on the replicas' own logs, as far as they are committed."""
        for node, partitions in self.history.dumps.items():
            for partition, rows in partitions.items():
                final = self.final.get(partition, {})
                for before, after in pairwise(rows):
                    if not self.follows(partition, before[0] + 1, after[0]):
                        self.flag("gap", f"{partition} on {node}: {before[0]} is followed by {after[0]}")
                for offset, value in rows:
                    if offset in final and final[offset] != value:
                        text = f"{partition} on {node}: {offset} is {value!r}, elsewhere {final[offset]!r}"
                        self.flag("conflict", text)

    def check_latest(self) -> None:
        """A9: a linearizable "latest" covers every ``all`` ack that came before the question, and every such answer.
        Of a read that may be stale by so much, the question counts as asked that much earlier."""
        known = [
            (op.end, op.partition, op.offset + len(op.values))
            for op in self.sends
            if op.result == OK and op.level == "all" and not self.may_be_lost(op.partition, op.epoch, op.offset)
        ]
        for op in self.latest:
            if op.linearizable:
                kept = min((loss.start for loss in self.losses.get(op.partition, ())), default=op.offset)
                known.append((op.end, op.partition, min(op.offset, kept)))
        known.sort()
        covered: dict[str, int] = {}
        place = 0
        for op in sorted(self.latest, key=lambda op: op.start):
            while place < len(known) and known[place][0] < op.start:
                _, partition, end = known[place]
                covered[partition] = max(covered.get(partition, 0), end)
                place += 1
            if op.linearizable and op.offset < covered.get(op.partition, 0):
                text = f"{op.partition}: latest {op.offset}, but {covered[op.partition]} was known before"
                self.flag("stale_latest", text)

    def check_progress(self) -> None:
        """A12: within a healthy span, sends that are tried also succeed."""
        for begin, end in self.history.healthy:
            tried = [
                op
                for op in self.sends
                if op.level == "all"
                and op.start < end
                and op.end > begin
                and op.partition not in self.history.deleted
            ]
            good = sorted(op.end for op in tried if op.result == OK and op.end <= end)
            marks = [begin, *good, end]
            for left, right in pairwise(marks):
                late = right - self.history.patience
                if left < late and any(op.start <= late and (op.start >= left or op.end >= right) for op in tried):
                    self.flag("no_progress", f"no send succeeded from {left:.1f} to {right:.1f}")
