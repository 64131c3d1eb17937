"""What an invariant sees when a run is over: the records that are committed, and the positions of groups."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tidelog.batch.format import Record


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a run: everything is healed, and the programs have finished."""

    seed: int
    topics: Mapping[str, list[Record]] = field(repr=False)
    """The committed records of each topic, by partition and offset."""
    positions: Mapping[tuple[str, str], Mapping[int, int]] = field(default_factory=dict, repr=False)

    def records(self, topic: str) -> list[Record]:
        """Return every committed record of a topic of the world, sorted by partition and offset: those that a reader
        with isolation ``committed`` sees. Raises ``KeyError`` for another topic."""
        if topic not in self.topics:
            raise KeyError(f"the world has no topic {topic}: it has {', '.join(sorted(self.topics)) or 'none'}")
        return self.topics[topic]

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return the positions that a consumer group has committed in a topic, by partition: each is the offset of
        the record with which the group goes on. Partitions without a position are left out."""
        return dict(self.positions.get((group, topic), {}))


Verdict: TypeAlias = "str | None"
Invariant = Callable[[Outcome], "Verdict | Awaitable[Verdict]"]
"""A function of the outcome of a run, sync or async. It returns None, or a sentence that says what is wrong."""


async def judge(invariant: Invariant, outcome: Outcome) -> str | None:
    """Return what an invariant says of an outcome. Raises ``TypeError`` if that is neither None nor a text."""
    said = invariant(outcome)
    verdict = await said if inspect.isawaitable(said) else said
    if verdict is not None and not isinstance(verdict, str):
        raise TypeError(f"an invariant returns None, or a sentence that says what is wrong, not {verdict!r}")
    return verdict
