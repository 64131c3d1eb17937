"""The JavaScript client's own tests, in Node's test runner; the messages that it sends are checked against the
protocol's schema."""

from __future__ import annotations

import json
import os
import re
import subprocess
from functools import cache
from pathlib import Path

import pycddl
import pytest
import tidelog.wire
from support.js_tools import NODE, needs_node, on_each_node
from tidelog.wire import codec

HERE = Path(__file__).resolve().parent
CLIENT = HERE.parents[1] / "shared" / "js"
CDDL = (Path(tidelog.wire.__file__).parent / "tidelog.cddl").read_text(encoding="utf-8")
OPS = {"hello", "metadata", "produce", "subscribe", "credit", "unsubscribe", "read", "list_offset", "init_producer"}
OPS |= {"use_producer", "release_producer", "rotate_ticket_keys"}
OPS |= {"join_group", "group_heartbeat", "leave_group", "commit_offsets", "fetch_offsets"}
OPS |= {"list_transactions", "end_transaction", "abort_staged", "settle_transaction"}
OPS |= {"put_token", "revoke_tokens", "alter_acls", "alter_quotas", "describe_access"}
TALKING = ("client.test.js", "group.test.js", "securing.test.js", "transactions.test.js", "unreadable.test.js")
"""Tests in which the client talks to gateways."""
LINES = 700


@cache
def schema(op: str) -> pycddl.Schema:
    return pycddl.Schema(f"root = {op.replace('_', '-')}\n{CDDL}")


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from vectors import everything

    path = tmp_path_factory.mktemp("vectors") / "vectors.json"
    path.write_text(json.dumps(everything()))
    return path


def run(node: str, test: str, vectors: Path, **environment: str) -> None:
    done = subprocess.run(
        [node, "--test", "--test-reporter=tap", HERE / test],
        env=os.environ | {"TIDELOG_VECTORS": str(vectors)} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    failures = re.findall(r"^not ok.*?\n  \.\.\.$", done.stdout, re.M | re.S)
    assert done.returncode == 0, "\n".join(failures) or done.stderr


IN_PAGES = "console.test.js"
"""Its modules run in browsers only."""
PARTS = sorted({path.name for path in HERE.glob("*.test.js")} - {*TALKING, IN_PAGES})


@on_each_node
@pytest.mark.parametrize("test", PARTS)
def test_of_a_part(test: str, node: str, vectors: Path) -> None:
    run(node, test, vectors)


@needs_node
def test_the_console(vectors: Path) -> None:
    assert NODE is not None
    run(NODE, IN_PAGES, vectors)


@on_each_node
def test_the_messages_of_the_javascript_client_are_those_of_the_protocol(
    node: str, vectors: Path, tmp_path: Path
) -> None:
    sent = tmp_path / "sent"
    for test in TALKING:
        run(node, test, vectors, TIDELOG_SENT=str(sent))
    messages = {bytes.fromhex(line) for line in sent.read_text().splitlines()}
    ops = set()
    for data in sorted(messages):
        decoded = codec.decode(data, answers=lambda _: None)
        assert decoded.message is not None
        head, _ = codec.encode(decoded.message, id=decoded.id)
        payload = codec.payload_size(getattr(decoded.message, "payload", b""))
        header = data[: len(data) - payload - (len(codec.bytes_head(payload)) if payload else 0)]
        schema(decoded.op).validate_cbor(header)
        assert len(head) == len(data) - payload, f"{decoded.op} says what is the default"
        ops.add(decoded.op)
    assert ops >= OPS


@pytest.mark.parametrize(
    "path",
    sorted([*CLIENT.glob("*.js"), *CLIENT.glob("src/**/*.js")]),
    ids=lambda path: str(path.relative_to(CLIENT)),
)
def test_modules_are_short_enough_to_read(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LINES
