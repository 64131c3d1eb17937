"""Records the messages between the services of ``tidelog dev`` while a client of the console wants to see them.

Every message between two services is recorded once, by the end that receives it. A request is named by its ``op``, an
answer by the op of its request. Messages of clients are not recorded, nor those of the console."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from tidelog.net.transport import Outgoing
from tidelog.wire.cbor import load_prefix
from tidelog.wire.codec import ANSWERS
from tidelog.wire.messages import PlayedMessage

KEPT = 2000
"""Number of messages that are kept; older ones are dropped."""
WORDS = 400
"""Most characters of a message that are shown."""
SERVICES = ("controller", "replica", "gateway")
"""Roles whose messages are recorded."""
_ENVELOPE = ("op", "id", "re")


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class MessageTap:
    """The recorder of the messages between all services of this process. From ``start_recording`` to
    ``stop_recording`` it keeps the newest ``KEPT`` messages."""

    def __init__(self, wall_ms: Callable[[], int] = _wall_ms) -> None:
        self.is_on = False
        self._wall_ms = wall_ms
        self._kept: deque[PlayedMessage] = deque(maxlen=KEPT)

    def start_recording(self) -> None:
        """Drop the messages that are kept, and keep messages from now on."""
        self._kept.clear()
        self.is_on = True

    def stop_recording(self) -> tuple[PlayedMessage, ...]:
        """Stop keeping messages, and return those that were recorded, oldest first. They stay until the next
        start."""
        self.is_on = False
        return tuple(self._kept)

    def record(self, sender: str, receiver: str, op: str, answer: bool, words: str) -> None:
        """Keep a message, with the present time. ``op`` names the request; with ``answer`` the message is the answer
        to that request. ``words`` are the contents for people. The oldest message is dropped if there are more than
        ``KEPT``."""
        self._kept.append(PlayedMessage(self._wall_ms(), sender, receiver, op, answer, words))


class ConnectionTap:
    """The tap at one end of a connection between two services. It passes the messages that this end receives to the
    recorder; it remembers requests that this end sends, so that their answers can be named."""

    def __init__(self, recorder: MessageTap, node: str) -> None:
        self._recorder = recorder
        self._node = node
        self._peer: str | None = None
        """Name of the service at the other end; "": the other end is none, and is not recorded; None: it has not sent
        its hello."""
        self._asked: dict[int, str] = {}

    def record_received(self, data: bytes) -> None:
        """Record a received message, if the recorder is on and the other end is a service. The first message of a
        connection is the hello that names the other end; it is not recorded."""
        if self._peer is None:
            hello = _header(data)
            self._peer = str(hello.get("node", "")) if hello.get("role") in SERVICES else ""
        elif self._peer and self._recorder.is_on:
            header = _header(data)
            re = header.get("re")
            op = str(header.get("op", "")) if re is None else self._asked.pop(re, "")
            content = {name: value for name, value in header.items() if name not in _ENVELOPE}
            self._recorder.record(self._peer, self._node, op, re is not None, _words(content, WORDS))

    def remember_requests(self, messages: Iterable[Outgoing]) -> None:
        """Remember the op of each request among messages that are sent, by its id, so that its answer can be named.
        While the recorder is off, all remembered requests are forgotten instead."""
        if not self._recorder.is_on:
            self._asked.clear()
        elif self._peer:
            for header in (_header(head) for head, *_ in messages):
                if "id" in header and "op" in header:
                    self._asked[header["id"]] = header["op"]


def _header(data: bytes) -> dict[str, Any]:
    """Decode and return the header of a message; an empty map if it is no map."""
    header, _ = load_prefix(data, ANSWERS.header_bytes, ANSWERS.header_items)
    return header if type(header) is dict else {}


def _words(value: object, most: int) -> str:
    """Return a value of a header as text for people, such as ``from 17, isr [r1 r2]``, cut to ``most`` characters."""
    if isinstance(value, dict):
        text = ", ".join(f"{name} {_within(one, most)}" for name, one in value.items())
    elif isinstance(value, bytes):
        text = f"({len(value)} bytes)"
    else:
        text = _within(value, most)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _within(value: object, most: int) -> str:
    """Return a value inside another one as text, with brackets around lists and braces around maps."""
    if isinstance(value, list):
        return f"[{' '.join(_within(one, most) for one in value)}]"
    if isinstance(value, dict):
        return f"{{{_words(value, most)}}}"
    return _words(value, most) if isinstance(value, bytes) else str(value)
