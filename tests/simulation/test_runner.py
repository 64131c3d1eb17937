"""Runs as data: a recorded run replays, and a failure is found, shrunk, and printed with the command that replays
it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidelog.testing.cluster import Cluster
from tidelog.testing.faults.strikes import Strike
from tidelog.testing.runner import Case, Fault, Result, Tally, run_case, run_seed
from tidelog.testing.shrink import Shrinker

from simulation import __main__ as program
from simulation.faults.planted import truncate_to_the_high_watermark

SHORT_S = 3.5


def recorded(seed: int) -> Case:
    """Return the case of a seed with its strikes listed."""
    case = Case(seed, SHORT_S)
    cluster = Cluster(case.options())
    cluster.run()
    return replace(case, strikes=tuple(cluster.faults.struck))


@pytest.mark.parametrize("seed", [1, 4, 12])
def test_a_run_from_its_recorded_strikes_is_the_same_run(seed):
    whole, again = list[str](), list[str]()
    run_case(Case(seed, SHORT_S), whole.append)
    run_case(recorded(seed), again.append)
    assert whole == again


def test_strikes_come_at_times_and_after_events():
    strikes = [strike for seed in range(6) for strike in recorded(seed).strikes or ()]
    after = sum(strike.after is not None for strike in strikes)
    assert len(strikes) > 50
    assert 0.25 < after / len(strikes) < 0.75


def test_a_case_survives_its_file(tmp_path):
    case = replace(recorded(2), clients=("p1", "k1"), duration=5.0)
    case.save(tmp_path / "case.json")
    assert Case.load(tmp_path / "case.json") == case


def test_a_planted_fault_is_found_and_shrunk_to_few_strikes_that_still_show_it(monkeypatch):
    truncate_to_the_high_watermark(monkeypatch)
    results = (run_seed(seed, SHORT_S) for seed in range(24))
    found = next(result for result in results if result.fault is not None and len(result.strikes) > 5)
    small = Shrinker(found, runs=150).shrink()
    assert len(small.strikes or ()) <= 3
    again = run_case(small).fault
    assert again is not None and found.fault is not None and again.kind == found.fault.kind
    monkeypatch.undo()
    assert run_case(small).fault is None


def test_shrinking_keeps_only_what_the_failure_needs():
    strikes = tuple(Strike("kill", f"r{number}", {"seconds": 1.0}, float(number)) for number in range(16))
    needed = [strikes[3], strikes[11]]

    def run(case: Case) -> Result:
        fails = all(strike in (case.strikes or ()) for strike in needed) and (
            case.clients is None or "p1" in case.clients
        )
        return replace(failed, case=case, fault=failed.fault if fails else None)

    failed = replace(run_seed(0, SHORT_S), strikes=strikes, fault=Fault("R3", "R3 planted"))
    small = Shrinker(failed, run=run).shrink()
    assert list(small.strikes or ()) == needed
    assert small.clients == ("p1",)
    assert small.duration < failed.case.duration


def test_a_failure_is_printed_with_the_command_that_replays_it(monkeypatch, tmp_path, capsys):
    truncate_to_the_high_watermark(monkeypatch)
    tally = program.run_range(range(4), 7.0, 1, tmp_path)
    assert tally.failed
    seed = tally.failed[0].seed
    text = capsys.readouterr().out
    assert f"python -m simulation --seed {seed} --trace" in text
    assert "FAULT" in (tmp_path / f"seed-{seed}.trace").read_text()
    assert Case.load(tmp_path / f"seed-{seed}.json") == Case(seed)


def test_a_tally_adds_up():
    tally = Tally()
    for seed in (0, 1):
        tally.add(run_seed(seed, SHORT_S))
    data = tally.data()
    assert data["seeds"] == 2 and data["failed"] == {}
    assert data["virtual_seconds"] > 10 and data["faults_injected"] == sum(data["faults"].values()) > 5
    assert data["seeds_per_second"] > 0 and data["virtual_seconds_per_second"] > 0


def test_the_summary_says_how_much_was_tried():
    tally = Tally()
    tally.add(Result(Case(1), None, {"fault kill": 2, "fault power": 3, "elections": 7}, 100, 8.4))
    tally.add(Result(Case(2), Fault("R3", "R3 planted"), {"fault kill": 1}, 50, 3.6))
    assert tally.summary.startswith("2 seeds, 1 failed; 6 faults injected, 150 steps, 12 s simulated in ")
    assert tally.faults == {"kill": 3, "power": 3}
