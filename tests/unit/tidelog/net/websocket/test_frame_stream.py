"""Frames: against wsproto as an independent peer, and against every frame that RFC 6455 forbids."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from tidelog.errors import ProtocolError, TidelogError, Unreachable
from tidelog.net.transport import outgoing
from tidelog.net.websocket.backlog import Backlog
from tidelog.net.websocket.frame_codec import BINARY, frame_head, mask_buffers, mask_bytes
from tidelog.net.websocket.frame_stream import MAX_CONTROLS, MAX_FRAGMENTS, PROGRESS_BYTES, PROGRESS_S, FrameStream
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong

Raw = trio.StapledStream[trio.abc.SendStream, trio.abc.ReceiveStream]
LIMIT = 1 << 20
SIZES = [0, 1, 125, 126, 65535, 65536, 300_000]


def ends(*, server: bool, early: bytes = b"") -> tuple[FrameStream, Raw]:
    ours, theirs = trio.testing.memory_stream_pair()
    return FrameStream(ours, "peer", server=server, max_bytes=LIMIT, early=early), theirs


async def read_until(stream: Raw, peer: Connection, kind: type) -> list[object]:
    """Feed wsproto until it has seen an event of this kind that ends a message; all its events."""
    events: list[object] = []
    while True:
        peer.receive_data(await stream.receive_some(1 << 16))
        events += peer.events()
        if events and isinstance(events[-1], kind) and getattr(events[-1], "message_finished", True):
            return events


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("server", [True, False])
async def test_wsproto_reads_what_we_send(size: int, server: bool) -> None:
    ours, raw = ends(server=server)
    peer = Connection(ConnectionType.CLIENT if server else ConnectionType.SERVER)
    payload = bytes(range(256)) * (size // 256 + 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.send, b"head", [payload[:size], memoryview(b"tail")])
        events = await read_until(raw, peer, BytesMessage)
    got = b"".join(bytes(e.data) for e in events if isinstance(e, BytesMessage))
    assert got == b"head" + payload[:size] + b"tail"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("server", [True, False])
async def test_we_read_what_wsproto_sends(size: int, server: bool) -> None:
    ours, raw = ends(server=server)
    peer = Connection(ConnectionType.CLIENT if server else ConnectionType.SERVER)
    data = bytes(range(256)) * (size // 256 + 1)
    wire = peer.send(BytesMessage(data[:size])) + peer.send(Ping(b"?"))
    wire += peer.send(BytesMessage(b"a", message_finished=False)) + peer.send(Ping(b"!"))
    wire += peer.send(BytesMessage(b"b"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(raw.send_all, wire)
        assert await ours.receive() == data[:size]
        assert await ours.receive() == b"ab"
        nursery.start_soon(ours.send_many, [])
        assert await read_until(raw, peer, Pong) == [Pong(b"!")]  # only the latest ping is answered


async def test_many_messages_leave_in_order_and_in_one_send() -> None:
    ours, raw = ends(server=True)
    other = FrameStream(raw, "us", server=False, max_bytes=LIMIT)
    messages = [outgoing(b"%d" % n, b"x" * (n % 7)) for n in range(500)]
    await ours.send_many(messages)
    for head, payload, _ in messages:
        assert await other.receive() == head + payload


async def test_bytes_that_came_with_the_handshake_are_read_first() -> None:
    ours, raw = ends(server=False, early=b"\x82\x03ab")
    await raw.send_all(b"c\x82\x01d")
    assert [await ours.receive(), await ours.receive()] == [b"abc", b"d"]


async def test_frames_byte_by_byte() -> None:
    ours, raw = ends(server=True)
    frame = b"\x82\xfe\x00\x80" + b"\x01\x02\x03\x04" + mask_bytes(b"z" * 128, b"\x01\x02\x03\x04")
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def drip() -> None:
            for byte in frame:
                await raw.send_all(bytes((byte,)))

        assert await ours.receive() == b"z" * 128


@given(st.lists(st.tuples(st.integers(0, 300), st.binary(min_size=4, max_size=4)), max_size=4), st.data())
def test_however_the_bytes_arrive_the_messages_are_the_same(
    messages: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    payloads = [bytes(range(256)) * 2 for _ in messages]
    payloads = [payload[:size] for payload, (size, _) in zip(payloads, messages, strict=True)]
    wire = b"".join(
        frame_head(BINARY, len(payload), mask) + mask_bytes(payload, mask)
        for payload, (_, mask) in zip(payloads, messages, strict=True)
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=6)))

    async def exchange() -> None:
        ours, raw = ends(server=True, early=wire[: cuts[0]] if cuts else wire)
        for start, end in pairwise([*cuts, len(wire)]):
            await raw.send_all(wire[start:end])
        assert [await ours.receive() for _ in payloads] == payloads

    trio.run(exchange)


MASK = b"\0\0\0\0"
FORBIDDEN = {
    "reserved bit": (b"\xc2\x80" + MASK, 1002),
    "unknown opcode": (b"\x83\x80" + MASK, 1002),
    "unknown control opcode": (b"\x8b\x80" + MASK, 1002),
    "not masked": (b"\x82\x00", 1002),
    "fragmented ping": (b"\x09\x80" + MASK, 1002),
    "long ping": (b"\x89\xfe\x00\x80" + MASK + bytes(128), 1002),
    "continuation of nothing": (b"\x80\x80" + MASK, 1002),
    "message within a message": (b"\x02\x81" + MASK + b"a" + b"\x82\x81" + MASK + b"b", 1002),
    "length not minimal, 16 bits": (b"\x82\xfe\x00\x05" + MASK + b"hello", 1002),
    "length not minimal, 64 bits": (b"\x82\xff" + bytes(6) + b"\xff\xff" + MASK, 1002),
    "negative length": (b"\x82\xff\xff" + bytes(7) + MASK, 1002),
    "text": (b"\x81\x82" + MASK + b"hi", 1003),
    "declared too large": (b"\x82\xff" + struct.pack(">Q", LIMIT + 1) + MASK, 1009),
    "too large in fragments": (
        b"\x02\xff" + struct.pack(">Q", LIMIT) + MASK + bytes(LIMIT) + b"\x80\x81" + MASK + b"x",
        1009,
    ),
    "endless empty fragments": (b"\x02\x80" + MASK + (b"\x00\x80" + MASK) * MAX_FRAGMENTS, 1002),
    "a flood of pings": ((b"\x89\x80" + MASK) * (MAX_CONTROLS + 1), 1002),
    "a flood of pongs": ((b"\x8a\x80" + MASK) * (MAX_CONTROLS + 1), 1002),
}


@pytest.mark.parametrize(("wire", "code"), FORBIDDEN.values(), ids=FORBIDDEN)
async def test_forbidden_frames(wire: bytes, code: int, autojump_clock: trio.testing.MockClock) -> None:
    ours, raw = ends(server=True)
    await raw.send_all(wire)
    with pytest.raises(ProtocolError) as caught:
        await ours.receive()
    assert caught.value.detail["close_code"] == code
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.aclose, code, caught.value.message)
        (close,) = await read_until(raw, Connection(ConnectionType.CLIENT), CloseConnection)
        assert close == CloseConnection(code=code, reason=caught.value.message)


async def test_a_server_must_not_mask() -> None:
    ours, raw = ends(server=False)
    await raw.send_all(b"\x82\x81" + MASK + b"a")
    with pytest.raises(ProtocolError, match="servers do not"):
        await ours.receive()


async def test_pings_of_a_patient_peer_are_welcome_for_ever(mock_clock: trio.testing.MockClock) -> None:
    ours, raw = ends(server=True)
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def ping_on() -> None:
            for _ in range(5 * MAX_CONTROLS):
                await raw.send_all(b"\x89\x80" + MASK)
                await trio.testing.wait_all_tasks_blocked()
                mock_clock.jump(0.1)
            await raw.send_all(b"\x82\x81" + MASK + b"a")

        assert await ours.receive() == b"a"


LONG = b"\x82\xff" + struct.pack(">Q", LIMIT) + MASK
DRIPPED = {
    "half a head": (b"\x82\xff", b""),
    "a message": (LONG, b"x"),
    "a message in fragments": (b"\x02\x81" + MASK + b"x", b"\x00\x81" + MASK + b"x"),
    "pings in a message": (b"\x02\x81" + MASK + b"x", (b"\x89\xfd" + MASK + bytes(125)) * 40),
    "a ping": (b"\x89\xfd" + MASK, b"x"),
}


@pytest.mark.parametrize(("begin", "more"), DRIPPED.values(), ids=DRIPPED)
async def test_a_message_that_does_not_get_on_ends_the_connection(
    begin: bytes, more: bytes, mock_clock: trio.testing.MockClock
) -> None:
    """However alive the peer is."""
    ours, raw = ends(server=True)
    began = trio.current_time()
    with pytest.raises(ProtocolError, match="less than 16384 bytes of it in 15 s") as caught:
        await while_dripping(mock_clock, ours, raw, begin, more)
    assert caught.value.detail["close_code"] == 1013
    assert trio.current_time() - began == PROGRESS_S


async def test_a_server_whose_message_does_not_get_on_is_gone(mock_clock: trio.testing.MockClock) -> None:
    """Which is no fault of the protocol: the client goes to another one."""
    ours, raw = ends(server=False)
    with pytest.raises(Unreachable, match="less than 16384 bytes of it in 15 s"):
        await while_dripping(mock_clock, ours, raw, b"\x82\x7d", b"x")


async def while_dripping(
    clock: trio.testing.MockClock, ours: FrameStream, raw: Raw, begin: bytes, more: bytes
) -> None:
    """Receive from a peer that sends ``begin``, then ``more`` every half second."""
    failure: BaseException | None = None

    async def drip() -> None:
        await raw.send_all(begin)
        for _ in range(100):
            await pass_time(clock, 0.5)
            await raw.send_all(more)
        await raw.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(drip)
        try:
            await ours.receive()
        except TidelogError as error:
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def pass_time(clock: trio.testing.MockClock, seconds: float) -> None:
    """Once all have done what they can."""
    await trio.testing.wait_all_tasks_blocked()
    clock.jump(seconds)


async def test_a_slow_message_that_gets_on_is_waited_for(mock_clock: trio.testing.MockClock) -> None:
    ours, raw = ends(server=True)
    began = trio.current_time()

    async def send() -> None:
        await raw.send_all(LONG)
        for _ in range(LIMIT // PROGRESS_BYTES):
            await pass_time(mock_clock, PROGRESS_S - 1)
            await raw.send_all(bytes(PROGRESS_BYTES))
        await raw.send_all(b"\x82\x82" + MASK + b"a")
        await pass_time(mock_clock, PROGRESS_S - 1)
        await raw.send_all(b"b")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        assert len(await ours.receive()) == LIMIT
        assert trio.current_time() - began == LIMIT / PROGRESS_BYTES * (PROGRESS_S - 1)
        assert await ours.receive() == b"ab"


async def test_between_messages_nobody_is_hurried(mock_clock: trio.testing.MockClock) -> None:
    ours, raw = ends(server=True)

    async def send() -> None:
        halves = (b"\x82\x81" + MASK, b"a"), (b"\x89", b"\x80" + MASK), (b"\x82", b"\x81" + MASK + b"b")
        for half, other_half in halves:
            await raw.send_all(half)
            await pass_time(mock_clock, PROGRESS_S - 1)
            await raw.send_all(other_half)
            await pass_time(mock_clock, 10 * PROGRESS_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        assert [await ours.receive() for _ in range(2)] == [b"a", b"b"]


async def test_the_first_message_may_be_bounded_by_itself() -> None:
    near, raw = trio.testing.memory_stream_pair()
    ours = FrameStream(near, "peer", server=True, max_bytes=LIMIT, first_bytes=5)
    await raw.send_all(b"\x82\x85" + MASK + b"hello" + LONG + bytes(LIMIT))
    assert [len(await ours.receive()) for _ in range(2)] == [5, LIMIT]
    near, raw = trio.testing.memory_stream_pair()
    ours = FrameStream(near, "peer", server=True, max_bytes=LIMIT, first_bytes=5)
    await raw.send_all(b"\x82\x86" + MASK)
    with pytest.raises(ProtocolError, match="the limit is 5"):
        await ours.receive()


async def test_where_too_much_is_buffered_the_connection_that_began_first_ends_and_others_get_through() -> None:
    backlog = Backlog(LIMIT)
    ends = []
    for _ in range(3):
        near, raw = trio.testing.memory_stream_pair()
        ends.append((FrameStream(near, "peer", server=True, max_bytes=LIMIT, backlog=backlog), raw))
    codes: dict[int, object] = {}

    async def hear(number: int) -> None:
        with pytest.raises(ProtocolError, match="too much is held") as caught:
            await ends[number][0].receive()
        codes[number] = caught.value.detail["close_code"]

    async def say(number: int, *pieces: bytes) -> None:
        for piece in pieces:
            await ends[number][1].send_all(piece)
            await trio.testing.wait_all_tasks_blocked()

    half = bytes(LIMIT // 2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hear, 0)
        nursery.start_soon(hear, 1)
        await say(0, LONG, half)
        await say(1, LONG, half)
        assert not codes, "as much as there may be"
        nursery.start_soon(say, 2, LONG, half, half)
        assert len(await ends[2][0].receive()) == LIMIT
    assert codes == {0: 1013, 1: 1013}
    for _ in range(3):  # what is complete, or over, is not held
        async with trio.open_nursery() as nursery:
            nursery.start_soon(say, 2, LONG, half, half)
            assert len(await ends[2][0].receive()) == LIMIT
    assert backlog.total == 0


@pytest.mark.parametrize("data", [b"", b"\x03\xe8", b"\x03\xe8bye", b"\x03", b"\x03\xe8\xff"])
async def test_the_peers_close_is_answered(data: bytes) -> None:
    ours, raw = ends(server=True)
    await raw.send_all(b"\x88" + bytes((0x80 | len(data),)) + MASK + data)
    with pytest.raises(Unreachable, match="closed the connection"):
        await ours.receive()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.aclose)
        reply = await raw.receive_some()
        assert reply == bytes((0x88, len(data[:2]))) + data[:2]
        await raw.aclose()
    with pytest.raises(Unreachable):
        await ours.send(b"x")


async def test_close_is_bounded_in_time(autojump_clock: trio.testing.MockClock) -> None:
    ours, _ = ends(server=True)
    before = trio.current_time()
    await ours.aclose(1001, "é" * 200)
    assert trio.current_time() - before <= 1.5


async def test_after_half_a_message_no_close_frame_is_sent(autojump_clock: trio.testing.MockClock) -> None:
    send, receive = trio.testing.lockstep_stream_pair()
    ours = FrameStream(send, "peer", server=True, max_bytes=LIMIT)
    with trio.move_on_after(1):
        await ours.send(b"x" * 1000)
    await ours.aclose()
    with pytest.raises(Unreachable):
        await ours.send(b"y")
    assert b"\x88" not in bytes(await receive.receive_some())


async def test_a_broken_connection_is_unreachable() -> None:
    ours, raw = ends(server=True)
    await raw.aclose()
    with pytest.raises(Unreachable, match="without a close frame"):
        await ours.receive()
    with pytest.raises(Unreachable):
        await ours.send(b"x")


@given(st.lists(st.binary(max_size=100), max_size=4), st.binary(min_size=4, max_size=4), st.integers(0, 7))
def test_each_byte_is_masked_with_the_byte_of_the_key_whose_turn_it_is(
    parts: list[bytes], mask: bytes, at: int
) -> None:
    masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(bytes(at) + b"".join(parts)))[at:]
    assert b"".join(mask_buffers([memoryview(part) for part in parts], mask, at)) == masked
    assert mask_bytes(bytes(at) + b"".join(parts), mask)[at:] == masked


async def test_a_client_masks_each_frame_with_another_key_that_the_system_drew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RFC 6455 §5.3: the key must be unpredictable, and a new one for each frame."""
    drawn = bytes(range(1, 255)) * 2
    monkeypatch.setattr("os.urandom", lambda size: drawn[:size])
    client, raw = ends(server=False)
    payload = b"p" * 5
    await client.send_many([outgoing(b"head", payload), outgoing(b"more", [payload[:2], memoryview(payload)[2:]])])
    client.ping()
    await client.send_many([])
    wire = bytes(await raw.receive_some())
    for number, (first, text) in enumerate(
        [(b"\x82\x89", b"headppppp"), (b"\x82\x89", b"moreppppp"), (b"\x89\x80", b"")]
    ):
        mask = drawn[4 * number : 4 * number + 4]
        assert wire.startswith(first + mask + mask_bytes(text, mask))
        wire = wire[6 + len(text) :]
    assert not wire


async def test_a_service_sends_to_another_with_a_key_of_zeros() -> None:
    """Decision 4: nothing has to be masked and unmasked."""
    near, far = trio.testing.memory_stream_pair()
    await FrameStream(near, "peer", server=False, masks=False, max_bytes=LIMIT).send(b"head", b"payload")
    assert bytes(await far.receive_some()) == b"\x82\x8b" + bytes(4) + b"headpayload"


async def test_a_long_message_in_pieces_of_any_length_arrives_unmasked() -> None:
    """A message that is too long to be joined is masked piece by piece, and the key goes on from one to the next."""
    ours, raw = ends(server=False)
    peer = FrameStream(raw, "us", server=True, max_bytes=LIMIT)
    pieces = [bytes(range(256)) * 300 + b"x", b"yz", memoryview(bytes(range(255)) * 301)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.send_many, [outgoing(b"odd", pieces)])
        assert await peer.receive() == b"odd" + b"".join(pieces)
