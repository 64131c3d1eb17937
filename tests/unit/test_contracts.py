"""The contracts that ``docs/protocol.md`` lists: each of their functions is served by ops that there are."""

from __future__ import annotations

import re
from pathlib import Path

from tidelog.wire.codec import MESSAGES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"
CONTRACTS = {
    "ReplicaSync": ["AppendEntries", "FetchEntries", "RequestSnapshot", "ApplySnapshot"],
    "LeaderElection": ["RequestVote", "Heartbeat", "TransferLeadership"],
    "ReplicaControl": ["AddReplica", "RemoveReplica", "PromoteReplica", "DemoteReplica"],
    "ClientRouting": ["GetLeader", "GetReplicaSet"],
    "PlacementControl": ["GetReplicaTopology", "UpdateLeader", "ReportReplicaLag"],
}
OPS = {kind.OP for kind in MESSAGES if kind.OP}


def rows() -> list[list[str]]:
    """Contract, function, and the two cells that name ops."""
    text = PAGE.read_text().split("## By contract\n")[1].split("\n## ")[0]
    table = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_every_function_of_every_contract_is_listed() -> None:
    listed: dict[str, list[str]] = {}
    contract = ""
    for row in rows():
        contract = row[0].strip("`") or contract
        listed.setdefault(contract, []).append(row[1].strip("`"))
    assert listed == CONTRACTS


def test_every_op_that_is_named_exists() -> None:
    for _, function, *cells in rows():
        named = [op for cell in cells for op in re.findall(r"`(\w+)`", cell)]
        assert named, f"nothing serves {function}"
        assert set(named) <= OPS, function


def test_every_op_in_the_tables_of_the_page_exists() -> None:
    text = PAGE.read_text()
    for title in ("## For clients", "## Between the services"):
        table = [line for line in text.split(f"{title}\n")[1].split("\n## ")[0].splitlines() if line.startswith("| ")]
        cells = [line.split("|")[1 if title == "## For clients" else 2] for line in table]
        named = {op for cell in cells for op in re.findall(r"`(\w+)`", cell)}
        assert named and named <= OPS | {"produced", "delivery"}
