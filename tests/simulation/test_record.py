"""The seeds of a commit, and the record of those that were run."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tidelog.testing.runner import Case, Fault, Result, Tally

from simulation import __main__ as command_line
from simulation import revision as revisions
from simulation.record import BEGIN, END, PAGE, Row, append, bound, clash, load, row_of, summary, table
from simulation.revision import FIRST, OWN, Revision, revision

ONE = Revision("1234567890", "tree", "source", is_changed=False)
ROW = Row(
    "2026-01-02", "1234567890", "source", "messages", 100, 400, 7.0, 300, 1, "117", 2400, 2_000_000, 2100.0, 150.0
)


def test_the_seeds_of_a_commit_depend_on_its_tree_alone():
    again = replace(ONE, commit="another", source="other", is_changed=True)
    assert again.own_seeds == ONE.own_seeds and len(ONE.own_seeds) == OWN and ONE.own_seeds.start >= FIRST
    ranges = {replace(ONE, tree=str(number)).own_seeds.start for number in range(100)}
    assert len(ranges) == 100 and {(start - FIRST) % OWN for start in ranges} == {0}, "they have no seed in common"


def test_a_source_without_git_has_seeds_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(revisions, "ROOT", tmp_path)
    monkeypatch.setattr(revisions, "RECORD", tmp_path / "tests" / "simulation" / "record.csv")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    found = revision.__wrapped__()
    assert found == Revision("", "", "", False) and str(found) == "a source without git"
    assert found.own_seeds == revision.__wrapped__().own_seeds


def test_the_revision_says_whether_the_sources_have_uncommitted_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    recorded = tmp_path / "tests" / "simulation" / "record.csv"
    monkeypatch.setattr(revisions, "ROOT", tmp_path)
    monkeypatch.setattr(revisions, "RECORD", recorded)

    def git(*arguments: str) -> None:
        who = ("-c", "user.name=x", "-c", "user.email=x@example")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def commit(path: Path, text: str) -> Revision:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        git("add", "--all")
        git("commit", "--message", "x")
        return revision.__wrapped__()

    git("init")
    first = commit(tmp_path / "services" / "code.py", "1")
    assert not first.is_changed and first.commit and first.tree
    counted = commit(recorded, "a row")
    assert counted.source == first.source and counted.own_seeds != first.own_seeds
    assert commit(tmp_path / "docs" / "page.md", "x").source == first.source
    assert commit(recorded.with_name("test_it.py"), "x").source == first.source
    assert commit(recorded.with_name("ghost.py"), "x").source != first.source
    assert commit(tmp_path / "shared" / "code.py", "2").source != first.source
    recorded.write_text("another row")
    assert not revision.__wrapped__().is_changed
    (tmp_path / "services" / "code.py").write_text("3")
    changed = revision.__wrapped__()
    assert changed.is_changed and str(changed).endswith(" with changes")


@pytest.mark.parametrize(
    ("failed", "seeds", "expected"), [(0, 1000, 2.9957e-3), (1, 1000, 4.7439e-3), (5, 4200, 2.503e-3), (0, 2, 1.0)]
)
def test_the_bound_of_a_failure_rate_is_the_exact_one(failed: int, seeds: int, expected: float):
    assert bound(failed, seeds) == pytest.approx(expected, rel=1e-3)


def test_nothing_is_known_of_no_seeds():
    assert bound(0, 0) == 1.0
    assert summary([], "x") == "x: no seeds"


def test_a_row_comes_back_as_it_was_written(tmp_path: Path):
    path = tmp_path / "record.csv"
    assert load(path) == []
    rows = [ROW, replace(ROW, first=400, last=500, seeds=100, failed=0, failed_seeds="")]
    for row in rows:
        append(row, path)
    assert load(path) == rows


def test_a_row_holds_the_results_of_a_run():
    tally = Tally()
    fault = Fault("R1", "R1 x")
    tally.add(Result(Case(7), None, {"fault power": 2, "elections": 3}, 100, 7.5))
    tally.add(Result(Case(5), fault, {"fault power": 1}, 50, 2.5))
    row = row_of(tally, ONE, "bytes", range(5, 1000), 7.0, 1.5, "2026-01-02")
    assert (row.first, row.last, row.seeds, row.failed, row.failed_seeds) == (5, 8, 2, 1, "5")
    assert (row.faults, row.steps, row.simulated_s, row.commit, row.mode) == (3, 150, 10.0, "1234567890", "bytes")


def test_rows_of_one_source_add_up():
    other = replace(ROW, first=400, last=1100, seeds=700, failed=0, failed_seeds="", commit="later", faults=5600)
    lines = table([ROW, other, replace(ROW, source="newer", seeds=10, failed=0, faults=0)]).splitlines()[2:]
    newest, added = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    assert newest[1] == "`newer`"
    assert added[:4] == ["`later`", "`source`", "messages", "2026-01-02"]
    assert added[4:8] == ["1,000", "1", "0.474%", "8.0"]
    assert summary([ROW], "x").startswith("x: 300 seeds, 1 failed, rate 0.333%, at most 1.581% with 95% confidence")


def test_no_seed_counts_twice():
    assert clash([ROW], ONE, "messages", range(399, 500)) == ROW
    assert clash([ROW], ONE, "messages", range(400, 500)) is None
    assert clash([ROW], ONE, "bytes", range(100, 500)) is None
    assert clash([ROW], replace(ONE, source="newer"), "messages", range(100, 500)) is None


def test_the_page_says_what_was_recorded():
    text = PAGE.read_text()
    assert text.split(BEGIN)[1].split(END)[0].strip() == table(load()), "cd tests; python -m simulation --page"


def test_a_range_of_seeds_prints_its_failure_rate():
    command = [sys.executable, "-m", "simulation", "--seeds", "3:4", "--duration", "1", "--jobs", "1"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
    assert "messages, seeds 3:4: 1 seeds, 0 failed, rate 0.000%" in done.stdout


def test_only_what_is_committed_and_was_not_run_before_is_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    path = tmp_path / "record.csv"
    append(ROW, path)

    def why(found: Revision, seeds: range) -> str:
        monkeypatch.setattr(command_line, "revision", lambda: found)
        return command_line.refusal(path, "messages", seeds)

    assert why(ONE, range(1000, 2000)) == ""
    assert why(ONE, range(300, 2000)) == "seeds 100:400 of this source are recorded already"
    assert why(replace(ONE, is_changed=True), range(1000, 2000)) == "the sources differ from the last commit"
    assert why(Revision("", "", "", False), range(1000, 2000)) == "there is no git to tell the revision"
