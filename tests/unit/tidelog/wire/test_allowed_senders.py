"""Who may send what to whom: every op, of every role, at every port; and the page that says so. Tests
``wire/codec.py``, ``wire/link_session.py`` and ``docs/protocol.md``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tidelog.errors import TidelogError
from tidelog.wire import codec
from tidelog.wire.codec import OPS
from tidelog.wire.link_session import POLICY_VIOLATION, CloseLink, Deliver, Session, Transmit
from tidelog.wire.messages import Hello, Welcome
from tidelog_controller.server import ALLOWED as AT_CONTROLLER
from tidelog_gateway.server import CLIENT_OPS
from tidelog_replica.server import ALLOWED as AT_REPLICA

from unit.tidelog.wire.test_cddl import example

PAGE = Path(__file__).resolve().parents[4] / "docs" / "protocol.md"
ROLES = ("client", "gateway", "replica", "controller")
PORTS: dict[str, Mapping[str, frozenset[str]]] = {
    "controller": AT_CONTROLLER,
    "replica": AT_REPLICA,
    "gateway": {"client": CLIENT_OPS},
}
PUSHED = frozenset({"metadata_update", "produced", "delivery"})
"""Only ever sent by the end that accepted."""
WELCOME = Welcome(1, "c", "n", "controller", 1 << 24, 1000)


def said(port: str, role: str, op: str | None) -> str:
    """What becomes of an op that somebody sends who says that he has that role: ``delivered``, ``FORBIDDEN``,
    ``closed``, or ``no entry``. ``op`` None: of the hello."""
    session = Session(0.0, welcome=lambda hello: WELCOME, allowed=PORTS[port])
    effects = session.on_data(codec.encode(Hello(1, role, "x"), id=0)[0])
    if any(isinstance(effect, CloseLink) for effect in effects):
        return "no entry"
    if op is None:
        return "welcome"
    kind = OPS[op]
    message: Any = example(kind, full=False)
    *_, effect = session.on_data(codec.encode(message, id=7 if kind.ANSWER else None)[0])
    if isinstance(effect, Deliver):
        return "delivered"
    if isinstance(effect, CloseLink):
        assert effect.code == POLICY_VIOLATION
        return "closed"
    assert isinstance(effect, Transmit)
    error = codec.decode(effect.head, answers=lambda _: None).error
    assert isinstance(error, TidelogError)
    return error.code


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("role", [*ROLES, "operator", ""])
def test_a_port_takes_the_roles_that_have_business_there(port: str, role: str) -> None:
    assert said(port, role, None) == ("welcome" if role in PORTS[port] else "no entry")


@pytest.mark.parametrize("op", OPS)
def test_an_op_goes_through_where_it_is_listed_and_nowhere_else(op: str) -> None:
    for port, allowed in PORTS.items():
        for role in allowed:
            if op in allowed[role]:
                assert said(port, role, op) == "delivered", (port, role)
            else:
                assert said(port, role, op) == ("FORBIDDEN" if OPS[op].ANSWER else "closed"), (port, role)


def test_clients_have_no_op_between_services() -> None:
    assert set(AT_CONTROLLER["client"]) == {"describe_quorum"}
    assert "client" not in AT_REPLICA
    between = {"register", "heartbeat", "watch", "alter_isr", "report_leader", "hand_over", "seal", "confirm_leader"}
    between |= {"report_loss", "request_vote", "vote", "append_entries", "append_result", "install_snapshot"}
    between |= {"snapshot_result", "timeout_now", "meet", "fetch", "epoch_offset", "log_snapshot", "notify"}
    between |= {"enrol_partition", "write_marker", "prepare_transactions", "announce_gateway"}
    assert not CLIENT_OPS & (between | PUSHED | {"hello", "allocate_producer_ids", "prepare_groups"})


def test_only_controllers_vote_and_only_replica_servers_replicate() -> None:
    raft = {"request_vote", "vote", "append_entries", "append_result", "install_snapshot", "snapshot_result"}
    raft |= {"timeout_now", "meet"}
    assert [role for role in ROLES if raft & AT_CONTROLLER.get(role, frozenset())] == ["controller"]
    for op in ("register", "heartbeat", "alter_isr", "seal", "report_loss"):
        assert [role for role in ROLES if op in AT_CONTROLLER[role]] == ["replica"]
    for op in ("fetch", "epoch_offset", "log_snapshot", "notify"):
        assert [role for role in ROLES if op in AT_REPLICA.get(role, frozenset())] == ["replica"]


def listed() -> dict[tuple[str, str], set[str]]:
    """The table of the page: ops by who sends and to whom."""
    text = PAGE.read_text().split("## Between the services\n")[1].split("\n## ")[0]
    found = re.findall(r"^\| (\w+) → (\w+) \| (.*) \|$", text, re.MULTILINE)
    return {(sender, port): set(re.findall(r"`(\w+)`", ops)) - PUSHED for sender, port, ops in found}


def test_every_allowed_op_is_on_the_page() -> None:
    page = listed()
    for port in ("controller", "replica"):
        for role, ops in PORTS[port].items():
            assert ops <= page.get((role, port), set()) | page.get(("any", port), set()), (role, port)
