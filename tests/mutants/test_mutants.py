"""Each broken rule is noticed. The engine that noticed it last time is tried first, so that this costs little;
``make mutants`` tries all of both engines and writes down what it sees."""

from __future__ import annotations

import pytest

from mutants import MUTANTS
from mutants.engines import Notice, scenarios, try_scenario, try_seed
from mutants.results import PAGE, Record, load, sections
from mutants.rules import Mutant

SEEDS = 20
SCENARIOS = scenarios()
RECORDS = load()


def notice(mutant: Mutant) -> Notice | None:
    """By the engine that noticed it last time, else by any."""
    record = RECORDS.get(mutant.name, Record())
    if record.scenario in SCENARIOS:
        seen = try_scenario(mutant, record.scenario, SCENARIOS[record.scenario])
        if seen is not None:
            return seen
    elif record.seed >= 0 and (seen := try_seed(mutant, record.seed)) is not None:
        return seen
    staged = (try_scenario(mutant, name, scenario) for name, scenario in SCENARIOS.items())
    seeded = (try_seed(mutant, seed) for seed in range(SEEDS))
    return next(filter(None, staged), None) or next(filter(None, seeded), None)


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_broken_rule_is_noticed(mutant: Mutant):
    assert notice(mutant) is not None, f"nothing notices {mutant.name}: {mutant.broken}"


def test_the_records_are_of_these_mutants_and_the_page_says_what_is_there():
    assert list(RECORDS) == list(MUTANTS), "python -m mutants --write"
    assert all(record.noticed for record in RECORDS.values())
    text = PAGE.read_text()
    for begin, content, end in sections(RECORDS):
        assert text.split(begin)[1].split(end)[0].strip() == content, "python -m mutants --page"
