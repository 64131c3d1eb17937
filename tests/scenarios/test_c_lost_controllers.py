"""C4. Leaders without controllers go on while all replicas that the controllers could elect confirm them. It makes no
difference whether the controllers are dead or on the other side of a broken network: no leader can know that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.replica_network import code
from support.transaction_network import TransactionNet
from tidelog.errors import TidelogError
from tidelog.testing.clients.producer import Batch
from tidelog.types import Acks
from tidelog.verify.history import OK
from tidelog.wire.messages import AlterIsr, AlterTopic, DeleteTopic, Done, GroupHeartbeat, ListOffset, Read

from scenarios.stage import Stage
from scenarios.test_e_groups import Coordinated

WITHOUT_S = 6.0
"""Four times the session time-out."""


def lose_all(stage: Stage) -> None:
    stage.kill(*stage.controllers)


def lose_majority(stage: Stage) -> None:
    stage.kill(stage.active, next(name for name in stage.controllers if name != stage.active))


def cut_off(stage: Stage) -> None:
    """Cut the controllers off from all other processes; they keep running."""
    for name in (*stage.replicas, *(client.name for client in stage.clients)):
        stage.cut(name, *stage.controllers)


LOSSES: dict[str, Callable[[Stage], None]] = {"all": lose_all, "two of three": lose_majority, "cut": cut_off}


def try_one(stage: Stage, value: bytes, *, by: str = "hand", acks: Acks = Acks.ALL) -> Batch:
    """Return a send that is given up after three seconds."""
    batch = stage.send(value, by=by, acks=acks, patience=3.0)
    stage.until(lambda: batch.result != "")
    return batch


def never(stage: Stage, value: bytes, *, by: str = "hasty", acks: Acks = Acks.LEADER) -> None:
    """Check that a send is refused by the leader again and again."""
    batch = try_one(stage, value, by=by, acks=acks)
    assert batch.result != OK and batch.errors[-1] == "NOT_LEADER"


def hasty(stage: Stage) -> None:
    """Create a producer with acks ``leader`` while the controllers can still send it the leader."""
    assert try_one(stage, b"h", acks=Acks.LEADER, by="hasty").result == OK


def refused(stage: Stage, node: str, why: str) -> None:
    """Check that the server refuses requests for leaders because this voter has not confirmed it."""
    for question in (ListOffset(*stage.key, "earliest"), Read(*stage.key, 0)):
        answer = stage.ask(node, question)
        assert isinstance(answer, TidelogError) and answer.code == "NOT_LEADER"
        assert f"{why} did not confirm its leadership" in answer.message


@pytest.mark.parametrize("loss", LOSSES)
def test_C4_leaders_in_sync_go_on_when_the_controllers_are_gone(loss: str):
    stage = Stage(min_insync_replicas="2")
    sent = [b"m0"]
    stage.put(b"m0")
    LOSSES[loss](stage)
    for number in range(1, 25):
        stage.put(value := b"m%d" % number)
        sent.append(value)
        stage.run_for(0.5)
    for question in (ListOffset(*stage.key, "earliest"), ListOffset(*stage.key, "latest"), Read(*stage.key, 0)):
        assert not isinstance(stage.ask(stage.first, question), TidelogError)
    assert stage.leads(stage.first) and stage.hw(stage.first) == len(sent)
    stage.settle()
    assert stage.read_all() == sent


def test_C4_a_leader_that_is_cut_off_from_one_voter_stops_though_the_controllers_are_dead():
    stage = Stage(min_insync_replicas="2")
    first, (_, third) = stage.first, stage.others
    stage.put(b"m0")
    hasty(stage)
    lose_all(stage)
    stage.run_for(WITHOUT_S)
    stage.put(b"m1")
    stage.cut(first, third)
    stage.run_for(2 * stage.controller_settings.session_timeout_s)
    never(stage, b"m2")
    refused(stage, first, third)
    stage.network.heal()
    stage.put(b"m3")
    stage.settle()
    assert stage.read_all() == [b"m0", b"h", b"m1", b"m3"]


def test_C4_a_leader_that_only_the_controllers_do_not_reach_stops_when_they_elect_one_of_its_voters():
    """All of its followers reach it until one of them leads."""
    stage = Stage(min_insync_replicas="1")
    first = stage.first
    begun = stage.send(b"m0", by="local", patience=1.0, window=40)
    stage.until(lambda: begun.result == OK)
    stage.cut("local", *stage.controllers)
    stage.cut(first, *stage.controllers)
    seen: list[bool] = []

    def look() -> None:
        """Check that the old leader commits nothing once another has begun."""
        if stage.leader not in ("", first) and stage.leads(stage.leader):
            seen.append(stage.hw(first) > stage.end(stage.leader))

    stage.always(look)
    for number in range(20):
        stage.send(b"m%d" % (number + 1), by="local")
        stage.run_for(0.2)
    stage.until(lambda: bool(seen))
    stage.put(b"y", by="other")
    assert not any(seen)
    answer = stage.ask(first, Read(*stage.key, 0, consistency="linearizable"))
    assert isinstance(answer, TidelogError)
    stage.run_for(2 * stage.controller_settings.session_timeout_s)
    assert isinstance(stage.ask(first, Read(*stage.key, 0)), TidelogError)
    stage.settle()


@pytest.mark.parametrize("minimum", ["1", "2"])
@pytest.mark.parametrize("leader_first", [True, False])
def test_C4_a_leader_goes_on_with_all_of_its_voters_in_whichever_order_they_are_fenced(
    leader_first: bool, minimum: str
):
    """The third replica is not in sync, and on the side of the controllers."""
    stage = Stage(min_insync_replicas=minimum)
    first, (second, third) = stage.first, stage.others
    stage.put(b"m0")
    stage.kill(third)
    stage.until(lambda: third not in stage.now.isr and len(stage.now.isr) == 2)
    stage.put(b"m1", by="careful")
    stage.cut("careful", *stage.controllers)
    for node in (first, second) if leader_first else (second, first):
        stage.cut(node, *stage.controllers, third)
        stage.run_for(0.5)
    stage.restart(third)
    servers = stage.invariants.metadata.servers
    stage.until(lambda: all(stage.invariants.metadata.servers[node].fenced for node in (first, second)))
    assert third in servers
    sent = [b"m0", b"m1"]
    for number in range(2, 12):
        stage.put(value := b"m%d" % number, by="careful")
        sent.append(value)
        stage.run_for(0.5)
    assert stage.leads(first)
    stage.settle()
    assert stage.read_all() == sent


def test_C4_a_leader_that_is_the_last_in_sync_needs_nobody():
    """The others are on the side of the controllers, and none of them may be elected."""
    stage = Stage(min_insync_replicas="1")
    first, others = stage.first, stage.others
    stage.put(b"m0", by="careful")
    stage.kill(*others)
    stage.until(lambda: stage.partition(first).leading.core.maximal_isr == (first,))
    stage.cut("careful", *stage.controllers)
    stage.isolate(first)
    stage.restart(*others)
    stage.run_for(WITHOUT_S)
    for number in range(1, 5):
        stage.put(b"m%d" % number, by="careful")
    answer = stage.ask(first, bounded(stage))
    assert not isinstance(answer, TidelogError) and answer.high_watermark == 5
    proves_nothing(stage, first)
    assert stage.leader == ""
    stage.settle()
    assert stage.read_all() == [b"m0", b"m1", b"m2", b"m3", b"m4"]


def bounded(stage: Stage) -> Read:
    """Return the answer to a read with a bound of 10 ms."""
    return Read(*stage.key, 0, consistency="bounded", max_staleness_ms=10)


def proves_nothing(stage: Stage, node: str) -> None:
    """Check that the server refuses requests that need a proof that no other replica leads."""
    for question in (ListOffset(*stage.key, "latest"), Read(*stage.key, 0, consistency="linearizable")):
        answer = stage.ask(node, question)
        assert isinstance(answer, TidelogError) and answer.code == "STALE_REPLICA"


def knows_eligible(stage: Stage, node: str) -> bool:
    """Wait until the leader, alone in its ISR, knows that this replica is eligible."""
    core = stage.partition(stage.first).leading.core
    return bool(core.maximal_isr == (stage.first,) and core.eligible == (node,))


def test_C4_an_eligible_replica_that_is_dead_does_not_confirm_its_leader():
    stage = Stage(min_insync_replicas="2")
    first, (second, third) = stage.first, stage.others
    stage.put(b"m0")
    hasty(stage)
    stage.kill(second)
    stage.until(lambda: second not in stage.now.isr)
    stage.kill(third)
    stage.until(lambda: knows_eligible(stage, third))
    lose_all(stage)
    stage.run_for(WITHOUT_S)
    never(stage, b"m1")
    refused(stage, first, third)
    stage.settle()


def test_C4_an_eligible_replica_is_a_voter_and_an_isr_that_is_too_small_refuses_all():
    stage = Stage(min_insync_replicas="2")
    first, (second, third) = stage.first, stage.others
    stage.put(b"m0")
    hasty(stage)
    stage.kill(second)
    stage.until(lambda: second not in stage.now.isr)
    stage.kill(third)
    stage.until(lambda: knows_eligible(stage, third))
    stage.hold(lambda sender, receiver, message: isinstance(message, AlterIsr))
    stage.restart(third)
    stage.until(lambda: stage.follows(third, first))
    lose_all(stage)
    stage.run_for(WITHOUT_S)
    assert stage.now.isr == (first,)
    assert try_one(stage, b"m1", acks=Acks.LEADER, by="hasty").result == OK
    assert "NOT_ENOUGH_REPLICAS" in try_one(stage, b"m2").errors
    stage.kill(third)
    stage.run_for(WITHOUT_S)
    never(stage, b"never")
    refused(stage, first, third)
    stage.settle()


def test_C4_with_unclean_elections_every_replica_is_a_voter():
    stage = Stage(min_insync_replicas="1", unclean_election="true")
    first, (_, third) = stage.first, stage.others
    stage.put(b"m0")
    stage.kill(third)
    stage.until(lambda: third not in stage.partition(first).leading.core.maximal_isr)
    lose_all(stage)
    stage.run_for(WITHOUT_S)
    never(stage, b"m1", by="hand", acks=Acks.ALL)
    refused(stage, first, third)
    stage.settle()


def test_C4_with_commit_rule_quorum_a_majority_decides():
    stage = Stage(commit_rule="quorum", flush="fsync")
    first, (second, third) = stage.first, stage.others
    stage.put(b"m0")
    hasty(stage)
    stage.kill(third)
    lose_all(stage)
    stage.run_for(WITHOUT_S)
    stage.put(b"m1")
    stage.cut(first, second)
    stage.run_for(2 * stage.controller_settings.session_timeout_s)
    never(stage, b"m2")
    refused(stage, first, f"{second}, {third}" if second < third else f"{third}, {second}")
    stage.settle()


def test_C4_a_single_replica_goes_on_and_serves_nobody_when_it_has_restarted():
    stage = Stage(replicas=1)
    stage.put(b"m0")
    lose_all(stage)
    stage.run_for(WITHOUT_S)
    stage.put(b"m1")
    assert stage.ask(stage.first, ListOffset(*stage.key, "latest")).offset == 2
    stage.kill(stage.first)
    stage.restart(stage.first)
    stage.run_for(1.0)
    assert isinstance(stage.ask(stage.first, Read(*stage.key, 0)), TidelogError)
    stage.settle()
    assert stage.read_all() == [b"m0", b"m1"]


# --- what the controllers change on the other side -----------------------------------------------------------


def on_the_other_side(stage: Stage) -> None:
    """Cut the controllers off; an operator still reaches them."""
    stage.put(b"m0", by="careful")
    stage.ask(stage.active, ListOffset(*stage.key, "latest"))  # makes the operator's client, which stays
    for name in (*stage.replicas, "careful"):
        stage.cut(name, *stage.controllers)
    stage.run_for(WITHOUT_S)
    stage.put(b"m1", by="careful")


def test_C4_a_topic_that_is_deleted_meanwhile_is_reported_after_healing():
    stage = Stage(min_insync_replicas="2")
    on_the_other_side(stage)
    key = stage.key
    assert stage.ask(stage.active, DeleteTopic("t")) == Done()
    batch = stage._producers["careful"].produce(key, b"m2")
    stage.until(lambda: batch is not None and batch.result == OK)
    stage.network.heal()
    stage.until(lambda: bool(stage.happened("topic_deleted_meanwhile", stage.first)))
    (event,) = stage.happened("topic_deleted_meanwhile")
    assert (event.fields["start"], event.fields["end"]) == (1, 3)


def test_C4_a_setting_that_is_changed_meanwhile_loses_nothing_and_is_reported_after_healing():
    stage = Stage(min_insync_replicas="1")
    on_the_other_side(stage)
    assert stage.ask(stage.active, AlterTopic("t", {"min_insync_replicas": "3"})) == Done()
    stage.put(b"m2", by="careful")
    stage.settle()
    (event,) = stage.happened("settings_changed_meanwhile")
    assert event.fields["changes"] == "min_insync_replicas: 1 -> 3"
    assert stage.read_all() == [b"m0", b"m1", b"m2"]


def test_C4_an_unclean_election_that_is_allowed_only_after_the_cut_may_lose_records_and_reports_them():
    """A leader that is alone in sync cannot know of it. So it does not answer the latest offset either."""
    stage = Stage(min_insync_replicas="1")
    first, others = stage.first, stage.others
    stage.put(b"m0", by="careful")
    stage.kill(*others)
    stage.until(lambda: stage.partition(first).leading.core.maximal_isr == (first,))
    stage.isolate(first)
    stage.cut("careful", *stage.controllers)
    stage.restart(*others)
    stage.run_for(WITHOUT_S)
    stage.put(b"m1", by="careful")
    assert stage.ask(stage.active, AlterTopic("t", {"unclean_election": "true"})) == Done()
    stage.until(lambda: stage.leader in others and stage.leads(stage.leader))
    stage.put(b"m2", by="careful")
    stage.run_for(2.0)  # it has written down that this is committed
    stage.put(b"y", by="other")
    proves_nothing(stage, first)
    assert not isinstance(stage.ask(first, bounded(stage)), TidelogError)
    stage.settle()
    (lost,) = [change.evidence for change in stage.changes if change.event == "records_lost"]
    assert (lost["node"], lost["start"], lost["end"]) == (first, "1", "3")


# --- coordinators --------------------------------------------------------------------------------------------


def test_C4_groups_go_on_without_controllers():
    stage = Coordinated()
    a = stage.joined("a")
    assert stage.tell(stage.commit("a", a.generation, 5)) == Done()
    lose_all(stage)
    for offset in range(6, 18):
        stage.run_for(0.5)
        assert not isinstance(stage.tell(GroupHeartbeat("g", "a", a.generation)), TidelogError)
        assert stage.tell(stage.commit("a", a.generation, offset)) == Done()
    assert stage.committed() == 17
    stage.settle()
    assert stage.committed() == 17


def test_C4_a_coordinator_that_is_cut_off_from_a_voter_coordinates_no_more():
    stage = Coordinated()
    a = stage.joined("a")
    old = stage.coordinator
    lose_all(stage)
    stage.cut(old, *(node for node in stage.replicas if node != old))
    stage.run_for(WITHOUT_S)
    answer = stage.ask(old, GroupHeartbeat("g", "a", a.generation))
    assert isinstance(answer, TidelogError) and answer.code == "NOT_COORDINATOR"
    assert "did not confirm its leadership" in answer.message
    stage.settle()


def test_C4_transactions_end_without_controllers():
    """Requests that are refused for a missing confirmation are sent again, as a gateway does."""
    net = TransactionNet()
    begun = net.begin()
    net.write(begun, b"a")
    net.controller_up = False
    net.advance(10.0)
    net.end(begun)
    net.advance(0.5)
    assert code(net.end(begun)) == ""
    net.advance(10.0)
    net.read("r1", 0)
    net.advance(0.5)
    assert net.seen() == [b"a"]
