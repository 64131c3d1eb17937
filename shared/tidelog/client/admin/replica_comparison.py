"""Whether the replicas of a partition hold the same, and if not, from where on they differ.

Theory. A log's hash chain at an offset is a digest of the headers, with their checksums, of every batch below it,
down to the first that there ever was. So two logs with the same chain at an offset are the same up to there, and once
the chains differ they differ at every later offset, too: the first difference is found by halving, or, with several
offsets a question, faster. What is compared is what all of them hold and all of them know to be committed: from the
greatest log start to the smallest high watermark.

This is the quick form: servers answer from what they keep in memory. ``copy_comparison.py`` compares what their disks
hold.

The logs may move on meanwhile: what is appended does not matter, and where retention overtakes the search it goes on
above; a difference that lies below the beginning is known of, and cannot be placed any more.
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
"""Offsets asked for at a time while a difference is looked for."""

Ask = Callable[[str, Sequence[int]], Awaitable[DigestAnswer]]
"""Has a replica server (by name) tell its digests."""


@dataclass(frozen=True, slots=True)
class Side:
    """What one replica has where they differ: its batch ends at ``end``, with that chain."""

    end: int
    chain: str


@dataclass(frozen=True, slots=True)
class Difference:
    """The first batch that is not the same begins at ``offset``; with ``below`` it lay somewhere below, where some
    replica holds nothing any more."""

    offset: int
    sides: dict[str, Side]
    below: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """What became of it. ``start`` to ``end`` is what was compared."""

    compared: tuple[str, ...]
    start: int = 0
    end: int = 0
    difference: Difference | None = None
    unasked: dict[str, str] = field(default_factory=dict)
    """Replicas that gave no answer, or that could not be compared up to the end; and why."""
    bytes_read: int = 0
    """Bytes read from the disks, of all copies together; 0: only what servers have in memory was compared."""
    thinned: int = 0
    """Batches that compaction has thinned out in some copy, of which only the original headers were compared."""

    def odd_ones(self, replicas: Sequence[str]) -> tuple[str, ...]:
        """The copies that differ from a majority of the partition's ``replicas``, at least two of them, at the first
        difference; none if no majority agrees."""
        return () if self.difference is None else find_odd_copies(self.difference.sides, replicas)[1]


async def compare(loop: Loop, nodes: Sequence[str], ask: Ask) -> Comparison:
    """Compare the logs of ``nodes``. Raises ``TidelogError`` where one stops answering in the middle."""
    first, unasked = await ask_bounds(loop, nodes, ask)
    compared = tuple(first)
    if len(first) < 2:
        return Comparison(compared, unasked=unasked)
    start = max(max(a.log_start, a.comparable_from) for a in first.values())
    end = max(start, min(a.high_watermark for a in first.values()))
    difference = await _DifferenceSearch(loop, compared, ask).run(start, end)
    return Comparison(compared, start, end, difference, unasked)


async def ask_bounds(loop: Loop, nodes: Sequence[str], ask: Ask) -> tuple[dict[str, DigestAnswer], dict[str, str]]:
    """The bounds of each replica's log; and the replicas that gave no answer, with the reason."""
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
    """The logs of ``nodes``, at offsets that get closer."""

    def __init__(self, loop: Loop, nodes: Sequence[str], ask: Ask) -> None:
        self._loop = loop
        self._nodes = nodes
        self._ask = ask
        self._start = 0
        """Some log begins here by now."""

    async def run(self, start: int, end: int) -> Difference | None:
        """The first difference from ``start`` to ``end``."""
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
            if low < self._start:  # retention is faster: nobody can say any more what was there
                if high <= self._start:
                    return Difference(high, at_high, below=True)
                low = self._start
        (before,) = await self._sides([low])
        return Difference(min(side.end for side in before.values()), at_high)

    async def _sides(self, offsets: Sequence[int]) -> list[dict[str, Side]]:
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
