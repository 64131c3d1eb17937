"""For whom the high watermark waits though it is not in the ISR yet.

Who joins has reached the HW (``leader.py``). A leader that is alone in its ISR commits what it has flushed itself;
under a steady load that is always a round trip ahead of what a fetch can show, and nobody would ever join. So the HW
waits for a follower that *keeps up*: all that was in the log ``PATIENCE`` of ``max_lag_s`` ago it has. Its next fetch
shows that it has reached the HW, and it is proposed. Where it falls silent instead, or behind, nobody waits longer.

With commit rule ``leader`` a copy may lag: who keeps up joins at once. With ``quorum`` nobody is waited for: the HW
is no further than a majority is, whom a follower overtakes as often as not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tidelog.types import NodeId

PATIENCE = 0.1
"""Part of ``max_lag_s``."""


class Joining:
    """Who keeps up, and until when that is known (seconds)."""

    def __init__(self) -> None:
        self._until: dict[NodeId, float] = {}

    def __contains__(self, node: NodeId) -> bool:
        return node in self._until

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """All of them."""
        return tuple(self._until)

    def on_fetch(self, node: NodeId, caught_up_at: float, max_lag_s: float, now: float) -> None:
        """It has fetched, may join but for what it lacks, and had everything at ``caught_up_at``."""
        until = caught_up_at + PATIENCE * max_lag_s
        if until > now:
            self._until[node] = until
        else:
            self._until.pop(node, None)

    def forget(self, nodes: Sequence[NodeId]) -> None:
        """These are counted now."""
        for node in nodes:
            self._until.pop(node, None)

    def clear(self) -> None:
        """Nobody is known to keep up."""
        self._until.clear()

    def expire(self, now: float) -> bool:
        """Forget who has not kept up; whether there was one."""
        late = [node for node, until in self._until.items() if until <= now]
        for node in late:
            del self._until[node]
        return bool(late)

    def deadline(self) -> float:
        """When ``expire`` has something to do; ``inf``: never."""
        return min(self._until.values(), default=math.inf)
