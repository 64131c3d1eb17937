"""A few broken rules by engine, those that are noticed soon; ``make mutants`` tries all."""

from __future__ import annotations

import pytest
from mutants import MUTANTS

from model import spin
from model.mutants import BEYOND, DESIGN, SEARCHED, by_design, by_search, by_walks

SOON = (
    "M_TRUNCATE_TO_HW",
    "M_SHRINK_AT_ONCE",
    "M_NO_LIFE_CHECK",
    "M_ELR_KEEPS_UNSAFE",
    "M_NO_SEAL",
    "M_WIPED_MEMBER",
    "M_VOTERS_WITHOUT_ELR",
    "M_KEEP_CONFIRMATIONS",
)
SEEN_BY_WALKS = (
    "keep_the_elr",
    "trust_unclean_restarts",
    "elect_the_dead",
    "resume_a_leader_epoch",
    "acknowledge_before_the_flush",
    "commit_without_proposed_members",
    "shrink_before_the_controller_has",
    "commit_alone",
    "count_diverged_followers",
)


@pytest.mark.skipif(bool(spin.missing()), reason=f"the design model was NOT checked, missing here: {spin.missing()}")
@pytest.mark.parametrize("name", SOON)
def test_the_design_needs_each_of_its_rules(name):
    assert by_design(name, shortest=False).noticed, DESIGN[name].broken


@pytest.mark.parametrize("name", SEEN_BY_WALKS)
def test_walks_notice_a_broken_rule(name):
    assert by_walks(MUTANTS[name], seeds=40).noticed, MUTANTS[name].broken


@pytest.mark.parametrize("name", SEARCHED)
def test_the_search_notices_a_broken_rule(name):
    assert by_search(MUTANTS[name]).noticed, MUTANTS[name].broken


def test_mutants_that_no_engine_can_notice_are_listed():
    assert set(BEYOND) <= set(MUTANTS) and set(SEARCHED) <= set(MUTANTS)
