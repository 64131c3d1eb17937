"""Each broken rule is noticed. The engine that noticed it last time is tried first, so that this costs little;
``make mutants`` tries all engines and records the results."""

from __future__ import annotations

import itertools

import pytest
from crash_points.recording import missing

from mutants import MUTANTS
from mutants.engines import Notice, paper, scenarios, try_power_losses, try_scenario, try_seed, try_walk, unit_tests
from mutants.results import Record, load, sections
from mutants.rules import Mutant

SEEDS = WALKS = 20
STAGED = {**scenarios(), **paper()}
RECORDS = load()


def notice(mutant: Mutant) -> Notice | None:
    """Try the engine that noticed the mutant last time, then all others. Return the first failure, or None if there
    is none."""
    if mutant.disk:
        return try_power_losses(mutant)
    record, staged = RECORDS.get(mutant.name, Record()), {**STAGED, **unit_tests(mutant)}
    for case in (record.paper, record.scenario, record.unit):
        if case in staged and (seen := try_scenario(mutant, case, staged[case])) is not None:
            return seen
    if mutant.raft and record.walk >= 0 and (seen := try_walk(mutant, record.walk)) is not None:
        return seen
    if record.seed >= 0 and (seen := try_seed(mutant, record.seed)) is not None:
        return seen
    tries = itertools.chain(
        (try_scenario(mutant, case, run) for case, run in staged.items()),
        (try_walk(mutant, number) for number in range(WALKS if mutant.raft else 0)),
        (try_seed(mutant, seed) for seed in range(SEEDS)),
    )
    return next(filter(None, tries), None)


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_broken_rule_is_noticed(mutant: Mutant):
    if mutant.disk and (why := missing()):
        pytest.skip(f"{mutant.name} was NOT tried: {why}")
    assert notice(mutant) is not None, f"nothing notices {mutant.name}: {mutant.broken}"


def test_the_records_are_of_these_mutants_and_the_pages_say_what_is_there():
    assert list(RECORDS) == list(MUTANTS), "python -m mutants --write"
    assert all(record.noticed for record in RECORDS.values())
    for page, begin, content, end in sections(RECORDS):
        assert page.read_text().split(begin)[1].split(end)[0].strip() == content, "python -m mutants --page"
