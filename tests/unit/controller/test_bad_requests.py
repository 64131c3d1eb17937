"""Bad input to the active controller: each kind has a clear error of its own, and changes nothing. Tests
``controller.py`` and ``metadata/rules``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.controller_network import ControllerNet
from tidelog.errors import TidelogError
from tidelog.types import PartitionState
from tidelog.wire.messages import (
    AllocateProducerIds,
    AlterIsr,
    AlterLearners,
    AlterTopic,
    CancelReassignment,
    ConfirmLeader,
    CreateTopic,
    DeleteTopic,
    DrainServer,
    GrowTopic,
    HandOver,
    Heartbeat,
    History,
    IsrMember,
    Message,
    PauseTopic,
    Reassign,
    Register,
    Registered,
    RemoveController,
    ReportLeader,
    ReportLoss,
    Seal,
    SealPart,
    SetReadOnly,
    SuspectPart,
    TopicCreated,
    TransferLeader,
)
from tidelog_controller.controller import Controller
from tidelog_controller.metadata.rules.topics import RANGES
from tidelog_controller.metadata.state_machine import encode_state
from tidelog_controller.server import ALLOWED

SERVERS = ("r1", "r2", "r3", "r4")
UNKNOWN = "no such thing"


class Cluster(ControllerNet):
    """Three controllers, and after ``begin`` four replica servers and the topic ``orders`` on three of them; ``away``
    has no copy."""

    def begin(self) -> Cluster:
        self.to = self.link(self.elect())
        for node in SERVERS:
            self.answer(self.to, Register(node, f"ws://{node}", lives=(f"{node}-0",), cluster="test"))
        created = self.answer(self.to, CreateTopic("orders", 1, 3))
        assert isinstance(created, TopicCreated)
        self.id = created.topic_id
        (self.away,) = (node for node in SERVERS if node not in self.p.replicas)
        self.first, self.second, self.third = self.p.replicas
        return self

    @property
    def core(self) -> Controller:
        return self.nodes[self.where[self.to]]

    @property
    def others(self) -> list[str]:
        return [node for node in self.urls if node != self.where[self.to]]

    @property
    def p(self) -> PartitionState:
        partition = self.core.state.partition(self.id, 0)
        assert partition is not None
        return partition

    def life(self, node: str) -> int:
        return self.core.state.servers[node].broker_epoch

    def alter(self, *isr: str, node: str = "", life: int = -1, leader_epoch: int = 0, epoch: int = 0) -> AlterIsr:
        """Return an ISR proposal; its epochs are relative to the present ones."""
        node, p = node or self.first, self.p
        members = tuple(IsrMember(n, self.life(n)) for n in isr)
        life = self.life(node) if life < 0 else life
        epochs = (p.leader_epoch + leader_epoch, p.epoch + epoch)
        return AlterIsr(node, life, self.id, 0, *epochs, members, "test")

    def report(self, node: str, life: int = -1) -> ReportLeader:
        part = SuspectPart(self.id, 0, self.p.epoch, self.p.leader_epoch)
        return ReportLeader(node, self.life(node) if life < 0 else life, self.first, "dead", (part,))

    def hand_over(self, node: str, life: int) -> HandOver:
        return HandOver(node, life, "test", (SuspectPart(self.id, 0, self.p.epoch, self.p.leader_epoch),))

    def document(self) -> bytes:
        """Return the encoded replicated state without its index, which a refused command changes, too."""
        replicated = self.core.metadata_log.replicated
        return encode_state(replace(replicated, metadata=replace(replicated.metadata, index=0)))


Make = Callable[[Cluster], Message]
BAD: dict[str, tuple[Make, str]] = {
    # stale epochs
    "isr, former life of the leader": (lambda c: c.alter(c.first, life=0), "FENCED_BROKER_EPOCH"),
    "isr, older leader epoch": (lambda c: c.alter(c.first, leader_epoch=-1), "FENCED_LEADER_EPOCH"),
    "isr, leader epoch to come": (lambda c: c.alter(c.first, leader_epoch=1), "FENCED_LEADER_EPOCH"),
    "isr, older epoch": (lambda c: c.alter(c.first, epoch=-1), "STALE_EPOCH"),
    "isr, epoch to come": (lambda c: c.alter(c.first, epoch=1), "STALE_EPOCH"),
    "heartbeat of a former life": (lambda c: Heartbeat(c.first, 0), "FENCED_BROKER_EPOCH"),
    "heartbeat of a life to come": (lambda c: Heartbeat(c.first, 10**9), "FENCED_BROKER_EPOCH"),
    "heartbeat of nobody": (lambda c: Heartbeat(UNKNOWN, 1), "FENCED_BROKER_EPOCH"),
    "hand over of a former life": (lambda c: c.hand_over(c.first, 0), "FENCED_BROKER_EPOCH"),
    "confirmation of a former life": (lambda c: ConfirmLeader(c.first, 0, c.id, 0, 0), "FENCED_BROKER_EPOCH"),
    "confirmation of an older leader epoch": (
        lambda c: ConfirmLeader(c.first, c.life(c.first), c.id, 0, 7),
        "FENCED_LEADER_EPOCH",
    ),
    # forged reports
    "isr by a follower": (lambda c: c.alter(c.second, node=c.second), "NOT_LEADER"),
    "isr by who has no copy": (lambda c: c.alter(c.away, node=c.away), "NOT_LEADER"),
    "isr with who has no copy": (lambda c: c.alter(c.first, c.away), "NOT_REPLICA"),
    "isr without the leader": (lambda c: c.alter(c.second), "NOT_REPLICA"),
    "isr of no partition": (lambda c: AlterIsr(c.first, c.life(c.first), c.id, 5, 0, 0, (), ""), "UNKNOWN_TOPIC"),
    "report by who has no copy": (lambda c: c.report(c.away), "NOT_REPLICA"),
    "report with another's broker epoch": (lambda c: c.report(c.second, c.life(c.third)), "FENCED_BROKER_EPOCH"),
    "report by nobody": (lambda c: c.report(UNKNOWN, 5), "FENCED_BROKER_EPOCH"),
    "seal with another's broker epoch": (
        lambda c: Seal(c.second, c.life(c.third), (SealPart(c.id, 0, 1, 9),)),
        "FENCED_BROKER_EPOCH",
    ),
    "confirmation by a follower": (lambda c: ConfirmLeader(c.second, c.life(c.second), c.id, 0, 0), "NOT_LEADER"),
    "loss told by who has no copy": (
        lambda c: ReportLoss(c.away, c.life(c.away), c.id, 0, 0, 0, 1),
        "NOT_REPLICA",
    ),
    "loss of a former life": (lambda c: ReportLoss(c.second, 0, c.id, 0, 0, 0, 1), "FENCED_BROKER_EPOCH"),
    "loss of nothing": (lambda c: ReportLoss(c.second, c.life(c.second), c.id, 0, 0, 5, 5), "MALFORMED"),
    # servers
    "registration with data of another cluster": (lambda c: Register("r9", "ws://r9", cluster="x"), "WRONG_CLUSTER"),
    "registration without a name": (lambda c: Register("", "ws://r9"), "MALFORMED"),
    "registration without a url": (lambda c: Register("r9", ""), "MALFORMED"),
    "registration under an id in use": (lambda c: Register(c.first, "ws://x", lives=("x",)), "NODE_IN_USE"),
    "draining nobody": (lambda c: DrainServer(UNKNOWN), "UNKNOWN_SERVER"),
    # controllers
    "removal that breaks the quorum": (
        lambda c: (c.cut.add(c.others[0]), c.run(2.0), RemoveController(c.others[1]))[2],
        "QUORUM_AT_RISK",
    ),
    "removal of nobody": (lambda c: RemoveController(UNKNOWN), "UNKNOWN_CONTROLLER"),
    # moves
    "reassignment to an unknown server": (lambda c: Reassign("orders", 0, (c.first, UNKNOWN)), "UNKNOWN_SERVER"),
    "reassignment to nobody": (lambda c: Reassign("orders", 0, ()), "INVALID_REPLICAS"),
    "reassignment to one server twice": (lambda c: Reassign("orders", 0, (c.first, c.first)), "INVALID_REPLICAS"),
    "reassignment to too few": (lambda c: Reassign("orders", 0, (c.first,)), "INVALID_REPLICAS"),
    "reassignment of no partition": (lambda c: Reassign("orders", 9, (c.first,)), "UNKNOWN_TOPIC"),
    "reassignment of no topic": (lambda c: Reassign(UNKNOWN, 0, (c.first,)), "UNKNOWN_TOPIC"),
    "cancellation of nothing": (lambda c: CancelReassignment("orders", 0), "NO_REASSIGNMENT"),
    "transfer to an unknown server": (lambda c: TransferLeader("orders", 0, UNKNOWN), "UNKNOWN_SERVER"),
    "transfer to who has no copy": (lambda c: TransferLeader("orders", 0, c.away), "NOT_REPLICA"),
    "learner that is unknown": (lambda c: AlterLearners("orders", 0, (UNKNOWN,)), "INVALID_CONFIG"),
    "learner that is a replica": (lambda c: AlterLearners("orders", 0, (c.first,)), "INVALID_CONFIG"),
    # topics
    "topic that exists": (lambda c: CreateTopic("orders"), "TOPIC_EXISTS"),
    "topic with a bad name": (lambda c: CreateTopic("a/b"), "INVALID_TOPIC"),
    "topic of the cluster's own": (lambda c: CreateTopic("__mine"), "INVALID_TOPIC"),
    "more replicas than servers": (lambda c: CreateTopic("new", 1, 9), "INVALID_REPLICATION_FACTOR"),
    "no partitions": (lambda c: CreateTopic("new", 0), "INVALID_CONFIG"),
    "too many partitions": (lambda c: CreateTopic("new", 10_001), "INVALID_CONFIG"),
    "unknown setting": (lambda c: CreateTopic("new", config={"colour": "red"}), "INVALID_CONFIG"),
    "setting that is fixed": (lambda c: AlterTopic("orders", {"flush": "os"}), "INVALID_CONFIG"),
    "minimum above the replicas": (lambda c: AlterTopic("orders", {"min_insync_replicas": "4"}), "INVALID_CONFIG"),
    "settings of no topic": (lambda c: AlterTopic(UNKNOWN, {}), "UNKNOWN_TOPIC"),
    "deletion of no topic": (lambda c: DeleteTopic(UNKNOWN), "UNKNOWN_TOPIC"),
    "topic that shrinks": (lambda c: GrowTopic("orders", 1), "INVALID_CONFIG"),
    "topic that grows too far": (lambda c: GrowTopic("orders", 10_001), "INVALID_CONFIG"),
    "pause of no topic": (lambda c: PauseTopic(UNKNOWN), "UNKNOWN_TOPIC"),
    "pause of no partition": (lambda c: PauseTopic("orders", (1,)), "UNKNOWN_TOPIC"),
    "read-only, the cluster's own": (lambda c: SetReadOnly("__timeline"), "FORBIDDEN"),
    "history of no partition": (lambda c: History(c.id, 1), "UNKNOWN_TOPIC"),
    "no producer ids": (lambda c: AllocateProducerIds(0), "INVALID_CONFIG"),
    "too many producer ids": (lambda c: AllocateProducerIds(1_000_001), "INVALID_CONFIG"),
} | {
    f"{name} {value}": ((lambda c, n=name, v=value: AlterTopic("orders", {n: v})), "INVALID_CONFIG")
    for name, (least, most) in RANGES.items()
    for value in (str(least - 1), str(most + 1), "1.5", "", "many", "-2", "\uff11")
}


@pytest.mark.parametrize("name", BAD)
def test_it_is_refused_clearly_and_changes_nothing(name: str) -> None:
    make, code = BAD[name]
    cluster = Cluster(3).begin()
    message = make(cluster)
    before = cluster.document()
    group = cluster.core.metadata_log.raft.members
    id = cluster.ask(cluster.to, message)
    cluster.run(0.5)
    refusal = cluster.answers[cluster.to, id]
    assert isinstance(refusal, TidelogError) and refusal.code == code
    assert len(refusal.message) > 10, "it says what is wrong"
    assert cluster.document() == before and cluster.core.metadata_log.raft.members == group


def test_a_second_replica_server_of_one_id_is_refused_until_the_first_one_is_gone() -> None:
    cluster = Cluster(3).begin()
    twin = Register(cluster.second, "ws://twin", lives=("twin-0",))
    life = cluster.life(cluster.second)
    for _ in range(5):
        cluster.run(1.0)
        cluster.answer(cluster.to, Heartbeat(cluster.second, cluster.life(cluster.second)))
        refusal = cluster.refusal(cluster.to, twin)
        assert refusal.code == "NODE_IN_USE" and f"ws://{cluster.second}" in refusal.message
    assert cluster.life(cluster.second) == life and cluster.second in cluster.p.isr
    cluster.run(4.0)
    answer = cluster.answer(cluster.to, twin)
    assert isinstance(answer, Registered), "a server whose directory was wiped comes back so"
    assert cluster.second not in cluster.p.isr, "and vouches for nothing"


def test_a_server_that_was_killed_and_wiped_need_not_wait_for_the_end_of_its_session() -> None:
    cluster = Cluster(3).begin()
    link = cluster.link(cluster.where[cluster.to])
    cluster.answer(link, Heartbeat(cluster.second, cluster.life(cluster.second)))
    cluster.close(link)
    cluster.run(cluster.settings.broken_link_grace_s + 0.01)
    assert isinstance(cluster.answer(cluster.to, Register(cluster.second, "ws://x", lives=("new",))), Registered)


def test_a_restart_is_no_second_server() -> None:
    cluster = Cluster(3).begin()
    again = Register(cluster.second, "ws://new", lives=(f"{cluster.second}-0", f"{cluster.second}-1"))
    assert isinstance(cluster.answer(cluster.to, again), Registered)


def test_clients_come_through_a_gateway_and_report_nobody() -> None:
    of_servers = {
        m.OP for m in (Register, Heartbeat, AlterIsr, ReportLeader, HandOver, Seal, ConfirmLeader, ReportLoss)
    }
    assert not of_servers & ALLOWED["client"] and not of_servers & ALLOWED["gateway"]
    assert not of_servers & ALLOWED["controller"]
