"""Finds out whether the replicas of a partition hold the same log, and if not, the offset from which they differ.

Theory. A log's hash chain at an offset is a digest of the headers, with their checksums, of every batch below it,
down to the first batch ever. Two logs with the same chain at an offset are the same up to that offset. Once the
chains differ they differ at every later offset, too, so bisection finds the first difference; several offsets per
request make it faster. The compared range is what all replicas hold and know to be committed: from the greatest log
start to the smallest high watermark.

This is the quick form: servers answer from memory. ``copy_comparison.py`` compares what is on their disks.

The logs may change meanwhile. Appended records do not matter. If retention overtakes the search, the search goes on
above; a difference below the log start is then known to exist, but its offset can no longer be found.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from tidelog.client.loop import Loop
from tidelog.errors import TidelogError
from tidelog.sansio.majority import find_odd_copies
from tidelog.wire.messages import DigestAnswer

POINTS = 15
"""Number of offsets at which one request of the search asks for hash chains."""

Ask = Callable[[str, Sequence[int]], Awaitable[DigestAnswer]]
"""A function (server, offsets) that asks a replica server for the bounds of its log and its hash chains at these
offsets."""


@dataclass(frozen=True, slots=True)
class Side:
    """One replica at the first difference: the end offset of the batch in which it differs, and the hash chain there
    (or the digest of that batch) in hexadecimal."""

    end: int
    chain: str


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference between the replicas: a batch that begins at ``offset``. If ``below`` is true, the
    difference is somewhere below ``offset``, where some replica no longer holds records."""

    offset: int
    sides: dict[str, Side]
    below: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing the replicas ``compared`` of a partition from offset ``start`` up to ``end``
    (exclusive). ``difference`` is None if they are equal there."""

    compared: tuple[str, ...]
    start: int = 0
    end: int = 0
    difference: Difference | None = None
    unasked: dict[str, str] = field(default_factory=dict)
    """Replicas that gave no answer or could not be compared up to the end, each with the reason."""
    bytes_read: int = 0
    """Bytes read from the disks, of all copies together; 0: only what servers have in memory was compared."""
    thinned: int = 0
    """Batches that compaction has thinned out in some copy, so that only their original headers were compared."""

    def odd_ones(self, replicas: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the copies that differ, at the first difference, from a majority of the partition's
        ``replicas``, which must be at least two copies; empty if there is no difference or no majority agrees."""
        return () if self.difference is None else find_odd_copies(self.difference.sides, replicas)[1]


async def compare(loop: Loop, nodes: Sequence[str], ask: Ask) -> Comparison:
    """Compare the hash chains of the servers ``nodes`` from the greatest log start to the smallest high watermark,
    and return the result. Servers that do not answer the first request are named in it; with fewer than two answers
    nothing is compared. Raises ``TidelogError`` if a server stops answering during the search."""
    first, unasked = await ask_bounds(loop, nodes, ask)
    compared = tuple(first)
    if len(first) < 2:
        return Comparison(compared, unasked=unasked)
    start = max(max(a.log_start, a.comparable_from) for a in first.values())
    end = max(start, min(a.high_watermark for a in first.values()))
    difference = await _DifferenceSearch(loop, compared, ask).run(start, end)
    return Comparison(compared, start, end, difference, unasked)


async def ask_bounds(loop: Loop, nodes: Sequence[str], ask: Ask) -> tuple[dict[str, DigestAnswer], dict[str, str]]:
    """Ask each of these servers for the bounds of its log, concurrently. Returns the answers by server, and the
    servers that gave none, with the reason."""
    answers: dict[str, DigestAnswer] = {}
    unasked: dict[str, str] = {}

    async def one(node: str) -> None:
        try:
            answers[node] = await ask(node, ())
        except TidelogError as error:
            unasked[node] = str(error)

    await loop.gather(partial(one, node) for node in nodes)
    return {node: answers[node] for node in nodes if node in answers}, unasked


class _DifferenceSearch:
    """A search for the first offset at which the hash chains of the servers ``nodes`` differ."""

    def __init__(self, loop: Loop, nodes: Sequence[str], ask: Ask) -> None:
        self._loop = loop
        self._nodes = nodes
        self._ask = ask
        self._start = 0
        """Highest log start that a server has reported during the search."""

    async def run(self, start: int, end: int) -> Difference | None:
        """Return the first difference between the offsets ``start`` and ``end``; None if the chains agree at
        ``end``."""
        at_start, at_end = await self._sides([start, end])
        if _agree(at_end):
            return None
        low, high, at_high = start, end, at_end
        if not _agree(at_start):
            return Difference(start, at_start, below=True)
        while high - low > 1:
            step = max(1, (high - low) // (POINTS + 1))
            points = list(range(low + step, high, step))[: POINTS + 1]
            for point, sides in zip(points, await self._sides(points), strict=True):
                if point < self._start:
                    continue
                if not _agree(sides):
                    high, at_high = point, sides
                    break
                low = point
            if low < self._start:  # retention has deleted what would show the difference
                if high <= self._start:
                    return Difference(high, at_high, below=True)
                low = self._start
        (before,) = await self._sides([low])
        return Difference(min(side.end for side in before.values()), at_high)

    async def _sides(self, offsets: Sequence[int]) -> list[dict[str, Side]]:
        """Ask every server for its hash chain at these offsets, concurrently, and return for each offset the chains
        by server. Raises the error of a server that does not answer."""
        answers: dict[str, DigestAnswer] = {}

        async def one(node: str) -> None:
            answers[node] = await self._ask(node, offsets)

        await self._loop.gather(partial(one, node) for node in self._nodes)
        self._start = max(self._start, *(answer.log_start for answer in answers.values()))
        return [
            {node: Side(e.boundary, e.chain.hex()) for node in self._nodes for e in [answers[node].entries[number]]}
            for number in range(len(offsets))
        ]


def _agree(sides: dict[str, Side]) -> bool:
    return len(set(sides.values())) == 1
