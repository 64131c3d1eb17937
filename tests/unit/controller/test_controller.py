"""Three controllers in memory: which one serves, when each request is answered, what watchers receive, and what
survives."""

from __future__ import annotations

import gc

import pytest
from support.controller_network import ControllerNet
from tidelog.errors import TidelogError
from tidelog.types import PartitionState
from tidelog.wire.messages import (
    AllocateProducerIds,
    AlterIsr,
    AlterIsrAnswer,
    CreateTopic,
    DeleteTopic,
    DescribeQuorum,
    Done,
    Heartbeat,
    History,
    HistoryAnswer,
    IsrMember,
    MetadataUpdate,
    ProducerIds,
    QuorumAnswer,
    Register,
    Registered,
    ReportLeader,
    SuspectPart,
    TopicCreated,
    Watch,
)
from tidelog_controller import metadata_log
from tidelog_controller.config import ControllerSettings
from tidelog_controller.metadata import cluster_events as events
from tidelog_controller.metadata.state import MetadataState
from tidelog_controller.metadata.state_machine import Outcome, Replicated, step
from tidelog_controller.raft.log import Entry

SERVERS = ("r1", "r2", "r3")


class Cluster(ControllerNet):
    """Three controllers, and after ``begin`` three replica servers and one topic."""

    def begin(self) -> int:
        """Elect a controller, register three servers and create a topic. Return a link to the active controller."""
        link = self.link(self.elect())
        self.epochs = {node: self.register(link, node) for node in SERVERS}
        created = self.answer(link, CreateTopic("orders", 1, 3))
        assert isinstance(created, TopicCreated)
        self.topic_id = created.topic_id
        return link

    def register(self, link: int, node: str) -> int:
        answer = self.answer(link, Register(node, f"ws://{node}"))
        assert isinstance(answer, Registered)
        return answer.broker_epoch

    def beat(self, link: int, *nodes: str) -> None:
        for node in nodes:
            assert self.answer(link, Heartbeat(node, self.epochs[node])) == Done()

    def live_for(self, link: int, duration_s: float, *nodes: str) -> None:
        """Let time pass while these servers heartbeat."""
        for _ in range(round(duration_s / 0.5)):
            self.beat(link, *nodes)
            self.run(0.5)

    def partition(self, node: str | None = None) -> PartitionState:
        partition = self.nodes[node or self.active() or ""].state.partition(self.topic_id, 0)
        assert partition is not None
        return partition

    def report(self, link: int, node: str, leader: str) -> None:
        p = self.partition(self.where[link])
        parts = (SuspectPart(self.topic_id, 0, p.epoch, p.leader_epoch),)
        assert self.answer(link, ReportLeader(node, self.epochs[node], leader, "no answer", parts)) == Done()

    def settle(self) -> None:
        """Let time pass until all controllers have applied the same entries, and check that their states are
        equal."""

        def settled() -> bool:
            return len({c.state.index for c in self.nodes.values()}) == 1

        self.run(5.0, until=settled)
        assert settled()
        assert len({repr(c.state) for c in self.nodes.values()}) == 1


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_one_controller_is_enough() -> None:
    cluster = Cluster(1)
    cluster.begin()
    assert cluster.partition().leader in SERVERS
    cluster.run(10.0)
    assert cluster.partition().leader is None


@pytest.mark.parametrize("seed", range(10))
def test_a_new_cluster_does_not_wait_for_a_leader_that_never_was(seed: int) -> None:
    net = ControllerNet(seed=seed)
    net.elect()
    assert net.now < net.settings.raft.election_timeout_min_s


def test_servers_register_and_a_topic_is_created(cluster: Cluster) -> None:
    link = cluster.begin()
    answer = cluster.answer(link, Register("r4", "ws://r4"))
    assert isinstance(answer, Registered)
    assert (answer.broker_epoch, answer.session_timeout_ms, answer.cluster) == (answer.index, 3000, "test")
    assert sorted(cluster.partition().replicas) == sorted(SERVERS)
    cluster.settle()


def test_a_controller_that_applies_a_long_log_keeps_no_state_but_the_last(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each state has copies of its own: thousands of them are hundreds of MB."""
    link = cluster.begin()
    behind = next(node for node in cluster.nodes if node != cluster.active())
    cluster.cut.add(behind)
    for number in range(100):
        cluster.answer(link, CreateTopic(f"t{number}", 1, 3))

    def count() -> int:
        return sum(type(each) is MetadataState for each in gc.get_objects())

    alive = list[int]()

    def counted(replicated: Replicated, entry: Entry) -> Outcome:
        alive.append(count())
        return step(replicated, entry)

    monkeypatch.setattr(metadata_log, "step", counted)
    cluster.cut.clear()
    gc.freeze()  # what was there before is not looked at again and again
    try:
        cluster.settle()
    finally:
        gc.unfreeze()
    assert len(alive) >= 100
    assert max(alive) < 20


def test_data_of_another_cluster_is_refused(cluster: Cluster) -> None:
    link = cluster.begin()
    assert cluster.refusal(link, Register("r4", "ws://r4", "production")).code == "WRONG_CLUSTER"
    assert cluster.refusal(link, Register("r4", "")).code == "MALFORMED"
    assert isinstance(cluster.answer(link, Register("r4", "ws://r4", "test")), Registered)


def test_followers_name_the_active_controller(cluster: Cluster) -> None:
    cluster.begin()
    active = cluster.active()
    for node in cluster.nodes:
        link = cluster.link(node)
        quorum = cluster.answer(link, DescribeQuorum())
        assert isinstance(quorum, QuorumAnswer)
        assert quorum.active == active
        assert {c.node: c.role for c in quorum.controllers}[active or ""] == "leader"
        if node != active:
            error = cluster.refusal(link, CreateTopic("t"))
            assert (error.code, error.unknown_outcome) == ("NOT_ACTIVE_CONTROLLER", False)
            assert error.detail == {"leader": active, "url": cluster.urls[active or ""]}


def test_the_active_controller_shows_which_controllers_are_silent(cluster: Cluster) -> None:
    link = cluster.begin()
    silent = next(node for node in cluster.nodes if node != cluster.active())

    def role() -> str:
        answer = cluster.answer(link, DescribeQuorum())
        assert isinstance(answer, QuorumAnswer)
        assert all(one.role != "unknown" for one in answer.controllers if one.node != silent)
        return next(one.role for one in answer.controllers if one.node == silent)

    cluster.kill(silent)
    cluster.run(1.0)
    assert role() == "follower", "it may be only slow"
    cluster.run(10.0)
    assert role() == "unknown"
    cluster.start(silent)
    cluster.run(1.0)
    assert role() == "follower"


def test_nobody_is_named_before_the_first_election(cluster: Cluster) -> None:
    error = cluster.refusal(cluster.link("c1"), CreateTopic("t"))
    assert error.detail == {"leader": "", "url": ""}


def test_topics_are_deleted_and_names_come_free(cluster: Cluster) -> None:
    link = cluster.begin()
    assert cluster.refusal(link, CreateTopic("orders")).code == "TOPIC_EXISTS"
    assert cluster.answer(link, DeleteTopic("orders")) == Done()
    assert cluster.refusal(link, DeleteTopic("orders")).code == "UNKNOWN_TOPIC"
    assert cluster.refusal(link, History(cluster.topic_id, 0)).code == "UNKNOWN_TOPIC"
    created = cluster.answer(link, CreateTopic("orders"))
    assert isinstance(created, TopicCreated) and created.topic_id != cluster.topic_id


def test_producer_ids_are_unique_across_controllers(cluster: Cluster) -> None:
    link = cluster.begin()
    assert cluster.refusal(link, AllocateProducerIds(0)).code == "INVALID_CONFIG"
    assert cluster.answer(link, AllocateProducerIds(100)) == ProducerIds(1, 100)
    cluster.kill(cluster.active() or "")
    link = cluster.link(cluster.elect())
    assert cluster.answer(link, AllocateProducerIds(100)) == ProducerIds(101, 100)


def test_unknown_requests_are_refused(cluster: Cluster) -> None:
    link = cluster.begin()
    assert cluster.refusal(link, Done()).code == "UNSUPPORTED"


# --- sessions --------------------------------------------------------------------------------------------


def test_silent_server_is_fenced_and_heartbeats_bring_it_back(cluster: Cluster) -> None:
    link = cluster.begin()
    leader = cluster.partition().leader or ""
    others = [n for n in SERVERS if n != leader]
    cluster.live_for(link, 4.0, *others)
    assert cluster.partition().leader == others[0] or cluster.partition().leader == others[1]
    assert leader not in cluster.partition().isr
    assert not cluster.nodes[cluster.active() or ""].state.is_live(leader)
    cluster.beat(link, leader)
    assert cluster.nodes[cluster.active() or ""].state.is_live(leader)
    assert leader not in cluster.partition().isr


def test_former_life_is_refused(cluster: Cluster) -> None:
    link = cluster.begin()
    cluster.register(link, "r1")
    assert cluster.refusal(link, Heartbeat("r1", cluster.epochs["r1"])).code == "FENCED_BROKER_EPOCH"
    assert cluster.refusal(link, Heartbeat("r9", 1)).code == "FENCED_BROKER_EPOCH"
    report = ReportLeader("r1", cluster.epochs["r1"], "r2", "", ())
    assert cluster.refusal(link, report).code == "FENCED_BROKER_EPOCH"


def test_new_active_controller_grants_a_full_session(cluster: Cluster) -> None:
    link = cluster.begin()
    cluster.live_for(link, 2.5, *SERVERS)
    cluster.kill(cluster.active() or "")
    link = cluster.link(cluster.elect())
    cluster.run(2.9)
    assert all(not s.fenced for s in cluster.nodes[cluster.active() or ""].state.servers.values())
    cluster.beat(link, "r1", "r2")
    cluster.run(0.2)
    assert [n for n, s in cluster.nodes[cluster.active() or ""].state.servers.items() if s.fenced] == ["r3"]


def test_decision_in_flight_is_not_made_again(cluster: Cluster) -> None:
    link = cluster.begin()
    active = cluster.active() or ""
    cluster.live_for(link, 2.0, *SERVERS)
    leader = cluster.partition().leader or ""
    first, second = (n for n in SERVERS if n != leader)
    cluster.report(link, first, leader)
    before = cluster.nodes[active].metadata_log.raft.log.last_index
    cluster.cut = {active}  # nothing is committed from here on
    for _ in range(3):
        cluster.report(link, second, leader)
        cluster.beat(link, *SERVERS)
    assert cluster.nodes[active].metadata_log.raft.log.last_index == before + 1


# --- leader reports and ISR ------------------------------------------------------------------------------


def test_reported_leader_is_replaced_at_once_and_the_history_says_why(cluster: Cluster) -> None:
    link = cluster.begin()
    leader = cluster.partition().leader or ""
    first, second = (n for n in cluster.partition().replicas if n != leader)
    cluster.report(link, second, leader)
    assert cluster.partition().leader == leader
    cluster.report(link, first, leader)
    assert (cluster.partition().leader, cluster.partition().isr) == (first, (first, second))
    history = cluster.answer(link, History(cluster.topic_id, 0))
    assert isinstance(history, HistoryAnswer)
    created, elected = history.entries
    assert (created.event, elected.event, elected.cause) == ("created", "leader_elected", "leader_reported")
    assert elected.evidence == {
        "leader": leader,
        "reports": "2",
        "live": "2",
        f"report_{first}": "no answer",
        f"report_{second}": "no answer",
    }
    assert elected.time_ms == int(cluster.now * 1000)
    assert any(event.name == "partition_leader_elected" for _, event in cluster.events)


def test_a_command_that_changes_many_partitions_writes_few_lines_of_each_kind(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "LINES", 2)
    link = cluster.begin()
    cluster.answer(link, CreateTopic("many", 11, 3))
    told = len(cluster.events)
    cluster.live_for(link, ControllerSettings().session_timeout_s + 1, "r2", "r3")
    lines = [event for _, event in cluster.events[told:] if "partition" in event.name]
    names = [line.name for line in lines]
    assert names.count("partition_leader_elected") == names.count("partition_isr_shrunk") == 2
    assert lines[-1].name == "more_partitions_changed"
    assert lines[-1].fields == {"leader_elected": 4 - 2, "isr_shrunk": 8 - 2}


def test_leader_changes_its_isr(cluster: Cluster) -> None:
    link = cluster.begin()
    p = cluster.partition()
    leader = p.leader or ""
    members = tuple(IsrMember(n, cluster.epochs[n]) for n in p.replicas[:2])
    proposal = AlterIsr(leader, cluster.epochs[leader], cluster.topic_id, 0, p.leader_epoch, p.epoch, members, "lag")
    assert cluster.answer(link, proposal) == AlterIsrAnswer(1, p.replicas[:2])
    assert cluster.refusal(link, proposal).code == "STALE_EPOCH"


# --- failures of controllers -----------------------------------------------------------------------------


def test_metadata_survives_the_active_controller(cluster: Cluster) -> None:
    cluster.begin()
    cluster.settle()
    before = cluster.partition()
    killed = cluster.active() or ""
    cluster.kill(killed)
    assert cluster.elect() != killed
    assert cluster.partition() == before
    cluster.start(killed)
    cluster.settle()
    assert cluster.partition(killed) == before


def test_all_controllers_restart_and_rebuild_everything_from_the_log(cluster: Cluster) -> None:
    cluster.begin()
    cluster.settle()
    before = repr(cluster.nodes["c1"].state.image().topics)
    for node in list(cluster.nodes):
        cluster.kill(node)
    for node in cluster.disks:
        cluster.start(node)
    cluster.elect()
    cluster.settle()
    assert repr(cluster.nodes["c1"].state.image().topics) == before


def test_requests_of_a_controller_that_is_cut_off_end_with_unknown_outcome(cluster: Cluster) -> None:
    link = cluster.begin()
    active = cluster.active() or ""
    cluster.cut = {active}
    id = cluster.ask(link, CreateTopic("lost"))
    assert (link, id) not in cluster.answers
    cluster.run(10.0, until=lambda: cluster.active() is not None and not cluster.nodes[active].active)
    error = cluster.answers[link, id]
    assert isinstance(error, TidelogError)
    assert (error.code, error.unknown_outcome) == ("NOT_ACTIVE_CONTROLLER", True)
    cluster.cut = set()
    cluster.settle()
    assert "lost" not in cluster.nodes[active].state.names


def test_request_that_no_majority_confirms_ends_after_a_while() -> None:
    cluster = Cluster(settings=ControllerSettings(request_timeout_s=0.2))
    link = cluster.begin()
    active = cluster.active() or ""
    cluster.cut = {active}
    id = cluster.ask(link, CreateTopic("slow"))
    cluster.run(0.3)
    error = cluster.answers[link, id]
    assert isinstance(error, TidelogError)
    assert (error.code, error.unknown_outcome) == ("NO_QUORUM", True)
    assert cluster.nodes[active].active
    cluster.cut = set()
    cluster.run(5.0, until=lambda: "slow" in cluster.nodes[active].state.names)
    assert "slow" in cluster.nodes[active].state.names, "unknown outcome: it was applied after all"


def test_requests_that_wait_are_bounded() -> None:
    cluster = Cluster(settings=ControllerSettings(max_pending=2))
    link = cluster.begin()
    cluster.cut = {cluster.active() or ""}
    for _ in range(2):
        cluster.ask(link, AllocateProducerIds(1))
    assert cluster.refusal(link, AllocateProducerIds(1)).code == "OVERLOADED"
    cluster.close(link)
    link = cluster.link(cluster.active() or next(iter(cluster.cut)))
    assert (link, cluster.ask(link, AllocateProducerIds(1))) not in cluster.answers


# --- watching --------------------------------------------------------------------------------------------


def test_watchers_of_every_controller_see_the_same_changes_in_commit_order(cluster: Cluster) -> None:
    link = cluster.begin()
    watchers = {node: cluster.link(node) for node in cluster.nodes}
    for watcher in watchers.values():
        assert cluster.answer(watcher, Watch()) == Done()
    cluster.answer(link, CreateTopic("more", 3, 2))
    cluster.register(link, "r2")
    cluster.answer(link, DeleteTopic("orders"))
    cluster.settle()
    for node, watcher in watchers.items():
        first, *deltas = [m for m in cluster.order[watcher] if isinstance(m, MetadataUpdate)]
        assert first.whole and not any(delta.whole for delta in deltas)
        indexes = [update.index for update in (first, *deltas)]
        assert indexes == sorted(set(indexes))
        assert len(deltas) >= 3
        assert cluster.images[watcher].topics == cluster.nodes[node].state.image().topics
        assert cluster.images[watcher].servers == cluster.nodes[node].state.image().servers


def test_the_image_is_encoded_once_for_all_watchers_until_the_metadata_change(cluster: Cluster) -> None:
    """A new active controller sends it to every server and gateway at once. If it encoded a large image for each, it
    would send no heartbeats meanwhile, and lose the next election."""
    link = cluster.begin()

    def watch() -> MetadataUpdate:
        watcher = cluster.link(cluster.where[link])
        cluster.answer(watcher, Watch())
        (update,) = (m for m in cluster.order[watcher] if isinstance(m, MetadataUpdate))
        assert cluster.images[watcher].topics == cluster.nodes[cluster.where[link]].state.image().topics
        return update

    first = watch()
    cluster.answer(link, AllocateProducerIds(1))  # changes nothing that watchers see
    second = watch()
    assert second.payload is first.payload and second.index > first.index
    cluster.answer(link, CreateTopic("more"))
    assert watch().payload != first.payload


def test_own_change_is_seen_before_it_is_answered(cluster: Cluster) -> None:
    link = cluster.begin()
    cluster.answer(link, Watch())
    cluster.order[link].clear()
    cluster.answer(link, CreateTopic("mine"))
    assert [type(m) for m in cluster.order[link]] == [MetadataUpdate, TopicCreated]


def test_closed_link_watches_no_more(cluster: Cluster) -> None:
    link = cluster.begin()
    watcher = cluster.link(cluster.active() or "")
    cluster.answer(watcher, Watch())
    cluster.close(watcher)
    seen = len(cluster.order[watcher])
    cluster.answer(link, CreateTopic("more"))
    assert len(cluster.order[watcher]) == seen
