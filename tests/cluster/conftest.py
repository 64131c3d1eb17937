"""Checks what gateways answer in all tests of this folder against the published rules."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import cbor2
import pycddl
import pytest
from tidelog.cli.conformance.traffic import check_errors, schema_of
from tidelog.wire.link_session import Effect, Session
from tidelog.wire.messages import Hello, Message
from tidelog.wire.operation_errors import ERRORS

LONGEST, MOST = 1 << 16, 50
"""Answers with more bytes are not compared with their rule, and of each operation no more than so many: that takes a
millisecond each, and some tests send thousands. Errors are always looked at."""


class Answers:
    """What the clients of this process got from gateways. ``headers``: the last answer to each operation, as it came;
    ``faults``: what is in no rule of ``tidelog.cddl``, and errors that ``operation_errors`` does not have."""

    def __init__(self) -> None:
        self.headers: dict[str, bytes] = {}
        self.faults: list[str] = []
        self._asked: WeakKeyDictionary[Session, dict[int, str]] = WeakKeyDictionary()
        """The operation of each request without an answer, by its number."""
        self._checked: Counter[str] = Counter()

    def on_hello(self, session: Session, hello: Hello) -> None:
        """Watch a session from now on if it is that of a client."""
        if hello.role == "client":
            self._asked[session] = {0: hello.OP}

    def on_request(self, session: Session, id: int, op: str) -> None:
        if session in self._asked:
            self._asked[session][id] = op

    def on_received(self, session: Session, data: bytes | bytearray) -> None:
        """Check an answer, and the errors in deliveries and acks."""
        if session not in self._asked:
            return
        items = io.BytesIO(data)
        header: dict[str, Any] = cbor2.load(items)
        head = bytes(data[: items.tell()])
        op = self._asked[session].pop(header.get("re", -1), "")
        try:
            if op in ERRORS or "op" in header:
                check_errors(op, header)
            if op and "error" not in header:
                self.headers[op] = head
                self._checked[op] += 1
                if self._checked[op] <= MOST and len(head) <= LONGEST:
                    schema_of(f"answer-to-{op.replace('_', '-')}").validate_cbor(head)
        except (ValueError, pycddl.ValidationError) as error:
            self.faults.append(f"answer to {op or header.get('op')}: {error}: {header}")


@pytest.fixture(scope="module")
def answers() -> Iterator[Answers]:
    """Look over the shoulder of every link that a client of this process has to a gateway, for the tests of one
    module: the worker may run tests of other folders afterwards."""
    found = Answers()
    greet, ask, on_data = Session.greet, Session.ask, Session.on_data

    def greeting(self: Session, hello: Hello) -> list[Effect]:
        found.on_hello(self, hello)
        return greet(self, hello)

    def asking(self: Session, request: Message, token: Any, timeout_s: float, now: float) -> tuple[int, list[Effect]]:
        id, effects = ask(self, request, token, timeout_s, now)
        found.on_request(self, id, request.OP)
        return id, effects

    def receiving(self: Session, data: bytes | bytearray) -> list[Effect]:
        found.on_received(self, data)
        return on_data(self, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "greet", greeting)
        patch.setattr(Session, "ask", asking)
        patch.setattr(Session, "on_data", receiving)
        yield found


@pytest.fixture(autouse=True)
def rules_are_kept(answers: Answers) -> Iterator[None]:
    """Fail a test in which a gateway has broken a published rule."""
    answers.faults.clear()
    yield
    assert answers.faults == []
