"""Every op has a row in the table of bounds, the page shows it, and what is longer than its bound is not decoded."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from tidelog.errors import ProtocolError
from tidelog.wire import codec
from tidelog.wire.bounds import BOUND_OF, BOUNDS, most_parts
from tidelog.wire.codec import OPS, SERVICE, STRANGER
from tidelog_gateway import shared_requests as sharing
from tidelog_gateway import shell
from tidelog_gateway.config import GatewayConfig
from tidelog_gateway.consume.server_read_window import ServerReadWindow, WindowSettings
from tidelog_gateway.limits.fair_share import FairShare
from tidelog_gateway.limits.heavy_requests import SHARE
from tidelog_gateway.produce import router
from tidelog_gateway.requests import coordinator_client as coordination
from tidelog_gateway.requests import metadata_answers as describing
from tidelog_gateway.requests import offset_lookups as lookups
from tidelog_gateway.requests import requests as gateway_requests
from tidelog_replica import requests
from tidelog_replica.coordinators.groups import validation as checks
from tidelog_replica.copies import reads as copy_reads

from unit.tidelog.wire.test_allowed_senders import PORTS
from unit.tidelog.wire.test_cddl import example

SECURITY = Path(__file__).resolve().parents[4] / "docs" / "security.md"
OF_CLIENTS = PORTS["gateway"]["client"]
WITH_ARRAYS = [op for op, kind in OPS.items() if most_parts(kind, STRANGER)]


def test_every_op_has_one_row() -> None:
    rows = Counter(op for bound in BOUNDS for op in bound.ops)
    assert set(rows) == set(OPS)
    assert set(rows.values()) == {1}


def test_the_page_has_every_op() -> None:
    text = SECURITY.read_text()
    assert [op for op in OPS if f"`{op}`" not in text.split("## What requests may cost\n")[1].split("\n## ")[0]] == []


def full(op: str, count: int) -> bytes:
    """A message of that op whose longest arrays have so many parts, each of them as short as can be."""
    kind = OPS[op]
    message: Any = example(kind, full=False)
    shortest = example(kind, full=True)
    for field in fields(kind):
        value = getattr(shortest, field.name)
        if isinstance(value, tuple) and value:
            part = value[0]
            least = example(type(part), full=False) if hasattr(part, "__dataclass_fields__") else type(part)()
            message = replace(message, **{field.name: (least,) * count})
    return codec.encode(message, id=1 if kind.ANSWER else None)[0]


@pytest.mark.parametrize("op", WITH_ARRAYS)
def test_an_array_is_no_longer_than_its_bound(op: str) -> None:
    limits = STRANGER if op in OF_CLIENTS else SERVICE
    most = most_parts(OPS[op], limits)
    with pytest.raises(ProtocolError):
        codec.decode(full(op, most + 1), answers=lambda _: None, limits=limits)


def test_the_numbers_of_the_table_are_those_of_the_code() -> None:
    def says(op: str, *numbers: int) -> bool:
        bound = BOUND_OF[op]
        return all(f"{number:,}" in bound.work + bound.memory for number in numbers)

    assert says("metadata", describing.MAX_NAMES, lookups.PER_SERVER, describing.SEATS_EACH, sharing.PAGE)
    assert says("list_groups", coordination.PAGE, sharing.PAGE)
    assert says("produce", router.UNFOLDS_TO, 1 << 21)
    assert (shell.UNFOLDING_REST, shell.UNFOLDING_REST_OF_ALL) == (9.0, 1.0), "a tenth of the time, and half"
    assert says("read", GatewayConfig().client_max_in_flight, shell.MAX_REQUESTS, copy_reads.MOST_WAITING)
    assert ServerReadWindow(WindowSettings(1 << 20)).share == 1 << 19, "half of server_max_read_bytes"
    assert router.KEPT == 2, "twice as much"
    assert says("digest", requests.DIGEST_MAX_OFFSETS)
    seats = coordination.LARGE, coordination.LARGE_EACH, coordination.SMALL, coordination.SMALL_EACH
    assert says("commit_offsets", checks.MAX_POSITIONS, *seats) and says("group_heartbeat", *seats)
    assert says("begin_transaction", coordination.TRANSACTIONS_AT_ONCE, coordination.TRANSACTIONS_EACH)
    for op in ("create_topic", "alter_acls"):
        assert says(op, gateway_requests.CONTROL, gateway_requests.CONTROL_EACH)
    assert FairShare(8, reserved=True).plenty == 3, "three eighths"
    assert says("commit_offsets", gateway_requests.MOST_WAITING * SHARE, int(coordination.TIMEOUT_S))
    assert says("commit_offsets", SHARE, SHARE - 1, shell.MAX_CALLS)
    assert says("fetch", codec.MAX_PARTS)
