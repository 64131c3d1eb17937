"""Tests ``tidelog.tables.commit_protocol`` in a simulation: batches are in a table once and in order (T1 to T3),
whatever drivers do. The same walks run on real tables of each format."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
from tidelog.tables import commit_protocol
from tidelog.tables.commit_protocol import Outcome, Verdict

from model.table_commits import MemorySubject, walk
from model.table_subjects import FORMATS, RealSubject, address_of


@pytest.mark.parametrize("block", range(4))
def test_walks(block: int) -> None:
    seen: set[Verdict] = set()
    for seed in range(block * 150, (block + 1) * 150):
        seen |= set(walk(MemorySubject(), seed).verdicts)
    assert seen == {Verdict.MINE, Verdict.ANOTHER}, "both ends are met"


def noticed(subject_of: type[MemorySubject] = MemorySubject, **options: bool) -> str:
    """The first invariant that a walk breaks."""
    for seed in range(600):
        try:
            walk(subject_of(**options), seed)
        except AssertionError as error:
            return str(error)
    return ""


def test_the_model_notices_a_comparison_that_a_rollback_undoes() -> None:
    assert noticed(compares_tag=False).startswith("T1: a batch came back")


def test_the_model_notices_a_retry_that_does_not_look_at_the_marker() -> None:
    def append_always(marker: object, mine: object) -> Verdict:
        return Verdict.APPEND

    with patch.object(commit_protocol, "judge", append_always):
        assert noticed().startswith("T")


def test_the_model_notices_a_driver_that_deletes_files_after_it_has_asked() -> None:
    def never_sent(verdict: Verdict, sent: bool) -> Outcome:
        return Outcome(verdict, sent=False)

    with patch.object(commit_protocol, "Outcome", never_sent):
        assert noticed().startswith("T3")


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # SQLAlchemy leaves connections to the garbage collector
@pytest.mark.parametrize("format", FORMATS)
def test_walks_on_real_tables(format: str, tmp_path: Path) -> None:
    faults = ("crash", "take_over", "compact", "lose_answer", "lose_request")
    verdicts = walk(RealSubject(address_of(format, tmp_path)), seed=1, steps=50, faults=faults).verdicts
    assert set(verdicts) == {Verdict.MINE, Verdict.ANOTHER}
