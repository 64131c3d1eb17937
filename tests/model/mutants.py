"""``python -m model.mutants``: rules broken on purpose, and how soon which engine notices each.

- design: a rule of ``replication.pml`` left out (``-DM_…``); breadth first, so the trace is a shortest one
- walks: a rule of the product broken (``tests/mutants``); the first seed that notices, its steps, shrunk
- search: the same broken rules; the states visited until then, the length of a shortest trace
- raft: rules of Raft, likewise, in the search over Raft cores

python -m model.mutants [--engine design] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import pytest
from mutants import MUTANTS
from mutants.rules import Mutant, Patch
from tidelog.wire.messages import Registered

from model import spin
from model.memory_log import MemoryLog
from model.raft_scopes import LARGE, SEEN
from model.raft_scopes import SMALL as RAFT_SMALL
from model.raft_search import RaftSearch
from model.search import SMALL, Scope, search
from model.server import Server
from model.walks import shrink, walk

SEEDS = 1500
"""A mutant that survives so many walks counts as not noticed by them."""


@dataclass(frozen=True, slots=True)
class Design:
    """A rule left out of the design model."""

    source: str
    rule: str
    broken: str
    scope: dict[str, int]


DESIGN: dict[str, Design] = {
    "M_TRUNCATE_TO_HW": Design(
        "KIP-101",
        "A follower asks where its last epoch ends.",
        "It cuts its log at its high watermark.",
        {"R": 1, "E": 3, "ALTERS": 0, "FOLLOWER_HW": 1},
    ),
    "M_NO_EPOCH_IN_ANSWER": Design(
        "KIP-279",
        "The answer of the dialogue names an epoch.",
        "It is an offset only.",
        {"R": 2, "E": 4, "ALTERS": 1},
    ),
    "M_NEVER_TRUNCATE": Design(
        "rule 7", "The dialogue is finished before the first fetch.", "There is none.", {"R": 2, "E": 3, "ALTERS": 0}
    ),
    "M_JOIN_AT_HW": Design(
        "rule 6",
        "Who joins the ISR has reached the start of the leader epoch.",
        "The high watermark is enough. (Four replicas show it.)",
        {"N": 4, "R": 1, "E": 3, "ALTERS": 1},
    ),
    "M_RESUME": Design(
        "rule 2",
        "No leader epoch is resumed after a restart.",
        "A leader that is chosen again goes on in its epoch.",
        {"R": 2, "E": 3, "ALTERS": 1, "FENCES": 1},
    ),
    "M_ACK_UNFLUSHED": Design(
        "rule 4",
        "A follower's acknowledged offset is its flushed end.",
        "It is its log end.",
        {"R": 1, "E": 3, "ALTERS": 0},
    ),
    "M_LEADER_UNFLUSHED": Design(
        "rule 4", "The leader counts itself by its flushed end.", "By its log end.", {"R": 1, "E": 3, "ALTERS": 0}
    ),
    "M_SHRINK_AT_ONCE": Design(
        "rule 5",
        "A shrink takes effect when the controller's state arrives.",
        "When it is proposed.",
        {"R": 1, "E": 3, "ALTERS": 1},
    ),
    "M_COMMITTED_ISR_ONLY": Design(
        "KIP-497",
        "The leader counts the maximal ISR.",
        "It counts the ISR that it knows to be committed.",
        {"R": 1, "E": 3, "ALTERS": 1},
    ),
    "M_FORGET_PROPOSAL": Design(
        "rule 5",
        "Only a newer epoch settles a proposal.",
        "One that is not answered is forgotten, and may be applied later.",
        {"R": 1, "E": 3, "ALTERS": 1},
    ),
    "M_ANY_EPOCH": Design(
        "rule 8",
        "Messages carry the leader epoch and are dropped on mismatch.",
        "A leader counts followers of other epochs.",
        {"R": 1, "E": 3, "ALTERS": 1},
    ),
    "M_NO_BROKER_EPOCH": Design(
        "KIP-903",
        "A fetch of an earlier life counts for nothing.",
        "A late one counts as if it were of this life.",
        {"R": 1, "E": 4, "ALTERS": 1, "LATES": 1, "LOSSES": 1, "CRASHES": 0},
    ),
    "M_NO_LIFE_CHECK": Design(
        "KIP-903",
        "A member joins in the life in which the leader saw it.",
        "In any life.",
        {"R": 1, "E": 4, "ALTERS": 1, "LOSSES": 1, "CRASHES": 0},
    ),
    "M_STAY_IN_ISR": Design(
        "rule 3",
        "Who registers leaves the ISR where others remain.",
        "It stays.",
        {"R": 1, "E": 3, "ALTERS": 0, "LOSSES": 1, "CRASHES": 0, "FENCES": 0},
    ),
    "M_LAST_MEMBER_STAYS": Design(
        "KIP-966",
        "Who may have lost data leaves the ISR even as the last one.",
        "The last one stays and leads.",
        {"R": 1, "E": 4, "ALTERS": 0, "LOSSES": 1, "CRASHES": 0, "FENCES": 2},
    ),
    "M_ELR_KEEPS_UNSAFE": Design(
        "KIP-966",
        "Who may have lost data is not eligible.",
        "It stays in the ELR.",
        {"R": 1, "E": 4, "ALTERS": 0, "LOSSES": 1, "CRASHES": 0, "MIN": 2},
    ),
    "M_MIN_IGNORED": Design(
        "KIP-966",
        "The HW stands still while the ISR is below its minimum.",
        "It moves, beside the eligible.",
        {"R": 1, "E": 4, "ALTERS": 0, "MIN": 2, "FENCES": 2, "CRASHES": 0},
    ),
    "M_NO_OWN_EPOCH": Design(
        "Raft 5.4.2",
        "A quorum leader commits past the start of its own epoch only.",
        "Also what earlier epochs left.",
        {"QUORUM": 1, "R": 2, "E": 7, "ALTERS": 0, "FENCES": 3, "CRASHES": 0},
    ),
    "M_NO_SEAL": Design(
        "quorum",
        "Who has sealed fetches no more in older epochs.",
        "It tells its end and fetches on.",
        {"QUORUM": 1, "R": 1, "E": 5, "ALTERS": 0, "FENCES": 2, "CRASHES": 0},
    ),
    "M_LONGEST_LOG": Design(
        "Raft 5.4.1",
        "The greatest (last epoch, end) leads.",
        "The longest log leads.",
        {"QUORUM": 1, "R": 2, "E": 5, "ALTERS": 0, "FENCES": 2, "CRASHES": 0},
    ),
    "M_MINORITY_SEALS": Design(
        "quorum",
        "A majority must have sealed.",
        "One is enough.",
        {"QUORUM": 1, "R": 1, "E": 5, "ALTERS": 0, "FENCES": 2, "CRASHES": 0},
    ),
    "M_WIPED_MEMBER": Design(
        "quorum",
        "Whose data are lost has no promise until it has caught up.",
        "It keeps its promise.",
        {"QUORUM": 1, "R": 1, "E": 4, "ALTERS": 0, "FENCES": 1, "LOSSES": 1, "CRASHES": 0},
    ),
    "M_VOTERS_ARE_THE_KNOWN_ISR": Design(
        "decision 26",
        "The voters of a leader are the maximal ISR and the ELR.",
        "They are the ISR that it knows to be committed, and the ELR.",
        {"CONFIRM": 1, "N": 2, "R": 1, "E": 5, "ALTERS": 2, "FENCES": 2},
    ),
    "M_VOTERS_WITHOUT_ELR": Design(
        "decision 26",
        "The voters of a leader are the maximal ISR and the ELR.",
        "They are the maximal ISR.",
        {"CONFIRM": 1, "N": 2, "R": 1, "E": 4, "ALTERS": 1, "FENCES": 2, "MIN": 2},
    ),
    "M_KEEP_CONFIRMATIONS": Design(
        "decision 26",
        "A confirmation counts from the moment at which the leader asked.",
        "One that was given before counts for a later question.",
        {"CONFIRM": 1, "N": 2, "R": 1, "E": 3, "ALTERS": 0},
    ),
    "M_CONFIRM_IN_ANY_EPOCH": Design(
        "decision 26",
        "A voter confirms while it follows in the leader's epoch.",
        "It confirms in any epoch.",
        {"CONFIRM": 1, "N": 2, "R": 1, "E": 3, "ALTERS": 0},
    ),
    "M_MINORITY_CONFIRMS": Design(
        "decision 26",
        "With commit rule quorum a majority must have confirmed.",
        "The leader alone is enough.",
        {"CONFIRM": 1, "QUORUM": 1, "R": 1, "E": 5, "ALTERS": 0, "FENCES": 2, "CRASHES": 0},
    ),
}


def _forget_the_index(patch: Patch) -> None:
    on_registered = Server.on_registered

    def forget(self: Server, answer: Registered) -> None:
        on_registered(self, answer)
        self.index = -1

    patch.setattr(Server, "on_registered", forget)


IN_MEMORY: dict[str, Callable[[Patch], None]] = {
    "acknowledge_before_the_flush": lambda patch: patch.setattr(MemoryLog, "durable", property(lambda log: log.end)),
    "act_on_what_a_former_life_was_told": _forget_the_index,
}
"""The patches that break the same rule in the log in memory and in the servers of a walk."""


BEYOND: dict[str, str] = {
    "stay_in_the_isr": "loses nothing by itself: who is not safe leaves all the same, and positions are flushed ones",
    "forget_the_elr": "costs availability, loses nothing",
    "keep_the_broker_epoch": "a race too rare here, which the design model shows: M_NO_BROKER_EPOCH",
    "believe_any_life": "a race too rare here, which the design model shows: M_NO_LIFE_CHECK",
    "join_in_any_life": "a server that is fenced, fetches all the while and then loses its disk: scenario B5",
    "remember_the_followers_of_an_earlier_leadership": "a leader that leads again without having heard of the other",
    "believe_any_report": "the reports there are enough, and true",
    "believe_old_reports": "the reports there are enough, and true",
    "elect_at_the_first_report": "the reports there are enough, and true",
    "elect_by_rank_alone": "no ranks there: any replica of ISR and ELR may be elected",
    "rank_the_elr_beside_the_isr": "no ranks there",
    "ignore_the_ranks": "no ranks there; costs availability, loses nothing",
    "replace_a_reported_leader_every_time": "costs availability, loses nothing",
    "serve_after_the_session": "time",
    "believe_old_confirmations": "time",
    "prove_alone": "readers, and time",
    "ask_the_isr_only": "readers, and time",
    "ask_nobody_who_may_be_elected_uncleanly": "readers, and time",
    "let_a_learner_vote": "readers, and reassignments",
    "confirm_what_has_moved_on": "time",
    "lead_from_outside_the_isr": "the controller never asks for it",
    "serve_before_the_registration": "servers there hear of nothing before it",
    "take_notices_of_any_epoch": "nobody is notified there",
    "believe_others_about_the_epoch": "who leads next has heard of it there before anybody asks it",
    "take_late_answers_in_the_dialogue": "the first fetch mends it: it compares epochs, too",
    "cut_at_the_hw_where_an_epoch_is_unknown": "three leaders with records of their own on two logs: scenario A13",
    "ask_but_once": "the same",
    "propose_anew_what_was_not_answered": "who is proposed there is fenced for too short a time: scenario B1",
    "believe_seals_of_other_epochs": "a seal that is late by two elections: scenario C18",
    "elect_the_longest_log": "a race too rare here, which the design model shows: M_LONGEST_LOG",
    "commit_earlier_epochs_by_counting": "a race too rare here, which the design model shows: M_NO_OWN_EPOCH",
    "lead_on_with_a_disk_that_stands_still": "time",
    "take_an_answer_for_read": "a follower here asks for each partition, whatever it thinks that it was told",
    "let_replicas_go_in_a_row": "reassignments",
    "take_any_directory": "data directories of other nodes",
    "remember_what_came_later": "retention",
    "look_at_nothing_behind": "no bytes of a log are bad there: scenario D11",
    "lead_with_a_doubtful_tail": "the same",
    "elect_the_doubtful": "the same",
    "cut_for_a_leader_that_may_be_dead": "the same",
    "report_what_was_known_only": "nobody compares reports with what was lost there: scenario C10",
    "remember_losses_in_memory": "the same",
    "mark_ahead_of_the_sync": "the same",
    "confirm_leadership_at_once": "readers",
    "ignore_the_epochs_of_readers": "readers",
    "read_beyond_the_high_watermark": "readers",
    "tell_the_end_too_early": "readers",
    "believe_the_leaders_high_watermark": "readers",
    "forget_sequences": "producers that retry",
    "take_other_bytes_for_a_copy": "producers that retry",
    "take_an_unknown_crc_for_a_match": "producers that retry",
    "believe_the_batch_that_is_to_be_compared": "producers that retry",
    "leave_the_crcs_out_of_the_state": "producers that retry",
    "remember_the_crc_of_a_compacted_batch": "producers that retry",
    "judge_followers_only_when_they_fetch": "time",
    "ack_when_the_isr_gets_too_small": "producers that wait",
    "believe_a_marker_at_once": "transactions",
    "answer_a_marker_at_once": "transactions",
    "tell_a_decision_at_once": "transactions",
    "go_on_in_the_same_epoch": "transactions",
    "take_a_batch_without_asking": "transactions",
    "tell_one_leader_only": "transactions",
    "replay_under_a_new_epoch": "numbered batches",
    "stamp_a_replay_anew": "numbered batches",
    "keep_the_epoch_of_the_batch_before": "numbered batches",
    "serve_an_earlier_batch": "numbered batches",
    "share_an_application": "numbered batches",
    "forget_producers_with_their_coordinator": "numbered batches",
    "trust_the_page_cache": "storage",
    "retry_a_failed_flush": "storage",
    "cut_at_any_bad_batch": "storage",
    "believe_the_tail": "storage",
    "cut_below_the_high_watermark": "storage",
    **dict.fromkeys(
        (
            "skip_the_next_batch_too",
            "leave_the_group_before_a_skipped_batch",
            "finish_a_batch_that_was_not_read",
            "go_on_behind_the_error",
            "skip_a_damaged_batch",
        ),
        "consumers",
    ),
    "take_a_right_crc_for_readable": "the scrubber",
    "repair_what_cannot_be_decoded": "the scrubber",
    "keep_uncommitted_reads": "the gateway",
    "forget_a_superseded_try": "the gateway",
    "take_any_ticket": "the gateway",
    "take_batches_without_a_ticket": "the gateway",
    "check_the_first_batch_alone": "the gateway",
    "leave_the_epoch_out_of_tickets": "the gateway",
    "leave_the_principal_out_of_tickets": "the gateway",
    "believe_a_ticket_that_was_put_by": "the gateway",
    "keep_the_ids_of_a_connection_that_ended": "the gateway",
    "tell_everybody_the_keys": "keys of tickets are for gateways, which are not there",
    "keep_every_key": "keys of tickets are for gateways, which are not there",
    "keep_the_keys_of_a_survivor": "keys of tickets are for gateways, which are not there",
    "make_the_first_key_late": "keys of tickets are for gateways, which are not there",
    "believe_a_proof_at_once": "readers",
    "count_the_session_from_the_answer": "time",
    "count_the_first_session_from_the_answer": "time",
    "compact_what_is_open": "storage",
    "begin_before_the_producers_are_known": "storage",
    "begin_with_a_snapshot_that_is_not_synced": "storage",
    "lower_the_high_watermark_first": "storage",
    "read_batches_of_any_epoch": "storage",
    "commit_whatever_has_the_name": "transactions",
    "begin_before_the_end": "transactions",
    "end_a_transaction_by_an_older_marker": "transactions",
    "write_late_markers": "transactions",
    "settle_positions_by_an_older_marker": "transactions",
    "let_a_later_epoch_keep_a_marker_out": "transactions",
    "answer_a_commit_when_it_is_decided": "transactions",
    "call_a_commit_visible_at_the_time_out": "transactions",
    "take_positions_of_a_known_producer_without_asking": "transactions",
    "let_requests_share_an_enrolment": "transactions",
    "take_positions_without_the_right_to_the_application": "transactions",
    "believe_the_leader_of_an_older_marker": "transactions",
    "give_producer_ids_again": "the metadata never go back there: scenarios C20",
    "go_on_in_the_survivor_s_epochs": "the metadata never go back there: scenarios C20",
    "go_on_at_the_survivor_s_index": "the metadata never go back there: scenarios C20",
    "elect_without_reports": "the metadata never go back there: scenarios C20",
    "elect_the_first_of_enough_copies": "the metadata never go back there: scenarios C20",
    "count_blank_copies": "the metadata never go back there: scenarios C20",
    "trust_any_last_leader": "the metadata never go back there: scenarios C20",
    "elect_below_a_reported_epoch": "the metadata never go back there: scenarios C20",
    "ignore_known_producer_ids": "the metadata never go back there: scenarios C20",
    "rule_by_metadata_that_went_back": "the metadata never go back there: scenarios C20",
    "forget_older_lives": "the metadata never go back there: scenarios C20",
    "delete_copies_while_a_partition_recovers": "the metadata never go back there: scenarios C20",
    "read_without_a_window": "the gateway",
    "share_until_all_is_taken": "the gateway",
    "take_turns_by_connection": "the gateway",
    "serve_one_connection_first": "the gateway",
    "overtake_large_reads": "the gateway",
    "bring_news_without_a_bound": "the gateway",
    "wait_alone": "the gateway",
    "wait_for_the_old_leader": "the gateway",
    "give_up_waits": "the gateway",
    "hang_up_on_who_asks_much": "links",
    "ignore_the_hard_limit": "readers",
    "take_a_name_as_often_as_it_is_given": "no requests for metadata, and nothing that takes long, there",
    "share_an_answer_that_was_begun_before": "no requests for metadata, and nothing that takes long, there",
    "join_a_look_up_under_way": "no requests for metadata, and nothing that takes long, there",
    "look_up_without_end": "no requests for metadata, and nothing that takes long, there",
    "seat_who_came_first": "no requests for metadata, and nothing that takes long, there",
    "unfold_all_at_once": "no requests for metadata, and nothing that takes long, there",
    "name_nobody_in_the_log": "no requests for metadata, and nothing that takes long, there",
    "take_a_refusal_for_silence": "no requests for metadata, and nothing that takes long, there",
    "leave_off_where_a_step_fails": "no requests for metadata, and nothing that takes long, there",
    "send_what_was_not_looked_at": "no requests for metadata, and nothing that takes long, there",
    "go_on_for_those_who_are_gone": "no requests for metadata, and nothing that takes long, there",
    "have_all_servers_share_the_seats": "no requests for metadata, and nothing that takes long, there",
    "keep_whole_messages": "no requests for metadata, and nothing that takes long, there",
    "end_a_shared_read_with_its_first_reader": "the gateway",
    "hold_what_the_topic_allows": "the gateway",
    "ask_whole_for_those_who_are_gone": "the gateway",
}
"""The mutants that walks cannot notice, with the reasons; those of Raft have walks of their own."""

SEARCHED = ("acknowledge_before_the_flush", "acknowledge_what_a_follower_has_written", "commit_alone")
"""The mutants that the small scope of the search notices."""


@dataclass(frozen=True, slots=True)
class Found:
    """How an engine has noticed a mutant. ``effort``: states, or seeds; ``trace``: steps of the (shrunk) trace."""

    name: str
    engine: str
    source: str
    rule: str
    broken: str
    noticed: bool
    effort: int = 0
    trace: int = 0
    what: str = ""


def by_design(name: str, *, shortest: bool = True) -> Found:
    """Search the design model without a rule."""
    mutant = DESIGN[name]
    found = spin.search({**mutant.scope, name: 1}, shortest=shortest)
    told = (mutant.source, mutant.rule, mutant.broken)
    what = found.error.split("\n")[0]
    return Found(name, "design", *told, bool(found.error), found.states, found.depth, what)


def broken(mutant: Mutant, patch: Patch) -> None:
    """Break a rule of the product."""
    mutant.apply(patch)
    IN_MEMORY.get(mutant.name, lambda patch: None)(patch)


def by_walks(mutant: Mutant, seeds: int = SEEDS) -> Found:
    """Run random walks with a rule of the product broken, until one notices."""
    told = (mutant.source, mutant.rule, mutant.broken)
    with pytest.MonkeyPatch.context() as patch:
        broken(mutant, patch)
        for seed in range(seeds):
            result = walk(seed)
            if result.fault:
                return Found(mutant.name, "walks", *told, True, seed + 1, len(shrink(result)), result.fault)
    return Found(mutant.name, "walks", *told, False, seeds)


def by_search(mutant: Mutant, scope: Scope = SMALL) -> Found:
    """Visit every state of a scope with a rule of the product broken."""
    told = (mutant.source, mutant.rule, mutant.broken)
    with pytest.MonkeyPatch.context() as patch:
        broken(mutant, patch)
        outcome = search(scope)
    what = outcome.trace[-1] if outcome.trace else ""
    return Found(mutant.name, "search", *told, bool(outcome.trace), outcome.states, len(outcome.trace) - 1, what)


def by_raft_search(mutant: Mutant) -> Found:
    """Visit every state of the scope of Raft cores in which the broken rule was noticed."""
    told = (mutant.source, mutant.rule, mutant.broken)
    with pytest.MonkeyPatch.context() as patch:
        mutant.apply(patch)
        outcome = RaftSearch({**RAFT_SMALL, **LARGE}[SEEN[mutant.name]]).run()
    what = outcome.trace[-1] if outcome.trace else ""
    return Found(mutant.name, "raft", *told, bool(outcome.trace), outcome.states, len(outcome.trace) - 1, what)


def walked() -> list[str]:
    """Return the names of the mutants that walks notice."""
    return [name for name, mutant in MUTANTS.items() if name not in BEYOND and not (mutant.raft or mutant.disk)]


def all_of(engine: str) -> Iterator[Found]:
    """Yield the result for every mutant of an engine; for ``search`` those that its scope can show."""
    if engine == "design":
        yield from map(by_design, DESIGN)
    elif engine == "walks":
        yield from (by_walks(MUTANTS[name]) for name in walked())
    elif engine == "raft":
        yield from (by_raft_search(MUTANTS[name]) for name in SEEN)
    else:
        yield from (by_search(MUTANTS[name]) for name in SEARCHED)


def main() -> int:
    """Run the command. Returns the exit code: 0 if all mutants are noticed."""
    parser = argparse.ArgumentParser(prog="python -m model.mutants", description=__doc__)
    parser.add_argument("--engine", choices=("design", "walks", "search", "raft"))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = []
    for engine in [arguments.engine] if arguments.engine else ["design", "walks", "search", "raft"]:
        if engine == "design" and spin.missing():
            print(f"the design model was NOT checked, missing here: {spin.missing()}", file=sys.stderr)
            continue
        for found in all_of(engine):
            results.append(found)
            if not arguments.json:
                unit = "seeds" if engine == "walks" else "states"
                seen = f"{found.effort} {unit}, {found.trace} steps: {found.what}"
                seen = seen if found.noticed else "NOT NOTICED"
                print(f"{engine:7} {found.name:42} {seen}"[:200], flush=True)
    if arguments.json:
        print(json.dumps([asdict(found) for found in results], indent=1))
    return 0 if all(found.noticed for found in results) else 1


if __name__ == "__main__":
    sys.exit(main())
