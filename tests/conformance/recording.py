"""Checks the messages between a library and the gateways against ``tidelog.cddl``.

``Traffic`` is a proxy in front of the gateways: a client that connects to one of its ``urls`` reaches a gateway, byte
for byte, and every message of both directions is read on the way. Keys that the file does not know count as faults
here, although receivers ignore them: a library that misspells an optional key would go unnoticed.
"""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import cbor2
import pycddl
import tidelog.wire
import trio
from tidelog.batch import body as batch_body
from tidelog.batch.format import CODEC_MASK, CODECS, split
from tidelog.wire.codec import OPS

CDDL = (Path(tidelog.wire.__file__).parent / "tidelog.cddl").read_text(encoding="utf-8")
KNOWN_KEYS_ONLY = CDDL.replace("  * tstr => any,\n", "")
BINARY, CONTINUATION = 2, 0


@cache
def schema(rule: str) -> pycddl.Schema:
    return pycddl.Schema(f"root = {rule}\n{KNOWN_KEYS_ONLY}")


class Frames:
    """One direction of a WebSocket connection."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._parts: list[bytes] = []
        self._is_open = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add bytes and yield the messages that are complete with them."""
        self._data += data
        if not self._is_open:
            _, end, rest = bytes(self._data).partition(b"\r\n\r\n")
            if not end:
                return
            self._is_open, self._data = True, bytearray(rest)
        while (frame := self._take()) is not None:
            first, content = frame
            if first & 0x0F in (BINARY, CONTINUATION):
                self._parts.append(content)
                if first & 0x80:
                    yield b"".join(self._parts)
                    self._parts = []

    def _take(self) -> tuple[int, bytes] | None:
        data = self._data
        if len(data) < 2:
            return None
        length, at = data[1] & 0x7F, 2
        if length > 125:
            at = 4 if length == 126 else 10
            length = int.from_bytes(data[2:at], "big")
        mask = bytes(data[at : at + 4]) if data[1] & 0x80 else b""
        at += len(mask)
        if len(data) < at + length:
            return None
        content = bytes(data[at : at + length])
        if any(mask):
            key = (mask * (length // 4 + 1))[:length]
            content = (int.from_bytes(content, "big") ^ int.from_bytes(key, "big")).to_bytes(length, "big")
        first = data[0]
        del data[: at + length]
        return first, content


class Conversation:
    """Both directions of a connection, which decide the rule that each message must keep."""

    def __init__(self) -> None:
        self._asked: dict[int, str] = {}

    def check(self, data: bytes, from_client: bool) -> str:
        """Return the rule that a message keeps. Raises an error if it breaks it."""
        stream = io.BytesIO(data)
        header = cbor2.load(stream)
        end = stream.tell()
        rule = self._rule(header, from_client)
        schema(rule).validate_cbor(data[:end])
        if end < len(data):
            payload = cbor2.loads(data[end:])
            assert rule in ("produce", "read-answer", "delivery"), f"{rule} has no payload"
            sizes = [part["size"] for part in header["parts"]] if rule == "produce" else [len(payload)]
            assert sum(sizes) == len(payload), "the sizes of the parts are those of the batches"
            check_batches(payload)
        return rule

    def _rule(self, header: dict[str, object], from_client: bool) -> str:
        if "op" in header:
            op = str(header["op"])
            if from_client and "id" in header:
                self._asked[int(str(header["id"]))] = op
            return op.replace("_", "-")
        op = self._asked.pop(int(str(header["re"])))
        if "error" in header:
            return "error-answer"
        answer = OPS[op].ANSWER
        assert answer is not None
        return re.sub(r"(?<!^)(?=[A-Z])", "-", answer.__name__).lower()


def check_batches(payload: bytes) -> None:
    """Check that the payload is a sequence of batches whose bodies follow the file."""
    for header, batch in split(payload):
        stored = memoryview(batch)[header.header_length :]
        body = batch_body.decompress(CODECS[header.attributes & CODEC_MASK], stored, header.body_length)
        schema("batch-body").validate_cbor(bytes(body))


class Traffic:
    """The traffic of one library. ``kinds``: the rules of all messages; ``faults``: the violations."""

    def __init__(self, gateways: Sequence[str]) -> None:
        self.urls: list[str] = []
        self.kinds: set[str] = set()
        self.faults: list[str] = []
        self._gateways = gateways
        self._ready = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._serve,))
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """Close all connections and end the proxy."""
        self._token.run_sync_soon(self._scope.cancel)
        self._thread.join()

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with trio.CancelScope() as self._scope:
            async with trio.open_nursery() as nursery:
                for gateway in self._gateways:
                    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
                    self.urls.append(f"ws://127.0.0.1:{listener.socket.getsockname()[1]}")
                    port = int(gateway.rpartition(":")[2])
                    nursery.start_soon(trio.serve_listeners, self._pass_on(port), [listener])
                self._ready.set()

    def _pass_on(self, port: int):  # type: ignore[no-untyped-def]
        async def pass_on(client: trio.SocketStream) -> None:
            conversation = Conversation()
            try:
                gateway = await trio.open_tcp_stream("127.0.0.1", port)
            except OSError:  # it is down: so is this
                return
            async with gateway, trio.open_nursery() as nursery:

                async def pump(source: trio.SocketStream, target: trio.SocketStream, from_client: bool) -> None:
                    frames = Frames()
                    try:
                        async for data in source:
                            for message in frames.feed(data):  # before it can be answered
                                self._look_at(conversation, message, from_client)
                            await target.send_all(data)
                        await target.send_eof()
                    except trio.BrokenResourceError:
                        nursery.cancel_scope.cancel()

                nursery.start_soon(pump, client, gateway, True)
                nursery.start_soon(pump, gateway, client, False)

        return pass_on

    def _look_at(self, conversation: Conversation, message: bytes, from_client: bool) -> None:
        try:
            self.kinds.add(conversation.check(message, from_client))
        except Exception as error:
            who = "client" if from_client else "gateway"
            self.faults.append(f"{who}: {error!r}: {message[:300]!r}")
