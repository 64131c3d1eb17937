"""Leaders without controllers: who goes on, who stops and why, and what that costs in messages."""

from __future__ import annotations

import pytest
from support.replica_network import KEY, Net, cluster, code
from tidelog.errors import TidelogError, refuse
from tidelog.types import Acks, TopicConfig
from tidelog.wire.messages import ConfirmLeader, Fetch, ListOffset, Message, Read, Register
from tidelog_replica.config import ReplicaSettings

SESSION_S = 3.0
"""As the toy controller grants it."""
LATEST = ListOffset(*KEY, "latest")
EARLIEST = ListOffset(*KEY, "earliest")


def lapsed(net: Net, seconds: float = 10.0) -> Net:
    """The controllers have been away for so long."""
    net.controller_up = False
    net.advance(seconds)
    return net


def silence(net: Net, node: str, leader: str = "r1") -> None:
    """A follower does not reach its leader any more."""
    net.cut.add((node, leader))
    net.advance(0.01)


def produced(net: Net, node: str = "r1", *, acks: int = Acks.ALL, partition: int = 0) -> str:
    """The code of the refusal of a batch; "" where it is acknowledged."""
    id = net.send(node, b"x", acks=acks, run=False, partition=partition)
    net.run()
    for _ in range(20):
        if id in net.acks:
            return code(net.acks[id])
        net.advance(0.05)
    return "waits"


def tried(net: Net, node: str = "r1", **options: int) -> str:
    """Produce as a gateway does: a request that is refused for want of a confirmation is tried again, for a
    second."""
    result = ""
    for _ in range(10):
        result = produced(net, node, **options)
        if result != "NOT_LEADER":
            return result
        net.advance(0.1)
    return result


def why(net: Net, node: str = "r1") -> str:
    """Why a read at the leader is refused; "" where it is answered."""
    answer = net.answers[net.read(node, 0)]
    return answer.message if isinstance(answer, TidelogError) else ""


@pytest.mark.parametrize("acks", [Acks.ALL, Acks.LEADER])
def test_a_leader_that_all_voters_confirm_goes_on_without_controllers(acks: int) -> None:
    net = lapsed(cluster(), 1.0)
    for _ in range(200):
        assert tried(net, acks=acks) == ""
        assert why(net) == ""
        net.advance(0.1)


def test_a_leader_without_controllers_also_answers_requests_that_only_leaders_answer() -> None:
    net = lapsed(cluster())
    assert tried(net) == ""
    end = net.partition("r1").log.end
    for question in (EARLIEST, LATEST, Read(*KEY, 0, consistency="linearizable")):
        asked = net.ask("r1", question)
        net.advance(0.5)
        assert code(net.answers[asked]) == ""
    latest = net.ask("r1", LATEST)
    net.advance(0.5)
    assert net.answers[latest].offset == end


def test_followers_answer_bounded_and_eventual_reads_without_controllers() -> None:
    net = lapsed(cluster())
    assert tried(net) == ""
    net.advance(4.0)
    for how in ({"consistency": "eventual"}, {"consistency": "bounded", "max_staleness_ms": 500, "max_wait_ms": 500}):
        for _ in range(3):  # a follower asks its leader, which may want a confirmation first
            asked = net.read("r2", 0, any_replica=True, **how)
            net.advance(1.5)
            if not code(net.answers[asked]):
                break
        assert not code(net.answers[asked]) and len(net.answers[asked].payload)
    silence(net, "r3")
    net.advance(2 * SESSION_S)
    assert not code(net.answers[net.read("r2", 0, any_replica=True, consistency="eventual")])
    asked = net.read("r2", 0, any_replica=True, consistency="bounded", max_staleness_ms=500, max_wait_ms=500)
    net.advance(2.0)
    assert code(net.answers[asked]) == "STALE_REPLICA"


def test_a_leader_without_one_of_its_voters_stops_and_names_it() -> None:
    net = lapsed(cluster())
    assert tried(net) == ""
    silence(net, "r3")
    net.advance(SESSION_S + 0.1)
    assert produced(net, acks=Acks.LEADER) == "NOT_LEADER"
    assert "r3 did not confirm its leadership" in why(net) and "r2" not in why(net)
    assert code(net.answers[net.ask("r1", EARLIEST)]) == "NOT_LEADER"
    net.cut.clear()
    net.advance(4.0)
    assert tried(net) == ""


@pytest.mark.parametrize(("age_s", "refusal"), [(SESSION_S - 0.1, ""), (SESSION_S + 0.1, "NOT_LEADER")])
def test_a_confirmation_is_good_for_the_session_time_out(age_s: float, refusal: str) -> None:
    net = lapsed(cluster())
    assert tried(net) == ""
    confirmed = min(net.partition("r1").leading.core._confirmation.confirmed_at(node) for node in ("r2", "r3"))
    net.silent = {"r1"}
    net.drop_notify = True
    net.advance(confirmed + age_s - net.now)
    assert code(net.answers[net.read("r1", 0)]) == refusal


def test_a_replica_that_left_the_isr_is_no_voter() -> None:
    net = cluster()
    silence(net, "r3")
    net.lead("r1", "r1 r2")
    lapsed(net)
    assert tried(net) == ""


def test_an_eligible_replica_is_a_voter() -> None:
    net = cluster()
    silence(net, "r3")
    net.push(isr=("r1", "r2"), elr=("r3",), leader="r1", leader_epoch=1)
    lapsed(net)
    assert tried(net, acks=Acks.LEADER) == "NOT_LEADER" and "r3" in why(net)


def test_everybody_is_a_voter_where_unclean_elections_are_allowed() -> None:
    net = cluster(config=TopicConfig(min_insync_replicas=1, unclean_election=True))
    silence(net, "r3")
    net.lead("r1", "r1 r2")
    lapsed(net)
    assert tried(net) == "NOT_LEADER" and "r3" in why(net)


@pytest.mark.parametrize(("silent", "refusal"), [(("r3",), ""), (("r2", "r3"), "NOT_LEADER")])
def test_with_commit_rule_quorum_a_majority_decides(silent: tuple[str, ...], refusal: str) -> None:
    net = cluster(config=TopicConfig(commit_rule="quorum"))
    assert tried(net) == ""
    for node in silent:
        silence(net, node)
    lapsed(net)
    assert tried(net, acks=Acks.LEADER) == refusal


def test_an_isr_that_is_too_small_refuses_all() -> None:
    net = cluster(config=TopicConfig(min_insync_replicas=2))
    net.refuse_isr = refuse("REQUEST_TIMED_OUT", "the controllers are busy")
    net.push(isr=("r1",), elr=("r2", "r3"), leader="r1", leader_epoch=1)
    lapsed(net)
    assert tried(net, acks=Acks.LEADER) == ""
    assert produced(net) == "NOT_ENOUGH_REPLICAS"


def test_the_only_voter_needs_nobody_and_is_fresh() -> None:
    net = lapsed(cluster(1))
    assert produced(net) == ""
    assert net.answers[net.ask("r1", LATEST)].offset == 1
    assert code(net.answers[net.ask("r1", Read(*KEY, 0, consistency="linearizable"))]) == ""


def alone() -> Net:
    """The leader of three replicas is the last in sync, and reaches neither them nor the controllers."""
    net = cluster(config=TopicConfig(min_insync_replicas=1))
    assert tried(net) == ""
    net.push(isr=("r1",))
    net.cut |= {("r2", "r1"), ("r3", "r1"), ("r1", "r2"), ("r1", "r3")}
    return lapsed(net)


LINEARIZABLE = Read(*KEY, 0, consistency="linearizable")
BOUNDED = Read(*KEY, 0, consistency="bounded", max_staleness_ms=10)


@pytest.mark.parametrize("question", [LATEST, LINEARIZABLE])
def test_the_last_in_sync_of_more_replicas_proves_nothing_by_itself(question: Message) -> None:
    """An unclean election may have been allowed after the cut: the leader cannot know."""
    net = alone()
    asked = net.ask("r1", question)
    net.advance(2.0)
    assert code(net.answers[asked]) == "STALE_REPLICA"
    assert produced(net) == ""
    for question in (BOUNDED, EARLIEST):
        assert code(net.answers[net.ask("r1", question)]) == ""


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_bounded_read_at_the_end_is_answered_without_controllers_by_a_leader_without_voters(nodes: int) -> None:
    net = alone() if nodes == 3 else lapsed(cluster(nodes))
    assert tried(net) == ""
    end = net.partition("r1").log.end
    asked = net.read("r1", end, consistency="bounded", max_staleness_ms=500, max_wait_ms=3000)
    net.advance(4.0)
    assert code(net.answers[asked]) == ""


def test_a_server_that_restarts_without_controllers_serves_nobody() -> None:
    net = lapsed(cluster(1))
    net.stop("r1")
    net.start("r1")
    net.advance(5.0)
    assert net.messages(Register)
    assert code(net.answers[net.read("r1", 0)]) == "NOT_LEADER"


def test_a_voter_that_restarts_without_controllers_confirms_nothing() -> None:
    net = lapsed(cluster())
    assert tried(net) == ""
    net.stop("r3")
    net.start("r3")
    net.advance(SESSION_S + 0.1)
    assert tried(net, acks=Acks.LEADER) == "NOT_LEADER" and "r3" in why(net)


def test_voters_are_not_asked_while_the_session_lasts_or_for_idle_partitions() -> None:
    """With 100 idle partitions there are as many messages as with one."""

    def asked(partitions: int, *, up: bool) -> int:
        net = cluster(partitions=partitions, settings=ReplicaSettings(reserve_bytes=0))
        net.advance(5.0)
        net.controller_up = up
        net.advance(10.0)
        before = len(net.messages(Fetch))
        net.advance(60.0)
        return len(net.messages(Fetch)) - before

    assert asked(100, up=False) == asked(1, up=False) == asked(100, up=True)


def test_all_partitions_in_demand_are_asked_for_together() -> None:
    """One notice and one fetch for each server, however many partitions there are."""
    net = lapsed(cluster(partitions=50))
    before = len(net.messages(Fetch))
    for number in range(50):
        net.ask("r1", Read(KEY.topic_id, number, 0))
    assert len(net.messages(Fetch)) - before <= 2, "the first goes out at once"
    net.advance(0.2)
    assert len(net.messages(Fetch)) - before <= 4, "and all others together"
    answers = [net.answers[net.ask("r1", Read(KEY.topic_id, number, 0))] for number in range(50)]
    assert not any(map(code, answers))


def test_a_leader_whose_partition_has_moved_on_in_the_newest_metadata_is_not_confirmed() -> None:
    """It hears at once that another led meanwhile, uncleanly, and that this is not allowed any more; it has not acted
    on the first yet."""
    settings = ReplicaSettings(reserve_bytes=0, changes_at_once=1)
    config = TopicConfig(min_insync_replicas=1, unclean_election=True)
    net = cluster(2, partitions=3, config=config, settings=settings)
    silence(net, "r2")
    for number in range(3):
        net.push(number, isr=("r1",))
    net.advance(1.0)
    lapsed(net)
    late = []
    tell = net._tell
    net._tell = lambda name, update: late.append(update)  # type: ignore[method-assign]
    for number in range(3):
        net.push(number, leader="r2", isr=("r2",), leader_epoch=1, unclean_epoch=1)
    net.reconfigure(unclean_election=False)
    net._tell = tell  # type: ignore[method-assign]
    node = net.nodes["r1"]
    node.on_metadata(late[-1], net.now)
    led = [number for number in range(3) if net.partition("r1", number).leading is not None]
    assert led, "some of it waits its turn"
    for number in led:
        id = net._next_id = net._next_id + 1
        net._take("r1", node.on_request(900, id, Read(KEY.topic_id, number, 0), net.now))
    waiting = [net._next_id - place for place in range(len(led))]
    net.run()
    assert {code(net.answers[id]) for id in waiting} == {"NOT_LEADER"}


def test_records_taken_without_controllers_and_deleted_meanwhile_are_reported() -> None:
    net = lapsed(cluster())
    assert tried(net) == ""
    net.delete()
    net.controller_up = True
    net.advance(1.0)
    ((node, event),) = net.happened("topic_deleted_meanwhile")
    assert node == "r1" and (event.fields["start"], event.fields["end"]) == (0, 1)


def test_records_taken_under_settings_that_changed_meanwhile_are_reported() -> None:
    net = lapsed(cluster())
    assert tried(net) == ""
    net.reconfigure(min_insync_replicas=3)
    ((node, event),) = net.happened("settings_changed_meanwhile")
    assert node == "r1" and event.fields["changes"] == "min_insync_replicas: 2 -> 3"
    net.controller_up = True
    net.advance(60.0)
    net.reconfigure(min_insync_replicas=1)
    assert len(net.happened("settings_changed_meanwhile")) == 1, "what changes later is no news of then"


def test_the_controllers_are_not_asked_to_confirm_the_leader() -> None:
    net = lapsed(cluster())
    for _ in range(10):
        net.read("r1", 0)
        net.advance(1.0)
    assert not net.messages(ConfirmLeader)


def test_a_voter_that_stays_silent_is_named_once_and_one_that_had_no_reason_to_speak_is_not() -> None:
    net = lapsed(cluster(partitions=3))
    for number in range(3):
        net.ask("r1", Read(KEY.topic_id, number, 0))
        net.advance(5.0)
        net.ask("r1", Read(KEY.topic_id, number, 0))
    node = net.nodes["r1"]
    assert not net.happened("leadership_unconfirmed") and not node.leadership.refused(net.now)
    silence(net, "r3")
    for _ in range(60):
        for number in range(3):
            net.ask("r1", Read(KEY.topic_id, number, 0))
        net.advance(0.1)
    ((name, event),) = net.happened("leadership_unconfirmed")
    assert (name, event.fields["voter"]) == ("r1", "r3")
    assert node.leadership.refused(net.now) == 3 and node.leadership.lapsed_s(net.now) > 20
    net.cut.clear()
    net.controller_up = True
    net.advance(5.0)
    assert not node.leadership.refused(net.now) and not node.leadership.lapsed_s(net.now)
