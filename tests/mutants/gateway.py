"""Rules of the gateway, broken."""

from __future__ import annotations

from tidelog.wire.messages import ReadAnswer
from tidelog_gateway.core.router import Router
from tidelog_gateway.core.subscription import Subscriptions
from tidelog_gateway.core.tail import Stretch, TailCache

from mutants.rules import Patch, breaks


@breaks(
    "KIP-98",
    "Only reads of committed transactions fill the tail that the gateway serves such readers from.",
    tests=("test_shared_reads",),
)
def keep_uncommitted_reads(patch: Patch) -> None:
    """A read of any isolation fills it."""
    on_answer = Subscriptions.on_answer

    def keep(self, token, answer, now):
        reading = self._reads.get(token)
        if reading is not None and isinstance(answer, ReadAnswer) and len(answer.payload):
            key, stretch = reading.place[0], Stretch(answer.payload)
            if len(self._by_partition[key]) > 1:
                self.tails.add(key, reading.before(stretch), stretch, now)
        return on_answer(self, token, answer, now)

    patch.setattr(Subscriptions, "on_answer", keep)


@breaks(
    "KIP-98",
    "A batch that was in flight at a leader that was replaced may have been written.",
    tests=("test_router",),
)
def forget_a_superseded_try(patch: Patch) -> None:
    """An error at the end of its time says that it was not written."""
    supersede = Router._supersede

    def forget(self, entry, now):
        doubt = entry.doubt
        supersede(self, entry, now)
        entry.doubt = doubt

    patch.setattr(Router, "_supersede", forget)


@breaks(
    "KIP-354",
    "What the gateway keeps of a partition is served for a bounded time, since nobody tells it of a compaction.",
    tests=("test_shared_reads",),
)
def keep_the_tail_for_ever(patch: Patch) -> None:
    """It is kept until newer batches need the room."""
    patch.setattr(TailCache, "_forget_old", lambda self, now: None)
