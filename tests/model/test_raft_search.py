"""Every state of a small scope of real Raft cores, and broken rules that are seen there."""

from __future__ import annotations

import pytest
from mutants import MUTANTS

from model.mutants import by_raft_search
from model.raft_scopes import SEEN, SMALL
from model.raft_search import RaftSearch

LEAST = {"two terms": 5_000, "a command and a crash": 3_000, "an addition": 5_000, "an old disk": 8_000}
SOON = (
    "vote_twice_in_a_term",
    "forget_the_vote",
    "tell_before_it_is_durable",
    "commit_on_a_minority",
    "commit_earlier_terms_by_counting",
    "take_entries_behind_any",
    "vote_where_the_leader_is_known",
)


@pytest.mark.parametrize("name", SMALL)
def test_figure_3_holds_in_every_state_within_the_scope(name: str) -> None:
    outcome = RaftSearch(SMALL[name]).run()
    assert not outcome.trace, "\n".join(outcome.trace)
    assert outcome.states > LEAST[name], "a search that small proves nothing"


@pytest.mark.parametrize("name", SOON)
def test_the_search_notices_a_broken_rule(name: str) -> None:
    assert by_raft_search(MUTANTS[name]).noticed, MUTANTS[name].broken


def test_the_list_of_noticed_mutants_names_existing_mutants_of_raft() -> None:
    assert set(SOON) <= set(SEEN) <= {name for name, mutant in MUTANTS.items() if mutant.raft}
