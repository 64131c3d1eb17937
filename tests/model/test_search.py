"""Every state of a small scope of the real cores."""

from __future__ import annotations

from model.search import SMALL, search


def test_R1_to_R8_hold_in_every_state_within_the_scope():
    outcome = search(SMALL)
    assert not outcome.trace, "\n".join(outcome.trace)
    assert outcome.states > 100_000 and outcome.calls > 5_000, "a search that small proves nothing"
