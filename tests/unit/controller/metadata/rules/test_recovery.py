"""The metadata after a rescue: which numbers jump, which replica is elected, and what servers may report that is
unknown here."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.applied_commands import Log
from support.controller_network import ControllerNet
from tidelog.feature_levels import RECOVERY, Levels
from tidelog.types import PRODUCER_IDS_END, REPORTED_IDS_END, YEAR_2025_MS, PartitionState, TopicConfig, share_of
from tidelog.wire.messages import AllocateProducerIds, Heartbeat, ProducerIds, Register, Registered, SealPart
from tidelog_controller.metadata.rules.recovery import (
    ID_JUMP,
    awaited,
    choose,
    epoch_beyond,
    first_free_id,
    id_beyond,
    index_beyond,
    recovered,
)
from tidelog_controller.metadata.state import MetadataState
from tidelog_controller.metadata.state_machine import Replicated, decode_state, encode_state

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
NOW_MS = YEAR_2025_MS + 2 * YEAR_MS


def known(level: int, **config: object) -> MetadataState:
    """Return the metadata of a survivor at this feature level: r1 leads, and r3 is not in sync."""
    log = Log()
    log.register("r1", "r2", "r3")
    log.topic("r1", "r2", "r3", min_insync_replicas=2, **config)
    if not config:
        log.shrink("r1", "r2")
    return replace(log.state, level=level)


def part(end: int = 0, last: int = -1, highest: int | None = None, *after: str) -> SealPart:
    """Return the seal of a replica: log end, last epoch, highest epoch, and the servers that could be elected after
    it."""
    return SealPart("id", 0, 99, end, last, last if highest is None else highest, after)


def sealed(isr: tuple[str, ...] = ("r1", "r2"), elr: tuple[str, ...] = ("r3",)) -> PartitionState:
    return PartitionState(("r1", "r2", "r3"), isr, None, 99, 99, elr=elr, sealing=True)


def leader(
    partition: PartitionState, least: int = 2, complete: bool = False, **seals: SealPart
) -> tuple[str, str] | None:
    config = TopicConfig(min_insync_replicas=least)
    choice = choose(partition, config, seals, dict.fromkeys(seals, False), complete=complete)
    return None if choice is None else (choice.leader, choice.rule)


# --- what jumps ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead_ms", (0, HOUR_MS, 48 * HOUR_MS))
def test_numbers_from_a_survivor_are_beyond_those_given_since_though_its_clock_is_behind(ahead_ms: int) -> None:
    """The others gave the next id, index and epoch that their clocks allowed, which were ahead by as much."""
    others_ms = NOW_MS + ahead_ms
    assert id_beyond(1, NOW_MS) > first_free_id(1, others_ms) + 1_000_000
    assert index_beyond(7, NOW_MS) > 7 + 1_000_000_000
    assert epoch_beyond(3, NOW_MS) > 3 + 100_000


def test_two_rescues_from_one_copy_of_a_store_give_different_numbers() -> None:
    later_ms = NOW_MS + HOUR_MS
    assert id_beyond(1, later_ms) > id_beyond(1, NOW_MS) + 1_000_000
    assert index_beyond(7, later_ms) > index_beyond(7, NOW_MS) + 1_000_000
    assert epoch_beyond(3, later_ms) > epoch_beyond(3, NOW_MS) + 1000


def test_a_clock_that_is_wrong_by_a_century_leaves_half_of_all_ids() -> None:
    wrong_ms = NOW_MS + 100 * YEAR_MS
    assert first_free_id(1, wrong_ms) <= PRODUCER_IDS_END // 2
    assert id_beyond(1, wrong_ms) < PRODUCER_IDS_END - (1 << 51)
    assert epoch_beyond(1, wrong_ms) < 1 << 32 and index_beyond(1, wrong_ms) < 1 << 53


def test_a_clock_before_2025_says_nothing() -> None:
    assert first_free_id(17, 0) == 17


def test_a_rescue_raises_every_counter_and_every_server_has_to_register_again() -> None:
    before = known(RECOVERY)
    after = recovered(before, 1 << 40, NOW_MS)
    old, new = before.topics["id"].partitions[0], after.topics["id"].partitions[0]
    assert after.index == 1 << 40 and after.next_producer_id > before.next_producer_id + ID_JUMP - 1
    assert {server.broker_epoch for server in after.servers.values()} == {1 << 40}
    assert new.leader is None and new.sealing and new.leader_epoch > old.leader_epoch + 1000
    assert new.epoch > old.epoch + 1000 and new.last_leader == "r1"
    assert (new.isr, new.elr) == (("r1", "r2"), ("r3",))
    assert after.timeline.last > before.timeline.last + 1000
    assert after.history["id"][0][-1].cause == "rescue"


def test_below_the_feature_level_nothing_is_sealed_that_an_earlier_release_would_not_seal() -> None:
    after = recovered(known(RECOVERY - 1), 1 << 40, NOW_MS)
    partition = after.topics["id"].partitions[0]
    assert not partition.sealing and (partition.isr, partition.elr) == (("r1", "r2"), ())
    assert recovered(known(RECOVERY - 1, commit_rule="quorum"), 1 << 40, NOW_MS).topics["id"].partitions[0].sealing
    assert decode_state(encode_state(Replicated(after))).metadata == after


# --- who leads -------------------------------------------------------------------------------------------


def test_the_last_leader_leads_on_where_all_that_could_follow_it_have_reported() -> None:
    assert leader(sealed(), 1, r1=part(9, 4, 4, "r1")) == ("r1", "last_leader")
    assert leader(sealed(), 1, r1=part(9, 4, 4, "r1", "r3")) is None
    assert leader(sealed(), 1, r1=part(9, 4, 4, "r1", "r3"), r3=part(8, 4)) == ("r1", "last_leader")


def test_the_last_leader_waits_where_another_knows_a_later_epoch() -> None:
    assert leader(sealed(), 1, r1=part(9, 4, 4, "r1", "r3"), r3=part(9, 4, 5)) is None
    assert leader(sealed(), 1, r1=part(9, 4, 4, "r1"), r3=part(9, 4, 5)) is None


def test_a_leader_that_may_have_lost_something_does_not_lead_on() -> None:
    assert leader(sealed(isr=("r2",), elr=("r3",)), 1, r1=part(9, 4, 4, "r1")) is None


def test_so_many_replicas_decide_that_one_of_them_has_everything() -> None:
    assert leader(sealed(), 2, r1=part(9, 4)) is None
    assert leader(sealed(), 2, r1=part(9, 4), r2=part(7, 5)) == ("r2", "enough_copies")
    assert leader(sealed(), 2, r1=part(9, 5), r3=part(12, 5)) == ("r3", "enough_copies")
    assert leader(sealed(), 1, r1=part(9, 4), r2=part(7, 5)) is None
    assert leader(sealed(), 1, r1=part(9, 4), r2=part(7, 5), r3=part(8, 5)) == ("r3", "enough_copies")


def test_one_of_those_that_decide_has_all_that_was_committed_when_the_survivor_s_knowledge_ends() -> None:
    partition = sealed(isr=("r1",), elr=("r2", "r3"))
    assert leader(partition, 2, r2=part(9, 4), r3=part(9, 4)) is None
    assert leader(partition, 2, r1=part(9, 4), r3=part(10, 4)) == ("r3", "enough_copies")


def test_a_copy_that_was_deleted_or_never_was_decides_nothing() -> None:
    assert leader(sealed(), 2, r1=part(), r2=part(9, 4)) is None
    assert leader(sealed(), 2, r1=part(), r2=part(9, 4), r3=part(9, 4)) == ("r2", "enough_copies")


def test_an_empty_log_counts_when_nobody_else_can_have_a_copy() -> None:
    assert leader(sealed(), 2, True, r1=part(), r2=part()) is None
    assert leader(sealed(), 2, False, r1=part(), r2=part(), r3=part()) is None
    assert leader(sealed(), 2, True, r1=part(), r2=part(0, -1, 3), r3=part()) == ("r2", "everybody")
    assert leader(sealed(), 1, True, r1=part(), r2=part(4, 1), r3=part(9, 0)) == ("r2", "everybody")
    assert leader(sealed(), 2, True, r1=part(), r2=part(), r3=part(), r4=part(4, 0)) is None


def test_a_copy_that_the_survivor_does_not_know_is_not_passed_over() -> None:
    assert leader(sealed(), 2, r1=part(9, 4), r2=part(9, 4), r4=part(9, 5)) is None
    assert leader(sealed(), 2, r1=part(9, 4), r2=part(9, 4), r4=part(7, 4)) == ("r1", "enough_copies")
    assert leader(sealed(), 2, r1=part(), r4=part(9, 5, 5, "r4")) == ("r4", "last_leader")


def test_servers_without_a_report_are_listed() -> None:
    assert awaited(sealed(), {"r1": part(9, 4), "r2": part()}) == ("r2", "r3")


# --- what servers report ---------------------------------------------------------------------------------


def ids(net: ControllerNet, link: int, count: int = 10) -> range:
    answer = net.answer(link, AllocateProducerIds(count))
    assert isinstance(answer, ProducerIds)
    return range(answer.first, answer.first + count)


def test_no_id_is_given_that_a_server_knows_from_its_logs() -> None:
    net = ControllerNet(1)
    net.run(3.0)
    link = net.link("c1")
    first = ids(net, link)
    answer = net.answer(link, Register("r1", "ws://r1", producer_id=5_000_000))
    assert isinstance(answer, Registered)
    assert ids(net, link)[0] == 5_000_001 > first[-1]
    net.answer(link, Heartbeat("r1", answer.broker_epoch, producer_id=6_000_000))
    assert ids(net, link)[0] == 6_000_001


@pytest.mark.parametrize("share", [0, 7, 255])
def test_a_block_of_ids_of_a_share_has_no_id_of_another(share: int) -> None:
    net = ControllerNet(1)
    net.run(3.0)
    link = net.link("c1")
    last = ids(net, link)[-1]  # the level of the cluster is raised with the first request
    for count in (1, 100_000, 100_000, 7):
        answer = net.answer(link, AllocateProducerIds(count, share=share))
        assert isinstance(answer, ProducerIds) and answer.first > last
        last = answer.first + count - 1
        assert share_of(answer.first) == share == share_of(last)


def test_an_id_that_nobody_can_have_been_given_uses_up_none() -> None:
    net = ControllerNet(1)
    net.run(3.0)
    link = net.link("c1")
    net.answer(link, Register("r1", "ws://r1", producer_id=REPORTED_IDS_END))
    assert ids(net, link)[0] == 1


def test_below_the_feature_level_ids_are_counted_as_ever() -> None:
    net = ControllerNet(1, levels={"c1": Levels(1, RECOVERY - 1)})
    net.run(3.0)
    link = net.link("c1")
    net.answer(link, Register("r1", "ws://r1", producer_id=5_000_000))
    assert ids(net, link)[0] == 1


@pytest.mark.parametrize("ahead,term", ((1, 0), (0, 7)))
def test_a_server_that_has_seen_another_metadata_log_ends_all_decisions(ahead: int, term: int) -> None:
    net = ControllerNet(1)
    net.run(3.0)
    link = net.link("c1")
    net.answer(link, Register("r1", "ws://r1"))
    index = net.nodes["c1"].state.index + ahead
    assert net.refusal(link, Register("r2", "ws://r2", index=index, term=term)).code == "METADATA_WENT_BACK"
    assert net.refusal(link, AllocateProducerIds(1)).code == "METADATA_WENT_BACK"
    net.run(30.0)
    assert not net.nodes["c1"].state.servers["r1"].fenced, "nothing is decided by a past"


def test_a_server_that_has_seen_only_existing_metadata_is_registered() -> None:
    net = ControllerNet(1)
    net.run(3.0)
    link, state = net.link("c1"), net.nodes["c1"].state
    term = net.nodes["c1"].metadata_log.raft.log.term_at(state.index) or 0
    net.answer(link, Register("r1", "ws://r1", index=state.index, term=term))


def test_a_directory_that_has_seen_the_known_life_and_later_ones_is_no_other() -> None:
    net = ControllerNet(1)
    net.run(3.0)
    link = net.link("c1")
    net.answer(link, Register("r1", "ws://r1", lives=("a",), clean=True))
    net.answer(link, Register("r1", "ws://r1", lives=("d",), older_lives=("a", "b"), clean=True))
    evidence = net.nodes["c1"].state.timeline.pending[-1].evidence
    assert "data" not in evidence and evidence["restart"] == "clean"


def test_a_directory_that_may_have_lost_something_since_the_known_life_does_not_pass_for_clean() -> None:
    net = ControllerNet(1)
    net.run(3.0)
    link = net.link("c1")
    net.answer(link, Register("r1", "ws://r1", lives=("a",), clean=True))
    net.answer(link, Register("r1", "ws://r1", lives=("d",), uncertain_lives=("a",), older_lives=("b",), clean=True))
    evidence = net.nodes["c1"].state.timeline.pending[-1].evidence
    assert "data" not in evidence and evidence["restart"] == "unclean"
