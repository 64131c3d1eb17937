"""The table of errors is whole: it has every operation of a client, and every code and key that the code refuses
with. Whole clusters check it by what gateways answer (``tests/cluster/conftest.py``)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import tidelog
import tidelog_gateway
import tidelog_replica
from tidelog.errors import CODES
from tidelog.wire.operation_errors import DETAILS, ERRORS, REACTIONS, fault_of, reaction
from tidelog_gateway.produce.router import RETRIED
from tidelog_gateway.server import CLIENT_OPS

GATEWAY = Path(tidelog_gateway.__file__).parent
REPLICA = Path(tidelog_replica.__file__).parent
CONTROLLER = REPLICA.parents[1] / "controller" / "tidelog_controller"
SHARED = Path(tidelog.__file__).parent
SERVED = (
    GATEWAY,
    REPLICA,
    CONTROLLER,
    *(SHARED / name for name in ("wire", "net", "runtime")),
    SHARED / "tickets.py",
)
NO_DETAIL = {"unknown_outcome", "code"}
UNSENT = {"cause", "token", "principal"}
"""Keys of a refusal that names a cause: the gateway lists refused connections by them, and sends them only with
``OVERLOADED``."""
GROUP_OPS = (
    "join_group group_heartbeat leave_group commit_offsets fetch_offsets describe_group delete_group list_groups"
)
TRANSACTION_OPS = (
    "begin_transaction end_transaction prepare_transaction commit_staged abort_staged init_task_producer"
    " list_transactions produce settle_transaction"
)


def refusals(*places: Path) -> Iterator[tuple[str, str, set[str]]]:
    """Yield each call in these files and folders that names an error code: where it is, the code, and the keys of the
    detail that it makes."""
    for place in places:
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                    code = node.args[0].value
                    if code in CODES:
                        makes_error = ast.unparse(node.func).endswith("refuse")
                        keys = {word.arg for word in node.keywords if word.arg is not None} - NO_DETAIL
                        keys -= UNSENT if "cause" in keys and code != "OVERLOADED" else set()
                        yield f"{path.name}:{node.lineno}", str(code), keys if makes_error else set()


def test_every_operation_of_a_client_has_its_errors() -> None:
    assert ERRORS.keys() == CLIENT_OPS - {"credit"} | {"hello"}
    assert CODES.keys() >= set().union(*ERRORS.values(), DETAILS)


def test_every_error_has_a_reaction_and_each_reaction_is_used() -> None:
    used = {reaction(op, code) for op, codes in ERRORS.items() for code in codes}
    assert used == REACTIONS.keys()


@pytest.mark.parametrize("code", CODES)
def test_only_what_may_succeed_later_is_repeated_unchanged(code: str) -> None:
    for op in (op for op, codes in ERRORS.items() if code in codes):
        if reaction(op, code) in ("retry", "resend"):
            assert CODES[code].retriable, op


def test_every_key_of_a_detail_is_in_the_table() -> None:
    found = list(refusals(*SERVED))
    assert len(found) > 200
    assert [(where, code, keys) for where, code, keys in found if not keys <= DETAILS.get(code, {}).keys()] == []


@pytest.mark.parametrize(
    ("place", "operations"),
    [
        (GATEWAY / "produce", "produce"),
        (GATEWAY / "consume", "read subscribe list_offset"),
        (GATEWAY / "rights", "hello use_producer produce join_group"),
        (GATEWAY / "clients", "hello digest produce"),
        (GATEWAY / "requests", " ".join(ERRORS)),
        (SHARED / "tickets.py", "use_producer"),
        (REPLICA / "partition" / "pending_reads.py", "read"),
        (REPLICA / "replication" / "producer_state.py", "produce"),
        (REPLICA / "partition" / "produce_admission.py", "produce"),
        (REPLICA / "partition" / "transaction_gate.py", "produce"),
        (REPLICA / "coordinators" / "groups", GROUP_OPS),
        (REPLICA / "coordinators" / "transactions", TRANSACTION_OPS),
        (REPLICA / "copies", "read_copy digest"),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_what_these_modules_refuse_with_is_in_the_table(place: Path, operations: str) -> None:
    """Codes after which the gateway sends a batch again do not reach the client."""
    allowed = set().union(*(ERRORS[op] for op in operations.split())) | (
        RETRIED if "produce" in operations else set()
    )
    found = list(refusals(place))
    assert found
    assert [(where, code) for where, code, _ in found if code not in allowed] == []


def test_a_fault_is_found() -> None:
    assert fault_of("read", "LOG_TRUNCATED", ["end_offset"]) == ""
    assert "not among its errors" in fault_of("read", "TOPIC_EXISTS", [])
    assert "colour" in fault_of("read", "LOG_TRUNCATED", ["end_offset", "colour"])
