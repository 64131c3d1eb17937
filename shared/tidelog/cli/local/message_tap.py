"""Records the messages between the services of ``tidelog dev`` while a client has asked for them.

Every message between two services is recorded once, by the end that receives it. A request is named by its ``op``, an
answer by the op of its request. Messages of clients are not recorded, nor those of the console.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from tidelog.wire.cbor import load_prefix
from tidelog.wire.codec import ANSWERS
from tidelog.wire.messages import Payload, PlayedMessage

KEPT = 2000
"""Number of messages that are kept, the newest."""
WORDS = 400
"""Most characters of a message that are shown."""
SERVICES = ("controller", "replica", "gateway")
_ENVELOPE = ("op", "id", "re")


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class MessageTap:
    """The recorded messages of all services, in order."""

    def __init__(self, wall_ms: Callable[[], int] = _wall_ms) -> None:
        self.is_on = False
        self._wall_ms = wall_ms
        self._kept: deque[PlayedMessage] = deque(maxlen=KEPT)

    def start_recording(self) -> None:
        """Begin recording, and drop earlier messages."""
        self._kept.clear()
        self.is_on = True

    def stop_recording(self) -> tuple[PlayedMessage, ...]:
        """End recording, and return the messages."""
        self.is_on = False
        return tuple(self._kept)

    def record(self, sender: str, receiver: str, op: str, answer: bool, words: str) -> None:
        """Add the next message."""
        self._kept.append(PlayedMessage(self._wall_ms(), sender, receiver, op, answer, words))


class Ear:
    """The tap at one end of a connection."""

    def __init__(self, recorder: MessageTap, node: str) -> None:
        self._recorder = recorder
        self._node = node
        self._peer: str | None = None
        """The peer; "": one that is not recorded; None: it has not sent its hello."""
        self._asked: dict[int, str] = {}

    def hear(self, data: bytes) -> None:
        """Record a message that came in."""
        if self._peer is None:
            hello = _header(data)
            self._peer = str(hello.get("node", "")) if hello.get("role") in SERVICES else ""
        elif self._peer and self._recorder.is_on:
            header = _header(data)
            re = header.get("re")
            op = str(header.get("op", "")) if re is None else self._asked.pop(re, "")
            content = {name: value for name, value in header.items() if name not in _ENVELOPE}
            self._recorder.record(self._peer, self._node, op, re is not None, _words(content, WORDS))

    def say(self, messages: Iterable[tuple[bytes, Payload]]) -> None:
        """Note messages that are sent, since answers are named by their requests."""
        if not self._recorder.is_on:
            self._asked.clear()
        elif self._peer:
            for header in (_header(head) for head, _ in messages):
                if "id" in header and "op" in header:
                    self._asked[header["id"]] = header["op"]


def _header(data: bytes) -> dict[str, Any]:
    header, _ = load_prefix(data, ANSWERS.header_bytes, ANSWERS.header_items)
    return header if type(header) is dict else {}


def _words(value: object, most: int) -> str:
    """Return the contents of a header for people: ``from 17, isr [r1 r2]``."""
    if isinstance(value, dict):
        text = ", ".join(f"{name} {_within(one, most)}" for name, one in value.items())
    elif isinstance(value, bytes):
        text = f"({len(value)} bytes)"
    else:
        text = _within(value, most)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _within(value: object, most: int) -> str:
    if isinstance(value, list):
        return f"[{' '.join(_within(one, most) for one in value)}]"
    if isinstance(value, dict):
        return f"{{{_words(value, most)}}}"
    return _words(value, most) if isinstance(value, bytes) else str(value)
