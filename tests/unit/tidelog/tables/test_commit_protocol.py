"""Tests ``tidelog.tables.commit_protocol``: the judgement of markers, and their form as JSON."""

from __future__ import annotations

import pytest
from tidelog.errors import ConfigError
from tidelog.tables.commit_protocol import (
    MAX_ATTEMPTS,
    Answer,
    CommitGivenUp,
    ForeignApplication,
    Marker,
    TableState,
    Verdict,
    commit_steps,
    judge,
    marker_from_json,
    marker_to_json,
    merged_offsets,
    owner_of,
)

MINE = Marker(5, 1, owner_of("q"), "q")


@pytest.mark.parametrize(
    ("marker", "verdict"),
    [
        (None, Verdict.APPEND),
        (Marker(4, 2, owner_of("q")), Verdict.APPEND),
        (Marker(5, 1, owner_of("q")), Verdict.MINE),
        (Marker(5, 2, owner_of("q")), Verdict.ANOTHER),
        (Marker(6, 2, owner_of("q")), Verdict.ANOTHER),
    ],
)
def test_the_judgement_of_a_marker(marker: Marker | None, verdict: Verdict) -> None:
    assert judge(marker, MINE) is verdict


def test_an_application_of_another_query_is_refused() -> None:
    with pytest.raises(ForeignApplication, match="p"):
        judge(Marker(1, 1, owner_of("p"), "p"), MINE)


def test_after_many_conflicts_an_attempt_gives_up() -> None:
    steps = commit_steps(MINE)
    next(steps)
    with pytest.raises(CommitGivenUp):
        for _ in range(MAX_ATTEMPTS):
            steps.send(TableState(None))
            steps.send(Answer.CONFLICT)


def test_offsets_only_advance() -> None:
    merged = merged_offsets({"t": {0: 5, 1: 7}}, {"t": {0: 9, 1: 2}, "u": {3: 1}})
    assert merged == {"t": {0: 9, 1: 7}, "u": {3: 1}}


def test_a_marker_as_json() -> None:
    marker = Marker(5, 1, owner_of("q"), "q", {"t": {0: 5, 10: 7}})
    assert marker_from_json(marker_to_json(marker)) == marker
    with pytest.raises(ConfigError, match="version 2"):
        marker_from_json(marker_to_json(marker) | {"version": 2})
