"""Hostile bytes, made by hypothesis, for every place at which a server or a library reads bytes of a stranger.

Each target draws an input and asserts what must hold for any bytes at all. ``test_fuzz.py`` runs each with a fixed
budget; ``make fuzz MINUTES=10`` goes on with new seeds until the time is over.
"""

from __future__ import annotations

import argparse
import random
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import cbor2
import trio
import trio.testing
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from tidelog.batch.format import CODECS, HEADER, NewRecord, decode_batch, encode_batch, seal_batch, split
from tidelog.errors import CorruptBatch, ProtocolError, TidelogError, Unreachable
from tidelog.net.origins import Origins
from tidelog.net.transport import Connection
from tidelog.net.websocket.frame_stream import FrameStream
from tidelog.net.websocket.transport import WebSocketTransport, _Port
from tidelog.wire import codec
from tidelog.wire.capabilities import STRICT
from tidelog.wire.codec import MESSAGES
from tidelog.wire.link_session import Answered, CloseLink, Deliver, Effect, Session, SessionOpened, Transmit
from tidelog.wire.messages import Done, Fetch, Hello, InitProducer, Message, Produce, Welcome

from support.hostile_wire import opening
from support.http.port import http_port
from support.message_strategies import instances

ATOMS = (
    *(bytes((n,)) for n in (0x00, 0x17, 0x40, 0x60, 0x80, 0xA0, 0xF4, 0xF5, 0xF6, 0xF7, 0xFF)),
    *(b"\x9f", b"\xbf", b"\x5f", b"\x7f", b"\xc0", b"\xc1\x00", b"\xd8\x1c", b"\xd8\x1d\x00"),
    *(b"\xc2\x49" + b"\xff" * 9, b"\xc4\x82\x1a\x3b\x9a\xca\x00\x01", b"\xd8\x23\x61(", b"\xd9\xd9\xf7"),
    *(b"\x1b" + b"\xff" * 8, b"\x3b" + b"\xff" * 8, b"\x1b\x80" + bytes(7), b"\x20"),
    *(b"\xfb\x7f\xf8" + bytes(6), b"\xf9\x7c\x00", b"\x62\xff\xfe"),
    *(head + b"\x7f" + b"\xff" * 7 for head in (b"\x5b", b"\x7b", b"\x9b", b"\xbb")),
    *(b"\x81" * 40, b"\x9a\x00\x01\x00\x00" + b"\x80" * 65536),
)
"""Pieces of invalid CBOR, to be put into valid messages."""
LIMIT = 1 << 16
"""The largest message that the fuzzed WebSocket accepts, in bytes."""
ALLOWED = {"client": frozenset({"init_producer", "produce", "credit"}), "gateway": frozenset({"fetch"})}
WELCOME = Welcome(1, "c", "g1", "gateway", 1 << 20, 3, capabilities=(STRICT,))


@st.composite
def mutated(draw: st.DrawFn, whole: bytes, atoms: tuple[bytes, ...] = ATOMS) -> bytes:
    """Draw a copy of ``whole`` with up to three random changes."""
    data = whole
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        to = min(len(data), at + draw(st.integers(0, 8)))
        new = draw(st.binary(max_size=8) | st.sampled_from(atoms) | st.just(data[at : at + 64] * 2))
        data = data[:at] + new + data[to:]
    return data


any_message = st.sampled_from(MESSAGES).flatmap(instances)


@st.composite
def encoded(draw: st.DrawFn, messages: st.SearchStrategy[Message] = any_message) -> bytes:
    """Draw the bytes of a message with a small id, which may be in use, sometimes with a payload that it may not
    have."""
    message = draw(messages)
    number = draw(st.integers(0, 5))
    id = number if message.ANSWER is not None else None
    head, _ = codec.encode(message, id=id, re=None if message.OP else number)
    return draw(mutated(head + draw(st.sampled_from((b"", b"\x41x", b"\x40", b"\x5a\x00\x00\x00\x01y")))))


# --- targets ---------------------------------------------------------------------------------------------


def decoder(data: st.DataObject) -> None:
    """Check that any bytes decode to a message that is the same after another round trip, or raise ``ProtocolError``
    with a close code; no header with more items than the limit is built."""
    cls = data.draw(st.sampled_from(MESSAGES))
    answer = None if cls.OP else cls  # a request is never the answer that a caller waits for
    wire = data.draw(encoded(instances(cls)) | encoded())
    try:
        decoded = codec.decode(wire, answers=lambda _: answer)
    except ProtocolError as error:
        assert error.detail.get("close_code", 1002) in (1002, 1007)
        return
    if decoded.message is not None:
        head, bulk = codec.encode(decoded.message, id=decoded.id, re=decoded.re)
        again = codec.decode(head + b"".join(map(bytes, codec.payload_buffers(bulk))), answers=lambda _: answer)
        assert type(again.message) is type(decoded.message)
        assert codec.encode(again.message, id=again.id, re=again.re)[0] == head


def items(data: st.DataObject) -> None:
    """Check that a header with more items than the limit is refused before it is built, however it is nested."""
    wide = data.draw(st.lists(st.integers(1, 40_000), min_size=1, max_size=4))
    body = b"".join(b"\x9a" + struct.pack(">I", width) + b"\x80" * width for width in wide)
    wire = b"\xa2\x62op\x64glow\x61x" + bytes((0x80 | len(wide),)) + body
    count = 5 + len(wide) + sum(wide)
    limits = codec.STRANGER
    with suppress(ProtocolError):
        codec.decode(wire, answers=lambda _: None, limits=limits)
        assert count <= limits.header_items and len(wire) <= limits.header_bytes


def accepting_session(data: st.DataObject) -> None:
    """Check a server's session against any input: nothing is delivered before a valid hello, or that the role may not
    send, or after a close; an id is not delivered twice before its answer; and no more than was sent. A message that
    cannot be decoded is answered if the number of a request or of a batch can be read, and only then."""
    session = Session(0.0, welcome=lambda hello: WELCOME, allowed=ALLOWED)
    hellos = st.builds(Hello, st.integers(0, 2), st.sampled_from(("client", "gateway", "king")), st.just("x"))
    known = st.sampled_from([cls for cls in MESSAGES if cls.OP in ("init_producer", "credit", "fetch", "produce")])
    requests = st.sampled_from((InitProducer(), Fetch("r1", 1, 1, ())))
    plain = st.builds(lambda request, id: codec.encode(request, id=id)[0], requests, st.integers(0, 4))
    owed: set[int] = set()
    role = ""
    if data.draw(st.booleans()):
        role = data.draw(st.sampled_from(sorted(ALLOWED)))
        asked = data.draw(st.sampled_from(((), (STRICT,))))
        session.on_data(codec.encode(Hello(1, role, "x", capabilities=asked), id=0)[0])
    for _ in range(data.draw(st.integers(1, 12))):
        wire = data.draw(plain | encoded(hellos) | encoded(known.flatmap(instances)) | encoded())
        effects = session.on_data(wire)
        check_refusals(effects, owed)
        for effect in effects:
            match effect:
                case SessionOpened(peer):
                    assert role == "" and isinstance(peer, Hello) and peer.version == 1 and peer.role in ALLOWED
                    role = peer.role
                case Deliver(id, message):
                    assert role and message.OP in ALLOWED[role]
                    assert id not in owed or id is None
                    owed |= set() if id is None else {id}
                    assert len(owed) <= WELCOME.max_in_flight
                case CloseLink():
                    return
        if owed and data.draw(st.booleans()):
            id = data.draw(st.sampled_from(sorted(owed)))
            owed.discard(id)
            session.answer(id, data.draw(st.sampled_from((Done(), TidelogError("no", code="FORBIDDEN")))))


def check_refusals(effects: list[Effect], owed: set[int]) -> None:
    """Check what a session does with one message: it never closes after an answer (but to a hello), answers no number
    twice, and gives no batch to its owner that it has refused."""
    answered: list[int] = []
    refused: set[int] = set()
    for effect in effects:
        if isinstance(effect, Transmit):
            header = cbor2.loads(effect.head)
            answered += [header["re"]] if "re" in header else []
            refused |= {ack["id"] for ack in header.get("acks", ())}
        elif isinstance(effect, Deliver) and isinstance(effect.message, Produce):
            sizes = sum(part.size for part in effect.message.parts)
            if refused:
                assert effect.message.parts and codec.payload_size(effect.message.payload) <= sizes
    assert len(answered) <= 1 and not owed.intersection(answered)


def connecting_session(data: st.DataObject) -> None:
    """Check a library's session against any input of a server: each request ends exactly once, and nothing is
    raised."""
    session = Session(0.0)
    session.greet(Hello(1, "client", "x"))
    ended: dict[int, int] = {}
    asked = 0
    steps: list[Any] = []
    if data.draw(st.booleans()):
        steps += session.on_data(codec.encode(WELCOME, re=0)[0])
    requests = st.sampled_from([cls for cls in MESSAGES if cls.OP and cls.ANSWER and cls is not Hello])
    for _ in range(data.draw(st.integers(1, 10))):
        if session.peer is not None:
            asked += 1
            steps += session.ask(data.draw(requests.flatmap(instances)), asked, 5.0, 0.0)[1]
        steps += session.on_data(data.draw(encoded()))
    steps += session.on_tick(data.draw(st.sampled_from((1.0, 6.0))))
    steps += session.on_closed(Unreachable("gone"))
    for effect in steps:
        assert isinstance(effect, Transmit | Deliver | Answered | SessionOpened | CloseLink)
        if isinstance(effect, Answered):
            ended[effect.token] = ended.get(effect.token, 0) + 1
    assert ended == dict.fromkeys(range(1, asked + 1), 1)


def batches(data: st.DataObject) -> None:
    """Check that a changed batch is refused or has the same records, and that an invented batch with a correct CRC is
    refused or has as many records as its header says, of the right types."""
    value = st.none() | st.binary(max_size=20)
    headers = st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=3)), max_size=2).map(tuple)
    record = st.builds(NewRecord, value, value, st.integers(0, 2**40), headers)
    written = data.draw(st.lists(record, min_size=1, max_size=8))
    good = encode_batch(written, codec=data.draw(st.sampled_from(CODECS)))
    changed = data.draw(mutated(good))
    with suppress(CorruptBatch):
        assert [r[-4:] for r in decode_batch(changed)] == [r[-4:] for r in decode_batch(good)]
    with suppress(CorruptBatch):
        assert b"".join(bytes(part) for _, part in split(changed)) == changed
    if len(changed) < HEADER.size:
        return
    header = type(next(iter(split(good)))[0])(*HEADER.unpack_from(changed))
    forged = seal_batch(header, changed[HEADER.size :])
    with suppress(CorruptBatch):
        records = decode_batch(forged)
        assert len(records) <= header.record_count
        for found in records:
            assert isinstance(found.value, bytes | None) and isinstance(found.key, bytes | None)
            assert header.base_offset <= found.offset < header.base_offset + header.record_count


def websocket(data: st.DataObject) -> None:
    """Check the port with any bytes in any portions: the result is a page, a refusal, or messages within the limit
    followed by ``ProtocolError`` or ``Unreachable``; nothing else is raised, and nothing waits beyond its
    deadline."""
    opcode, length = st.sampled_from((0x82, 0x02, 0x80, 0x00, 0x89, 0x8A, 0x88, 0x81, 0xC2)), st.integers(0, 200)
    frames = st.builds(lambda op, n: _frame(op, bytes(n)), opcode, length) | st.just(_frame(0x82, bytes(LIMIT + 1)))
    body = b"".join(data.draw(st.lists(frames, max_size=6)))
    wire = data.draw(mutated(opening(), (b"\r\n", b"\r\n\r\n", b"\xff", b": ", b"\x00", b"x" * 20_000)))
    wire += data.draw(
        mutated(body, (b"\x82\xff\x7f" + b"\xff" * 7, b"\x02\x80\0\0\0\0" * 50, b"\x89\x80\0\0\0\0" * 50))
    )
    step = data.draw(st.sampled_from((1, 7, 1 << 20)))
    trio.run(_serve, wire, max(step, len(wire) // 100), clock=trio.testing.MockClock(autojump_threshold=0))


def _frame(first: int, data: bytes) -> bytes:
    size = len(data)
    if size < 126:
        head = bytes((0x80 | size,))
    else:
        head = struct.pack(">BH", 0xFE, size) if size < 1 << 16 else struct.pack(">BQ", 0xFF, size)
    return bytes((first,)) + head + b"\x01\x02\x03\x04" + data


async def _serve(wire: bytes, step: int) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    transport = WebSocketTransport(max_message_bytes=LIMIT)

    async def send() -> None:
        with suppress(trio.BrokenResourceError):
            for start in range(0, len(wire), step):
                await theirs.send_all(wire[start : start + step])
            await theirs.send_eof()

    async def read() -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while await theirs.receive_some(1 << 16):
                continue

    async def no_handler(connection: Connection) -> None:
        """Nothing is served: ``take`` receives itself."""

    async def take() -> None:
        stream: Any = ours
        port = _Port(no_handler, {}, Origins())
        opened: FrameStream | None = await transport._answer_handshake(stream, "fuzz", "", port)
        if opened is None:
            return
        with suppress(ProtocolError, Unreachable):
            while True:
                assert len(await opened.receive()) <= LIMIT
        await opened.aclose()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            nursery.start_soon(read)
            await take()
            nursery.cancel_scope.cancel()


HTTP_BODY = b'{"records": [{"key": "k", "value": "v", "headers": {"a": "b"}}]}'
HTTP_CHUNKED = (
    b"POST /v1/topics/orders/records HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(HTTP_BODY), HTTP_BODY)
)
HTTP_PLAIN = (
    b"POST /v1/topics/orders/records?acks=all HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(HTTP_BODY), HTTP_BODY)
)
HTTP_ATOMS = (
    *(b"\r\n", b"\n", b"\r", b"\0", b" ", b"\xff", b"%2f", b"%00", b"%c0%af", b"..", b"chunked", b"\r\n\r\n"),
    *(b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"x" * 20_000, b"0\r\n\r\n", HTTP_PLAIN),
)


def http(data: st.DataObject) -> None:
    """Check a gateway's HTTP with any bytes: every answer is a whole response with a known status, a connection that
    was refused serves nothing more, and nothing is left behind."""
    wire = data.draw(mutated(data.draw(st.sampled_from((HTTP_CHUNKED, HTTP_PLAIN))), HTTP_ATOMS)) + HTTP_PLAIN
    step = data.draw(st.sampled_from((1, 7, 1 << 20)))
    trio.run(_serve_http, wire, max(step, len(wire) // 100), clock=trio.testing.MockClock(autojump_threshold=0))


async def _serve_http(wire: bytes, step: int) -> None:
    async with http_port() as port:
        client = port.connect()

        async def send() -> None:
            with suppress(trio.BrokenResourceError):
                for start in range(0, len(wire), step):
                    await client.stream.send_all(wire[start : start + step])

        port.nursery.start_soon(send)
        with trio.fail_after(300), suppress(EOFError, trio.BrokenResourceError):
            while True:
                answer = await client.answer()
                assert answer.status in (400, 403, 404, 405, 408, 413, 415, 431, 501), answer
                assert answer.code
                if answer.headers.get("connection") == "close":
                    assert await client.is_closed()
                    break
        await trio.testing.wait_all_tasks_blocked()
        assert port.backlog.total == 0 and not port.clients._clients and port.shell.router.counts.batches == 0


TARGETS: dict[str, tuple[Callable[[st.DataObject], None], int]] = {
    "decoder": (decoder, 120),
    "items": (items, 40),
    "accepting session": (accepting_session, 60),
    "connecting session": (connecting_session, 40),
    "batches": (batches, 120),
    "websocket": (websocket, 60),
    "http": (http, 60),
}
"""Each target, with the number of inputs that ``make test`` gives it, for a few seconds."""


def run(name: str, inputs: int, start: int) -> None:
    """Run a target with so many inputs from a seed. Raises the first failure, with the smallest input that shows
    it."""
    quiet = settings(
        max_examples=inputs, deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=True
    )
    seed(start)(quiet(given(data=st.data())(TARGETS[name][0])))()


def main() -> None:
    """Run all targets with new seeds until the time is over."""
    parser = argparse.ArgumentParser(description="Hostile input from new seeds until the time is over.")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="the first one (default: random)")
    parser.add_argument("--target", choices=TARGETS, action="append", help="only this one")
    given_ = parser.parse_args()
    end, start, done = time.monotonic() + 60 * given_.minutes, given_.seed, 0
    while time.monotonic() < end:
        for name in given_.target or TARGETS:
            print(f"seed {start}: {name}", flush=True)
            run(name, TARGETS[name][1], start)
            done += TARGETS[name][1]
        start += 1
    print(f"up to {done} inputs, nothing found")


if __name__ == "__main__":
    main()
