"""What the programs of a world say to the cluster: a line of the trace for each message, and moments for faults.

The messages are seen where a program's client hands them to its connection, and where it takes them from there. A
*moment* is a message of a kind that matters to programs: a batch was sent, its ack has arrived, records were
delivered, a commit was sent, its answer has arrived, or a member of a group has learnt of other partitions. Faults
wait for the n-th moment of a kind of one program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tidelog.client.options import GroupOptions
from tidelog.net.transport import Outgoing
from tidelog.net.websocket.frame_stream import FrameStream
from tidelog.testing.shells.streams import NODE
from tidelog.wire.cbor import load_prefix

SENT = {
    "produce": "send",
    "commit_offsets": "commit",
    "join_group": "join",
    "leave_group": "leave",
    "begin_transaction": "begin",
    "end_transaction": "end",
    "prepare_transaction": "prepare",
    "commit_staged": "commit_staged",
    "init_producer": "init_producer",
}
"""The moment at which a message is sent, by its name on the wire (``op``)."""
ANSWERED = {
    "commit_offsets": "committed",
    "join_group": "joined",
    "begin_transaction": "begun",
    "end_transaction": "ended",
    "commit_staged": "staged_committed",
}
"""The moment at which the answer to a request has arrived."""
RECEIVED = {"produced": "ack", "delivery": "deliver"}
WORK = frozenset({"send", "ack", "deliver", "commit", "begin", "end", "prepare", "commit_staged"})
"""The moments at which a program works, rather than waits."""
REBALANCED = "rebalanced"
"""The moment at which a member of a group learns from a heartbeat that its partitions are others than before."""
SESSION_MS = GroupOptions().session_timeout_s * 1000
UNTOLD = ("op", "id", "re", "token", "ticket", "principal")
HEADER_BYTES, HEADER_ITEMS = 1 << 20, 1 << 16
TEXT_CHARS = 120


class Traffic:
    """The messages of all programs of a run. ``log`` gets a line for each; ``on_moment`` is called with a program's
    node, the kind of the moment and its number, from 1, among those of this kind of the program."""

    def __init__(self, log: Callable[[str, str], None], now: Callable[[], float]) -> None:
        self.counts: dict[str, Counter[str]] = {}
        """How many moments of each kind there were, by program."""
        self.topics: dict[str, str] = {}
        """The names of topics, by topic id: lines have names."""
        self.session_s = 0.0
        """The longest session timeout of the members of groups, in seconds; 0 if no program is a member of one."""
        self.worked_at = 0.0
        """When a program last sent, received or committed records."""
        self.on_moment: Callable[[str, str, int], None] = lambda node, kind, number: None
        self._log = log
        self._now = now
        self._last_topic: dict[str, str] = {}
        self._assigned: dict[tuple[str, str], str] = {}
        """The partitions of each member, by its node and group."""

    def sent_to(self, program: str) -> str:
        """Return the name of the topic to which a program has sent records last; "" if it has sent none."""
        return self._last_topic.get(program, "")

    def observe(self, connection: FrameStream) -> None:
        """Log the messages that go over a connection that a program has opened."""
        node = NODE.get()
        asked: dict[int, tuple[str, str]] = {}
        send_now, send_many, receive = connection.send_now, connection.send_many, connection.receive

        def sent_now(messages: Sequence[Outgoing]) -> bool:
            done = send_now(messages)
            self._sent(node, asked, messages)
            return done

        async def sent_many(messages: Sequence[Outgoing]) -> None:
            self._sent(node, asked, messages)
            await send_many(messages)

        async def received() -> bytes:
            data = await receive()
            self._received(node, asked, data)
            return data

        vars(connection).update(send_now=sent_now, send_many=sent_many, receive=received)

    def _sent(self, node: str, asked: dict[int, tuple[str, str]], messages: Sequence[Outgoing]) -> None:
        for head, _, size in messages:
            header = load_prefix(head, HEADER_BYTES, HEADER_ITEMS)[0]
            op = str(header.get("op", ""))
            if "id" in header:
                asked[header["id"]] = op, str(header.get("group", ""))
            if op == "produce":
                topic_id = _text(header["parts"][0]["topic_id"])
                self._last_topic[node.partition("#")[0]] = self.topics.get(topic_id, "")
            if op == "join_group":
                self.session_s = max(self.session_s, header.get("session_timeout_ms", SESSION_MS) / 1000)
            self._note(node, ">", op, header, size, SENT.get(op))

    def _received(self, node: str, asked: dict[int, tuple[str, str]], data: bytes) -> None:
        header = load_prefix(data, HEADER_BYTES, HEADER_ITEMS)[0]
        if "re" in header:
            op, group = asked.pop(header["re"], ("", ""))
            moment = None if header.get("error") else ANSWERED.get(op)
            if op in ("join_group", "group_heartbeat") and not header.get("error"):
                moment = self._assign(node, group, _text(header.get("assignment"))) or moment
            self._note(node, "<", f"answer to {op}", header, len(data), moment)
        else:
            op = str(header.get("op", ""))
            if op == "delivery" and len(data) < 100 and not header.get("error"):
                return  # only a high watermark
            self._note(node, "<", op, header, len(data), RECEIVED.get(op))

    def _assign(self, node: str, group: str, partitions: str) -> str | None:
        """Keep the partitions of a member, and return the moment if it had others before."""
        before = self._assigned.get((node, group), partitions)
        self._assigned[node, group] = partitions
        return REBALANCED if before != partitions else None

    def _note(self, node: str, way: str, op: str, header: dict[str, Any], size: int, moment: str | None) -> None:
        """Log a message and report its moment."""
        told = ", ".join(f"{name}={_text(value)}" for name, value in header.items() if name not in UNTOLD and value)
        for topic_id, topic in self.topics.items():
            told = told.replace(f"topic_id={topic_id}", f"topic={topic}")
        self._log(node, f"{way} {op} {told[:TEXT_CHARS]} ({size} bytes)")
        if moment is None:
            return
        if moment in WORK:
            self.worked_at = self._now()
        program = node.partition("#")[0]
        counts = self.counts.setdefault(program, Counter())
        counts[moment] += 1
        self.on_moment(program, moment, counts[moment])


def _text(value: object) -> str:
    """Return a value of a message in few characters."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}={_text(part)}" for name, part in value.items() if part) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_text(part) for part in value) + "]"
    return value.hex() if isinstance(value, bytes) else str(value)
