"""What servers and operators ask of the active controller, through Raft: handing over, seals, losses, settings. Tests
``controller.py`` and ``metadata_log.py``."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.controller_network import ControllerNet
from tidelog.feature_levels import POSSIBLE_LOSSES, Levels
from tidelog.types import PartitionState
from tidelog.wire.messages import (
    AlterLearners,
    AlterTopic,
    ConfirmLeader,
    CreateTopic,
    DeleteTopic,
    Done,
    HandOver,
    Heartbeat,
    History,
    HistoryAnswer,
    PrepareGroups,
    Register,
    Registered,
    ReportLoss,
    Seal,
    SealPart,
    SuspectPart,
    TopicCreated,
    Watch,
)
from tidelog_controller.server import ALLOWED

SERVERS = ("r1", "r2", "r3")


class Cluster(ControllerNet):
    """Three controllers, and after ``begin`` three replica servers and one topic; ``to`` is a link to the active
    controller."""

    def begin(self, **config: str) -> None:
        self.to = self.link(self.elect())
        self.epochs = {node: self.register(node, f"{node}-0") for node in SERVERS}
        created = self.answer(self.to, CreateTopic("orders", 1, 3, config))
        assert isinstance(created, TopicCreated)
        self.topic_id = created.topic_id
        self.leader, self.second, self.third = self.partition.replicas

    def register(self, node: str, *lives: str, clean: bool = False) -> int:
        answer = self.answer(self.to, Register(node, f"ws://{node}", lives=lives, clean=clean))
        assert isinstance(answer, Registered)
        return answer.broker_epoch

    def kill_server(self, node: str) -> None:
        """Break the link of a server's heartbeats, and let its session end."""
        link = self.link(self.where[self.to])
        self.answer(link, Heartbeat(node, self.epochs[node]))
        self.close(link)
        self.run(1.0)

    @property
    def partition(self) -> PartitionState:
        partition = self.nodes[self.where[self.to]].state.partition(self.topic_id, 0)
        assert partition is not None
        return partition

    def hand_over(self, node: str, *, lost: bool = False) -> HandOver:
        p = self.partition
        parts = (SuspectPart(self.topic_id, 0, p.epoch, p.leader_epoch),)
        return HandOver(node, self.epochs[node], "shutdown", parts, lost)

    def seal(self, node: str, end: int) -> None:
        part = SealPart(self.topic_id, 0, self.partition.leader_epoch, end, 0)
        assert self.answer(self.to, Seal(node, self.epochs[node], (part,))) == Done()

    def settle(self) -> None:
        """Let time pass until all controllers have applied the same entries, and check that their states are
        equal."""
        self.run(5.0, until=lambda: len({c.state.index for c in self.nodes.values()}) == 1)
        assert len({repr(c.state) for c in self.nodes.values()}) == 1


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.begin()
    return cluster


def test_a_leader_hands_over(cluster: Cluster) -> None:
    assert cluster.answer(cluster.to, cluster.hand_over(cluster.leader)) == Done()
    assert (cluster.partition.leader, cluster.partition.isr) == (cluster.second, (cluster.second, cluster.third))
    cluster.settle()


def test_a_handover_of_an_earlier_incarnation_is_refused(cluster: Cluster) -> None:
    request = cluster.hand_over(cluster.leader)
    cluster.register(cluster.leader, f"{cluster.leader}-0", "next")
    assert cluster.refusal(cluster.to, request).code == "FENCED_BROKER_EPOCH"


def test_lives_and_clean_restarts_reach_the_metadata(cluster: Cluster) -> None:
    for node in (cluster.second, cluster.third):
        cluster.answer(cluster.to, cluster.hand_over(node))
    assert cluster.partition.isr == (cluster.leader,)
    assert cluster.partition.elr == (cluster.third,), "the second left when two were enough"
    cluster.kill_server(cluster.leader)
    cluster.register(cluster.leader, "another")
    assert (cluster.partition.isr, cluster.partition.elr) == ((cluster.third,), ()), "the first was wiped"
    assert cluster.nodes[cluster.where[cluster.to]].state.servers[cluster.leader].life == "another"


def test_a_life_that_registers_again_has_lost_nothing() -> None:
    """The answer to its first registration was lost, so it cannot know that what it may have lost was taken into
    account."""
    cluster = Cluster()
    cluster.begin(flush="interval", min_insync_replicas="1")
    for node in (cluster.second, cluster.third):
        cluster.answer(cluster.to, cluster.hand_over(node))
    cluster.register(cluster.leader, f"{cluster.leader}-0", clean=False)
    partition = cluster.partition
    assert (partition.isr, partition.leader, partition.leader_epoch) == ((cluster.leader,), cluster.leader, 1)


def test_a_leader_is_confirmed_through_raft(cluster: Cluster) -> None:
    ask = ConfirmLeader(cluster.leader, cluster.epochs[cluster.leader], cluster.topic_id, 0, 0)
    assert cluster.answer(cluster.to, ask) == Done()
    watcher = cluster.link(cluster.where[cluster.to])
    cluster.answer(watcher, Watch())
    told = len(cluster.order[watcher])
    assert cluster.answer(cluster.to, ask) == Done()
    assert len(cluster.order[watcher]) == told, "no watcher hears of it"
    cluster.answer(cluster.to, cluster.hand_over(cluster.leader))
    assert cluster.refusal(cluster.to, ask).code == "NOT_LEADER"


def test_a_controller_that_is_cut_off_confirms_nobody(cluster: Cluster) -> None:
    ask = ConfirmLeader(cluster.leader, cluster.epochs[cluster.leader], cluster.topic_id, 0, 0)
    cluster.cut = {cluster.where[cluster.to]}
    id = cluster.ask(cluster.to, ask)
    assert (cluster.to, id) not in cluster.answers, "not before a majority has said that it is still the active one"


def test_losses_go_into_the_history(cluster: Cluster) -> None:
    report = ReportLoss(cluster.second, cluster.epochs[cluster.second], cluster.topic_id, 0, 0, 10, 13)
    for _ in range(2):
        assert cluster.answer(cluster.to, report) == Done()
    history = cluster.answer(cluster.to, History(cluster.topic_id, 0))
    assert isinstance(history, HistoryAnswer)
    assert [entry.event for entry in history.entries] == ["created", "records_lost"]
    assert history.entries[1].evidence["count"] == "3"
    above = replace(report, start=13, end=15, possible=True)
    for _ in range(2):
        assert cluster.answer(cluster.to, above) == Done()
    history = cluster.answer(cluster.to, History(cluster.topic_id, 0))
    assert isinstance(history, HistoryAnswer)
    assert [entry.event for entry in history.entries[1:]] == ["records_lost", "records_possibly_lost"]
    assert (history.entries[2].cause, history.entries[2].evidence["count"]) == ("unclean_election", "2")
    nothing = ReportLoss(cluster.second, cluster.epochs[cluster.second], cluster.topic_id, 0, 0, 10, 10)
    assert cluster.refusal(cluster.to, nothing).code == "MALFORMED"


def test_below_its_feature_level_what_is_possibly_lost_goes_into_the_history_as_lost() -> None:
    """An earlier controller knows one kind of loss, and its log has no field for the other."""
    cluster = Cluster(levels={f"c{n}": Levels(1, POSSIBLE_LOSSES - 1) for n in (1, 2, 3)})
    cluster.begin()
    where = cluster.second, cluster.epochs[cluster.second], cluster.topic_id
    assert cluster.answer(cluster.to, ReportLoss(*where, 0, 0, 10, 13, possible=True)) == Done()
    history = cluster.answer(cluster.to, History(cluster.topic_id, 0))
    assert isinstance(history, HistoryAnswer) and history.entries[-1].event == "records_lost"
    entries = [entry.data for node in cluster.disks.values() for entry in node.entries]
    assert entries and not any(b"possible" in data for data in entries)


def test_a_quorum_is_sealed_and_led_again() -> None:
    cluster = Cluster()
    cluster.begin(commit_rule="quorum")
    cluster.answer(cluster.to, cluster.hand_over(cluster.leader))
    assert cluster.partition.sealing and cluster.partition.leader is None
    cluster.seal(cluster.leader, 9)
    cluster.seal(cluster.third, 7)
    assert cluster.partition.sealing, "who handed over does not count while the others are enough"
    cluster.seal(cluster.second, 5)
    assert (cluster.partition.leader, cluster.partition.leader_epoch) == (cluster.third, 2)
    cluster.settle()


def test_seals_outlive_no_controller_and_need_not() -> None:
    cluster = Cluster()
    cluster.begin(commit_rule="quorum")
    cluster.answer(cluster.to, cluster.hand_over(cluster.leader))
    cluster.seal(cluster.second, 5)
    cluster.kill(cluster.where[cluster.to])
    cluster.to = cluster.link(cluster.elect())
    cluster.seal(cluster.third, 5)
    assert cluster.partition.sealing
    cluster.seal(cluster.second, 5)
    assert cluster.partition.leader == cluster.second


def test_settings_are_changed_by_name_and_watchers_see_them(cluster: Cluster) -> None:
    cluster.answer(cluster.to, Watch())
    request = AlterTopic("orders", {"retention_ms": "5000", "unclean_election": "true"})
    assert cluster.answer(cluster.to, request) == Done()
    (topic,) = cluster.images[cluster.to].topics
    assert (topic.config.retention_ms, topic.config.unclean_election) == (5000, True)
    assert topic.config.min_insync_replicas == 2, "what is not named stays"
    assert cluster.refusal(cluster.to, AlterTopic("none", {})).code == "UNKNOWN_TOPIC"
    assert cluster.refusal(cluster.to, AlterTopic("orders", {"flush": "os"})).code == "INVALID_CONFIG"
    assert [e.name for _, e in cluster.events].count("topic_changed") == 1
    cluster.settle()


def test_learners_are_set_and_watchers_see_them(cluster: Cluster) -> None:
    cluster.register("r4", "r4-0")
    cluster.answer(cluster.to, Watch())
    assert cluster.answer(cluster.to, AlterLearners("orders", 0, ("r4",))) == Done()
    (topic,) = cluster.images[cluster.to].topics
    assert topic.partitions[0].learners == ("r4",)
    assert cluster.refusal(cluster.to, AlterLearners("orders", 0, ("r1",))).code == "INVALID_CONFIG"
    assert cluster.refusal(cluster.to, AlterLearners("orders", 1, ("r4",))).code == "UNKNOWN_TOPIC"
    assert cluster.answer(cluster.to, AlterLearners("orders", 0, ())) == Done()
    assert cluster.partition.learners == ()


def test_each_role_may_send_its_own_requests_only() -> None:
    of_servers = {HandOver.OP, Seal.OP, ConfirmLeader.OP, ReportLoss.OP}
    of_operators = {AlterTopic.OP, AlterLearners.OP}
    assert of_servers <= ALLOWED["replica"] and of_operators <= ALLOWED["gateway"]
    assert not of_servers & ALLOWED["gateway"] and not of_operators & ALLOWED["replica"]
    assert not (of_servers | of_operators) & ALLOWED["client"]


def test_the_topic_of_the_groups_is_created_once_on_all_servers_that_there_are(cluster: Cluster) -> None:
    created = cluster.answer(cluster.to, PrepareGroups())
    assert isinstance(created, TopicCreated)
    assert cluster.answer(cluster.to, PrepareGroups()) == created
    topic = cluster.nodes[cluster.where[cluster.to]].state.topics[created.topic_id]
    assert (topic.name, len(topic.partitions)) == ("__groups", 16)
    assert {len(partition.replicas) for partition in topic.partitions} == {3}
    config = topic.config
    assert (config.cleanup, config.commit_rule, config.min_insync_replicas) == ("compact", "isr", 2)
    assert cluster.refusal(cluster.to, DeleteTopic("__groups")).code == "FORBIDDEN"


def test_the_topic_of_the_groups_waits_for_servers_that_are_not_up() -> None:
    cluster = Cluster()
    cluster.to = cluster.link(cluster.elect())
    assert cluster.refusal(cluster.to, PrepareGroups()).code == "NOT_ENOUGH_REPLICAS"
    for node in ("r1", "r2"):
        cluster.register(node, f"{node}-0")
    cluster.run(2.0)
    cluster.epochs = {"r2": cluster.register("r2", "r2-0")}
    cluster.run(2.0)
    error = cluster.refusal(cluster.to, PrepareGroups())
    assert (error.code, error.retriable) == ("NOT_ENOUGH_REPLICAS", True)
    cluster.register("r1", "r1-0")
    created = cluster.answer(cluster.to, PrepareGroups())
    assert isinstance(created, TopicCreated)
    topic = cluster.nodes[cluster.where[cluster.to]].state.topics[created.topic_id]
    assert {len(partition.replicas) for partition in topic.partitions} == {2}
