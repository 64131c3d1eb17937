"""The contracts that ``docs/protocol.md`` lists: which op serves each of their functions, who sends it and who
answers. Tests ``wire/codec.py`` and ``docs/protocol.md``.

``SERVED`` says it. The page names the same ops; the ports take each from those who send it and refuse it from all
others; and in a simulated cluster in which all this happens nobody else sends it, and it is answered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from scenarios.stage import Stage
from tidelog.errors import TidelogError
from tidelog.testing.hardware.network import Frame, SimLink
from tidelog.wire.codec import MESSAGES
from tidelog.wire.codec import OPS as KINDS
from tidelog.wire.messages import (
    AlterLearners,
    DescribeQuorum,
    DrainServer,
    Message,
    Reassign,
    TransferLeader,
)

from unit.tidelog.wire.test_allowed_senders import PORTS, PUSHED, ROLES, said

PAGE = Path(__file__).resolve().parents[4] / "docs" / "protocol.md"
SERVED = {
    "ReplicaSync": {
        "AppendEntries": (
            "controller append_entries controller, controller append_result controller",
            "replica fetch replica, replica notify replica, replica progress replica",
        ),
        "FetchEntries": (
            "controller append_entries controller",
            "replica fetch replica, replica epoch_offset replica",
        ),
        "RequestSnapshot": ("controller install_snapshot controller", "replica log_snapshot replica"),
        "ApplySnapshot": (
            "controller install_snapshot controller, controller snapshot_result controller",
            "replica log_snapshot replica, replica fetch replica",
        ),
    },
    "LeaderElection": {
        "RequestVote": (
            "controller request_vote controller, controller vote controller",
            "replica report_leader controller, replica seal controller",
        ),
        "Heartbeat": ("controller append_entries controller", "replica heartbeat controller"),
        "TransferLeadership": (
            "controller timeout_now controller",
            "client transfer_leader gateway, gateway transfer_leader controller, replica hand_over controller",
        ),
    },
    "ReplicaControl": {
        "AddReplica": (
            "client add_controller gateway, gateway add_controller controller",
            "client reassign gateway, gateway reassign controller,"
            " client alter_learners gateway, gateway alter_learners controller",
        ),
        "RemoveReplica": (
            "client remove_controller gateway, gateway remove_controller controller",
            "client reassign gateway, gateway reassign controller",
        ),
        "PromoteReplica": (
            "",
            "replica alter_isr controller, client reassign gateway, gateway reassign controller",
        ),
        "DemoteReplica": (
            "client remove_controller gateway, gateway remove_controller controller,"
            " client add_controller gateway, gateway add_controller controller",
            "replica alter_isr controller, replica hand_over controller,"
            " client reassign gateway, gateway reassign controller,"
            " client alter_learners gateway, gateway alter_learners controller",
        ),
    },
    "ClientRouting": {
        function: (
            "client describe_quorum gateway, client describe_quorum controller, gateway describe_quorum controller,"
            " replica describe_quorum controller, controller describe_quorum controller",
            "client metadata gateway",
        )
        for function in ("GetLeader", "GetReplicaSet")
    },
    "PlacementControl": {
        "GetReplicaTopology": (
            "client describe_quorum gateway, client describe_quorum controller, gateway describe_quorum controller,"
            " replica describe_quorum controller, controller describe_quorum controller",
            "replica watch controller, gateway watch controller, client metadata gateway,"
            " controller metadata_update replica, controller metadata_update gateway",
        ),
        "UpdateLeader": (
            "",
            "client transfer_leader gateway, gateway transfer_leader controller,"
            " client drain_server gateway, gateway drain_server controller, replica hand_over controller,"
            " controller metadata_update replica, controller metadata_update gateway",
        ),
        "ReportReplicaLag": ("", "replica heartbeat controller"),
    },
}
"""Contract -> function -> what serves it among the controllers, and among the replica servers: who, op, to whom."""
OPS = {kind.OP for kind in MESSAGES if kind.OP}
Way = tuple[str, str, str]
"""Who sends, op, who receives."""


def ways(text: str) -> set[Way]:
    found = {tuple(part.split()) for part in text.split(",") if part}
    assert all(len(way) == 3 for way in found), text
    return found  # type: ignore[return-value]


EVERY = set[Way]().union(*(ways(cell) for row in SERVED.values() for cells in row.values() for cell in cells))


def rows() -> Iterator[tuple[str, str, list[set[str]]]]:
    """Contract, function, and the ops that the two cells name."""
    text = PAGE.read_text().split("## By contract\n")[1].split("\n## ")[0]
    contract = ""
    for line in [line for line in text.splitlines() if line.startswith("|")][2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        contract = cells[0].strip("`") or contract
        yield contract, cells[1].strip("`"), [set(re.findall(r"`(\w+)`", cell)) for cell in cells[2:]]


def test_the_page_names_the_ops_that_serve_each_function() -> None:
    page = {(contract, function): ops for contract, function, ops in rows()}
    served = {
        (contract, function): [{op for _, op, _ in ways(cell)} for cell in cells]
        for contract, functions in SERVED.items()
        for function, cells in functions.items()
    }
    assert page == served
    assert {op for _, op, _ in EVERY} <= OPS


@pytest.mark.parametrize("op", sorted({op for _, op, _ in EVERY} - PUSHED))
def test_an_op_is_accepted_from_its_senders_and_from_nobody_else(op: str) -> None:
    taken = {(role, op, port) for port in PORTS for role in ROLES if said(port, role, op) == "delivered"}
    assert taken == {way for way in EVERY if way[1] == op}


def test_every_op_in_the_tables_of_the_page_exists() -> None:
    text = PAGE.read_text()
    for title in ("## For clients", "## Between the services"):
        table = [line for line in text.split(f"{title}\n")[1].split("\n## ")[0].splitlines() if line.startswith("| ")]
        cells = [line.split("|")[1 if title == "## For clients" else 2] for line in table]
        named = {op for cell in cells for op in re.findall(r"`(\w+)`", cell)}
        assert named and named <= OPS | {"produced", "delivery"}


# --- in a cluster ----------------------------------------------------------------------------------------


@dataclass
class Traffic:
    """What the processes of a stage say to each other. Its clients ask servers as gateways do."""

    stage: Stage
    sent: set[Way] = field(default_factory=set)
    answered: set[Way] = field(default_factory=set)
    """With a message, not with an error."""
    _asked: dict[tuple[int, int], Way] = field(default_factory=dict)

    def __post_init__(self) -> None:
        network = self.stage.network
        carry, datagram = network.carry, network.datagram

        def hear_carry(link: SimLink, sender: Any, frame: Frame, lossy: bool = False) -> None:
            if frame.kind == "answer":
                way = self._asked.pop((id(link), frame.id or 0), None)
                if way is not None and not isinstance(frame.body, Exception):
                    assert self.role(sender.name) == way[2] and isinstance(frame.body, KINDS[way[1]].ANSWER or object)
                    self.answered.add(way)
            elif isinstance(frame.body, Message):
                way = self.hear(sender.name, link.other(sender.name), frame.body)
                self._asked[id(link), frame.id or 0] = way
            carry(link, sender, frame, lossy)

        def hear_datagram(sender: str, target: str, message: Message) -> None:
            self.hear(sender, target, message)
            datagram(sender, target, message)

        network.carry = hear_carry  # type: ignore[method-assign]
        network.datagram = hear_datagram  # type: ignore[method-assign]

    def role(self, name: str) -> str:
        stage = self.stage
        return "controller" if name in stage.controllers else "replica" if name in stage.replicas else "gateway"

    def hear(self, sender: str, receiver: str, message: Message) -> Way:
        way = self.role(sender), message.OP, self.role(receiver)
        self.sent.add(way)
        return way

    def ask(self, message: Message) -> None:
        """A request to the active controller that succeeds."""
        answer = self.stage.ask(self.stage.active, message)
        assert not isinstance(answer, TidelogError), answer


def everything_happens(**config: str) -> Traffic:
    """Servers and controllers end and return, leaders and replicas move, a disk stalls."""
    stage = Stage(servers=4, **config)
    traffic = Traffic(stage)
    first, (second, third) = stage.first, stage.others
    (fourth,) = [node for node in stage.replicas if node not in stage.now.replicas]
    traffic.ask(DescribeQuorum())
    stage.put(b"m0")
    traffic.ask(TransferLeader("t", 0, second))
    stage.until(lambda: stage.leads(second) and stage.in_sync())
    stage.lose_power(third)
    stage.restart(third)
    stage.until(stage.in_sync)
    stage.kill(second)
    stage.until(lambda: stage.leader in (first, third) and stage.leads(stage.leader))
    stage.restart(second)
    stage.kill(active := stage.active)
    stage.until(lambda: any(stage.controller(name).core is not None for name in stage.controllers if name != active))
    stage.restart(active)
    stage.until(stage.in_sync)
    leader = stage.leader
    stage.stall_flushes(leader)
    batch = stage.send(b"m1", patience=60.0)
    stage.until(lambda: stage.leader not in ("", leader))
    stage.resume_flushes()
    stage.until(lambda: batch.result != "" and stage.in_sync(), 30.0)
    traffic.ask(AlterLearners("t", 0, (fourth,)))
    traffic.ask(Reassign("t", 0, (first, second, fourth)))
    stage.until(lambda: not stage.now.target and stage.in_sync(), 30.0)
    traffic.ask(DrainServer(stage.leader, True))
    stage.until(stage.in_sync, 30.0)
    stage.settle()
    return traffic


NOT_HERE = {
    "install_snapshot",
    "snapshot_result",
    "log_snapshot",
    "timeout_now",
    "add_controller",
    "remove_controller",
}
"""What takes more than this stage does. ``test_c_controllers.py``, ``test_copy_restart.py``, ``raft/test_paper.py``
and ``test_controller_group.py`` have it."""


@pytest.fixture(scope="module")
def heard() -> tuple[set[Way], set[Way]]:
    """What was sent, and what was answered, with members that leave at once, and with sealing."""
    isr, quorum = everything_happens(min_insync_replicas="2"), everything_happens(commit_rule="quorum")
    return isr.sent | quorum.sent, isr.answered | quorum.answered


def test_in_a_cluster_each_op_comes_from_its_declared_senders(heard: tuple[set[Way], set[Way]]) -> None:
    sent, _ = heard
    ops = {op for _, op, _ in EVERY}
    assert {way for way in sent if way[1] in ops} <= EVERY
    behind = {way for way in EVERY if "client" not in way and way[1] not in NOT_HERE}
    needless = {way for way in behind if way[1] == "describe_quorum"}  # anybody may; a gateway does, now and then
    assert behind - needless <= sent
    assert needless & sent


def test_in_a_cluster_each_request_is_answered(heard: tuple[set[Way], set[Way]]) -> None:
    sent, answered = heard
    requests = {way for way in sent & EVERY if KINDS[way[1]].ANSWER is not None}
    assert requests and requests <= answered
