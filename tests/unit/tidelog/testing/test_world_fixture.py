"""Tests ``tidelog.testing.world_fixture``: a test of a user's project over many seeds, and how it fails."""

from __future__ import annotations

import pytest

PASSES = """
import trio

async def waits(address):
    await trio.sleep(5)

def test_nothing(tidelog_world):
    kept = []
    tidelog_world.topic("orders")
    tidelog_world.program(waits)
    tidelog_world.invariant(lambda outcome: None if outcome.records("orders") == kept else "records")
    tidelog_world.run()
    kept.append(1)
"""
FAILS = """
import trio
import pytest

seen = []  # each seed has a process of its own, so nobody sees another's

@pytest.fixture
def database():
    return []

async def counts_twice(address, database):
    database.append("a")
    await trio.sleep(10)
    database.append("b")

def test_each_once(tidelog_world, database):
    assert not seen
    seen.append(1)

    async def counts(address):
        await counts_twice(address, database)

    tidelog_world.faults("kill_program")
    tidelog_world.program(counts)
    tidelog_world.invariant(lambda outcome: None if database == ["a", "b"] else f"the database has {database}")
    tidelog_world.run()
"""
BREAKS = """
async def breaks(address):
    {}["missing"]

def test_program(tidelog_world):
    tidelog_world.program(breaks)
    tidelog_world.run()

async def test_async(tidelog_world):
    pass
"""


LOST = """
async def spins(address):
    while True:
        pass

def test_forgets(tidelog_world):
    tidelog_world.program(spins)

def test_spins(tidelog_world):
    tidelog_world.program(spins)
    tidelog_world.run()
"""


def run(pytester: pytest.Pytester, test: str, *options: str) -> pytest.RunResult:
    """Run a test file of a user's project in a process of its own."""
    pytester.makepyfile(test)
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *options)


def test_a_test_that_passes_is_run_over_the_seeds_of_the_ini_file(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ntidelog_seeds = 2\n")
    run(pytester, PASSES).assert_outcomes(passed=1)


def test_a_failure_names_seed_faults_and_trace_and_can_be_replayed(pytester: pytest.Pytester) -> None:
    result = run(pytester, FAILS, "--tidelog-seeds", "40")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*InvariantBroken: the database has [[]'a', 'a', 'b']",
            "*seed *, with 1 of * faults:",
            "*counts-1 is killed, and started again after *",
            "*replay: pytest *::test_each_once --tidelog-seed *",
            "*trace:  .tidelog/*.trace",
        ]
    )
    text = result.stdout.str()
    trace = pytester.path / text.split("trace:")[1].split()[0]
    assert "INVARIANT BROKEN" in trace.read_text()
    seed = text.split("--tidelog-seed ")[1].split()[0]
    again = run(pytester, FAILS, "--tidelog-seed", seed)
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines([f"*seed {seed}, with 1 of * faults:"])


def test_an_exception_of_a_program_has_its_own_traceback(pytester: pytest.Pytester) -> None:
    result = run(pytester, BREAKS, "-k", "test_program")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(['*{}[[]"missing"]', "*KeyError: 'missing'", "*it fails without any fault"])


def test_an_async_test_is_told_that_the_world_runs_trio(pytester: pytest.Pytester) -> None:
    result = run(pytester, BREAKS, "-k", "test_async")
    result.stdout.fnmatch_lines(["*a test with tidelog_world is a plain function*"])


def test_a_world_that_is_not_run_and_a_run_that_never_ends_fail(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("from tidelog.testing.world import search\n\nsearch.RUN_LIMIT_S = 2\n")
    result = run(pytester, LOST)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "the test does not call world.run(), so nothing was judged",
            "the run takes longer than 2 s: does a program spin?",
            "it fails without any fault",
            "replay: pytest *::test_spins --tidelog-seed 0",
        ]
    )


def test_a_negative_number_of_jobs_or_seeds_is_refused(pytester: pytest.Pytester) -> None:
    refused = run(pytester, PASSES, "--tidelog-jobs", "-1")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines(["*--tidelog-jobs: -1 is not a number from 0 on"])
    pytester.makeini("[pytest]\ntidelog_seeds = -2\n")
    result = run(pytester, PASSES)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*tidelog_seeds: -2 is not a number from 0 on"])


def test_it_works_with_xdist(pytester: pytest.Pytester) -> None:
    run(pytester, PASSES, "-n", "2", "--tidelog-seeds", "2").assert_outcomes(passed=1)
