"""A plain HTTP client on one connection, which also sends what no client should."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import h11
import trio


@dataclass(frozen=True)
class Answer:
    """A response, with its headers by name in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The error code of a problem document."""
        assert self.headers["content-type"] == "application/problem+json", self
        found = self.json
        assert found["status"] == self.status, "the document says what the status line says"
        return str(found["code"])


@dataclass
class HttpClient:
    """One connection. Requests are sent one after the other on it."""

    stream: trio.abc.Stream
    buffer: bytes = b""
    token: str = ""
    host: str = "127.0.0.1"
    events: list[dict[str, str]] = field(default_factory=list)

    async def ask(self, method: str, target: str, body: bytes | str | None = None, **headers: str) -> Answer:
        """Send a request and return its answer. Underscores in names of headers stand for hyphens."""
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self.host}"]
        if self.token:
            lines.append(f"Authorization: Bearer {self.token}")
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        data = body.encode() if isinstance(body, str) else body
        if data is not None:
            lines.append(f"Content-Length: {len(data)}")
        await self.stream.send_all("\r\n".join([*lines, "", ""]).encode("latin-1") + (data or b""))
        return await self.answer(method)

    async def post_json(self, target: str, document: Any, method: str = "POST", **headers: str) -> Answer:
        """Send a JSON document and return the answer."""
        return await self.ask(method, target, json.dumps(document), Content_Type="application/json", **headers)

    async def answer(self, method: str = "GET") -> Answer:
        """Return the next answer. Raises ``EOFError`` if the connection ends before."""
        connection = h11.Connection(h11.CLIENT)
        connection.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        connection.send(h11.EndOfMessage())
        found: h11.Response | None = None
        body = b""
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                data = self.buffer or await self.stream.receive_some(1 << 16)
                self.buffer = b""
                if not data and found is None:
                    raise EOFError
                connection.receive_data(data)
            elif isinstance(event, h11.Response):
                found = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert found is not None
                self.buffer = bytes(connection.trailing_data[0])
                headers = {name.decode(): value.decode("latin-1") for name, value in found.headers}
                assert len(headers) == len(found.headers), f"a header comes twice: {found.headers}"
                return Answer(found.status_code, headers, body)

    async def follow(self, target: str, **headers: str) -> None:
        """Ask for a stream of events; ``event`` returns them."""
        lines = [f"GET {target} HTTP/1.1", f"Host: {self.host}"]
        if self.token:
            lines.append(f"Authorization: Bearer {self.token}")
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.stream.send_all("\r\n".join([*lines, "", ""]).encode())
        self._parser = h11.Connection(h11.CLIENT)
        self._parser.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
        self._parser.send(h11.EndOfMessage())
        event = await self._next()
        assert isinstance(event, h11.Response) and event.status_code == 200, event
        self._text = b""

    async def event(self) -> dict[str, str]:
        """Return the next event with data, by field; an empty one at the end of the stream."""
        while True:
            block, found, rest = self._text.partition(b"\n\n")
            if found:
                self._text = rest
                fields = [line.partition(":") for line in block.decode().split("\n") if not line.startswith(":")]
                event = {name: value.removeprefix(" ") for name, _, value in fields if name}
                if "data" in event:
                    return event
                continue
            part = await self._next()
            if not isinstance(part, h11.Data):
                return {}
            self._text += bytes(part.data)

    async def _next(self) -> Any:
        while (event := self._parser.next_event()) is h11.NEED_DATA:
            data = self.buffer or await self.stream.receive_some(1 << 16)
            self.buffer = b""
            self._parser.receive_data(data)
        return event

    async def raw(self, data: bytes) -> Answer:
        """Send bytes as they are and return the answer."""
        await self.stream.send_all(data)
        return await self.answer()

    async def is_closed(self) -> bool:
        """Return whether the other end sends nothing more and closes the connection."""
        try:
            return not self.buffer and await self.stream.receive_some(1) == b""
        except trio.BrokenResourceError:
            return True


@asynccontextmanager
async def http_client(url: str, token: str = "") -> AsyncIterator[HttpClient]:
    """Connect to the port of a gateway's URL."""
    host, _, port = url.partition("://")[2].rpartition(":")
    stream = await trio.open_tcp_stream(host, int(port))
    async with stream:
        yield HttpClient(stream, token=token)
