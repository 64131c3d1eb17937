"""The real transport: WebSockets over TCP (see ``net/transport.py`` for the seam).

trio-websocket does the opening handshake; ``frame_stream.py`` then reads and writes the frames. So that no
frame byte is lost between the two, the handshake sees the stream through a ``_Gate``, which hands over the HTTP
head and not one byte more. The handshake's tasks live in a nursery that ends with the handshake: an open
connection has no hidden task. A request that does not ask for WebSocket gets a page (``net/http_pages.py``), or
goes to the port's ``http``, which also serves the requests that follow on the connection.

Refused: a web page of another origin (HTTP 403, ``net/origins.py``), another subprotocol (HTTP 400), more than
``max_connections`` (HTTP 503), a handshake that takes longer than ``HANDSHAKE_TIMEOUT_S`` (HTTP 408), a head longer
than ``MAX_HEAD_BYTES`` (HTTP 431), plain text on a port that speaks TLS (HTTP 426). permessage-deflate is never
negotiated.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Unpack
from urllib.parse import urlsplit

import trio
import trio_websocket

from tidelog.errors import ConfigError, ProtocolError, Unreachable
from tidelog.net.addresses import NEEDS_TLS, why_no_connection, why_no_websocket
from tidelog.net.http_pages import answer, is_for
from tidelog.net.origins import Origins
from tidelog.net.tls import NodeIdentity, TlsFiles, TlsOptions, handshake_failure, identities_of
from tidelog.net.tls_stream import TlsStream
from tidelog.net.transport import (
    MAX_MESSAGE_BYTES,
    NO_PAGES,
    SUBPROTOCOL,
    Accepting,
    Connection,
    HttpPeer,
    HttpPort,
    Page,
    Pages,
)
from tidelog.net.websocket.backlog import Backlog
from tidelog.net.websocket.frame_stream import FrameStream

HANDSHAKE_TIMEOUT_S = 5.0
"""Seconds for opening TCP and for each handshake, at each end."""
MAX_HEAD_BYTES = 16 << 10
"""Longest HTTP head of a handshake."""
USER_TIMEOUT_MS = 20_000
"""Milliseconds: if the peer's kernel does not acknowledge sent bytes for so long, the connection ends."""
NOTSENT_LOWAT = 1 << 20
"""Most bytes that the kernel takes to send ahead of the network."""
HELLO_BYTES = 64 << 10
"""Longest first message of a peer that connects: a hello is short."""
MAX_HELD_BYTES = 256 << 20
MAX_CONNECTIONS = 4096
"""Most accepted connections of a process, unless it is configured to have more clients."""
"""Most bytes of incomplete messages of all accepted connections together."""

log = logging.getLogger("tidelog")


NO_TLS = b"HTTP/1.1 400 This port speaks no TLS: use ws:// or http://\r\nconnection: close\r\n\r\n"
"""The answer to TLS on a port without it. Programs that expect TLS report that they got HTTP; a capture of the
connection shows the words."""
TLS_RECORD = b"\x16"
"""First byte of a TLS handshake (RFC 8446 §5.1)."""

Stream = trio.SocketStream | TlsStream


class _HandshakeEnded(Exception):
    """Raised inside the opening handshake if the peer hung up, or sent no HTTP head, before the handshake was
    done."""


class _Gate(trio.abc.Stream):
    """The stream as the WebSocket handshake sees it: one HTTP head can be read, and not one byte more. ``early`` has
    the bytes that came after the head; before the head is read, those that have arrived already. ``scope`` bounds the
    handshake: it is cancelled after ``HANDSHAKE_TIMEOUT_S``, or when trio-websocket gives up. ``url``: where this end
    has connected to; "" if it accepts."""

    def __init__(self, stream: Stream, url: str = "", early: bytes = b"") -> None:
        self._url = url
        self.scope = trio.CancelScope(deadline=trio.current_time() + HANDSHAKE_TIMEOUT_S)
        self._stream = stream
        self._head: bytes | None = None
        self._taken = False
        self.early = early

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return the HTTP head the first time; later calls never return."""
        if self._taken:
            await trio.sleep_forever()
        head = await self.read_head()
        self._taken = True
        return head

    async def read_head(self) -> bytes:
        """Wait for the HTTP head and return it; ``receive_some`` then returns it, too. Raises ``_HandshakeEnded`` if
        the peer hangs up or sends no HTTP head."""
        if self._head is None:
            self._head = await self._read_head()
        return self._head

    async def _read_head(self) -> bytes:
        """Receive until the end of the HTTP head; return the head and keep the bytes after it in ``early``. A peer
        that speaks TLS is answered in plain text, so that its library reports the mistake. Raises
        ``_HandshakeEnded``."""
        data, more = b"", self.early
        while True:
            try:
                more = more or await self._stream.receive_some(MAX_HEAD_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise _HandshakeEnded(handshake_failure(error) or "the connection broke") from error
            data += more
            if self._url:
                if more and (why := why_no_websocket(self._url, data)):
                    raise _HandshakeEnded(why)
            elif data[:1] == TLS_RECORD:  # an answer that is not TLS: the other end's library will say so
                await self._stream.send_all(NO_TLS)
                raise _HandshakeEnded("TLS on a port without it")
            end = data.find(b"\r\n\r\n") + 4
            if end > 3:
                self.early = data[end:]
                return data[:end]
            if not self._url and len(data) > MAX_HEAD_BYTES:
                await _refuse(self._stream, "431 Request Header Fields Too Large")
            if not more or len(data) > MAX_HEAD_BYTES:
                raise _HandshakeEnded("no HTTP head" if more else "the peer hung up without an answer")
            more = b""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """End the handshake by cancelling ``scope``. The stream stays open; its owner closes it."""
        self.scope.cancel()
        await trio.lowlevel.checkpoint()


@dataclass(slots=True)
class WebSocketTransport:
    """The ``Transport`` over WebSockets on TCP. ``max_connections`` bounds the accepted connections of all ports of
    this object; further ones get HTTP 503. If ``tls`` has a certificate, the ports speak TLS only. Outgoing
    connections speak TLS for ``wss:`` URLs."""

    max_connections: int = MAX_CONNECTIONS
    max_message_bytes: int = MAX_MESSAGE_BYTES
    tls: TlsFiles | None = None
    secret: bytes = b""
    """The secret of the cluster, which services prove to each other to have; b"": nothing is proved."""
    masks: bool = True
    """Whether outgoing connections mask what they send. Services do not, since no proxy is between them."""
    _accepted: int = 0
    _backlog: Backlog = field(default_factory=lambda: Backlog(MAX_HELD_BYTES))

    async def connect(self, url: str) -> Connection:
        """Open a WebSocket connection over TCP, with TLS for a ``wss:`` URL, and return it. Raises ``Unreachable`` if
        that fails, is refused, or takes longer than ``HANDSHAKE_TIMEOUT_S``."""
        host, port, path, secure = _parse(url)
        name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            with trio.fail_after(HANDSHAKE_TIMEOUT_S):
                stream = await trio.open_tcp_stream(host, port)
                try:
                    _tune(stream)
                    secured = await self._secure(stream, url, host) if secure else stream
                    return await self._shake_hands(secured, url, name, path)
                except BaseException:
                    await trio.aclose_forcefully(stream)
                    raise
        except trio.TooSlowError as error:
            raise Unreachable(f"{url}: no connection within {HANDSHAKE_TIMEOUT_S:g} s") from error
        except OSError as error:
            raise Unreachable(f"{url}: {why_no_connection(error)}") from error

    async def _secure(self, stream: trio.SocketStream, url: str, host: str) -> Stream:
        """Do the TLS handshake on an outgoing TCP stream, and return the encrypted stream. Raises ``Unreachable`` if
        it fails."""
        if self.tls is None:
            self.tls = TlsFiles(TlsOptions())
        secured = TlsStream(stream, self.tls.connecting(), server_hostname=host)
        try:
            await secured.do_handshake()
        except trio.BrokenResourceError as error:
            raise Unreachable(f"{url}: {handshake_failure(error) or 'the server hung up'}") from error
        return secured

    async def _shake_hands(self, stream: Stream, url: str, host: str, path: str) -> Connection:
        """Do the client's WebSocket handshake on a stream, and return the open connection. Raises ``Unreachable``
        with the reason if the server refuses it or answers anything else."""
        gate = _Gate(stream, url)
        opened: trio_websocket.WebSocketConnection | None = None
        failure: Exception | None = None
        try:
            with gate.scope:
                async with trio.open_nursery() as nursery:
                    opened = await trio_websocket.wrap_client_stream(
                        nursery, gate, host, path, subprotocols=[SUBPROTOCOL]
                    )
                    nursery.cancel_scope.cancel()
        except* Exception as group:  # whatever the server sent, the libraries choke on it in many ways
            failure = group.exceptions[0]
        if failure is not None or opened is None:
            raise Unreachable(f"{url}: {failure or 'no WebSocket handshake'}") from failure
        if opened.subprotocol != SUBPROTOCOL:
            raise Unreachable(f"{url}: the server does not speak {SUBPROTOCOL}")
        return self._open(stream, url, gate.early, server=False)

    def _open(self, stream: Stream, remote: str, early: bytes, *, server: bool) -> FrameStream:
        """Return the connection for a stream whose handshake is done, with the identities of the peer's certificate
        if one was asked for. ``early`` has bytes that came after the handshake."""
        most, first, backlog = self.max_message_bytes, HELLO_BYTES, self._backlog
        if server:
            connection = FrameStream(
                stream, remote, server=True, max_bytes=most, first_bytes=first, early=early, backlog=backlog
            )
        else:
            connection = FrameStream(stream, remote, server=False, masks=self.masks, max_bytes=most, early=early)
        connection.identities = _identities_of(stream)
        return connection

    async def serve(
        self,
        host: str,
        port: int,
        handler: Callable[[Connection], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
        **accepting: Unpack[Accepting],
    ) -> None:
        """Accept WebSocket connections on a port until cancelled, run ``handler`` for each, and close the connection
        when the handler ends. Other HTTP requests get a page or an error. Reports the URL (with the real port)
        through ``task_status``. Raises ``ConfigError`` if the port cannot be opened."""
        until = accepting.get("until", trio.Event())
        judge = Origins(
            accepting.get("origins", ()),
            secure=self._accepts_tls,
            hosts=accepting.get("hosts", ()),
            browsers=accepting.get("browsers", True),
        )
        try:
            listeners = await trio.open_tcp_listeners(port, host=host, backlog=512)
        except OSError as error:
            what = (
                "is in use"
                if error.errno == errno.EADDRINUSE
                else f"cannot be listened on ({why_no_connection(error)})"
            )
            raise ConfigError(f"{host}:{port} {what}; choose another address or port") from error
        if port == 0:  # a name may resolve to several addresses, each with a port of its own: keep one
            for spare in listeners[1:]:
                await spare.aclose()
            listeners = listeners[:1]
        real_port = listeners[0].socket.getsockname()[1]
        served = _Port(handler, accepting.get("pages", NO_PAGES), judge, accepting.get("http"))

        async def on_stream(stream: trio.SocketStream) -> None:
            await self._accept(stream, served)

        async def listen(task_status: trio.TaskStatus[list[trio.SocketListener]]) -> None:
            async with trio.open_nursery() as accepting:
                accepting.start_soon(partial(trio.serve_listeners, on_stream, listeners, handler_nursery=nursery))
                task_status.started(listeners)
                await until.wait()
                accepting.cancel_scope.cancel()  # which closes the listeners

        async with trio.open_nursery() as nursery:
            await nursery.start(listen)
            scheme = "wss" if self._accepts_tls else "ws"
            task_status.started(f"{scheme}://{_reachable(host)}:{real_port}")

    @property
    def _accepts_tls(self) -> bool:
        return self.tls is not None and self.tls.can_accept

    async def _accept(self, stream: trio.SocketStream, port: _Port) -> None:
        """Do the handshakes on an accepted TCP stream, run the port's handler with the connection, and close the
        stream at the end. Refuses the stream with HTTP 503 if there are more than ``max_connections``."""
        self._accepted += 1
        try:
            async with stream:
                if self._accepted > self.max_connections:
                    await _refuse(stream, "503 Too many connections")
                    return
                try:
                    _tune(stream)
                    remote = "{}:{}".format(*stream.socket.getpeername()[:2])
                    address = stream.socket.getsockname()
                except OSError:  # it is gone already
                    return
                secured = await self._accept_tls(stream, remote) if self._accepts_tls else stream
                here = f"{'wss' if self._accepts_tls else 'ws'}://{_reachable(address[0])}:{address[1]}"
                if secured is None:
                    return
                connection = await self._answer_handshake(secured, remote, here, port)
                if connection is not None:
                    await _run(port.handler, connection)
        finally:
            self._accepted -= 1

    async def _accept_tls(self, stream: trio.SocketStream, remote: str) -> Stream | None:
        """Do the TLS handshake on an accepted stream. Return the encrypted stream; None if it failed or took too
        long. A peer that speaks plain HTTP gets HTTP 426, any other the TLS alert."""
        assert self.tls is not None
        secured = TlsStream(stream, self.tls.accepting(), server_side=True)
        with trio.move_on_after(HANDSHAKE_TIMEOUT_S):
            try:
                await secured.do_handshake()
                return secured
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                why = handshake_failure(error)
                log.debug("tls_handshake_failed remote=%s: %s", remote, why)
                if "http request" in why:
                    text = "This port speaks TLS: use wss:// (or https:// for pages).\n"
                    await _refuse(stream, f"{NEEDS_TLS} Upgrade Required", "upgrade: TLS/1.2\r\n", text)
                else:
                    broken = trio.BrokenResourceError, trio.ClosedResourceError
                    with trio.move_on_after(1.0), contextlib.suppress(*broken):
                        await secured.flush()  # the alert, so that the other end learns why
        return None

    async def _answer_handshake(self, stream: Stream, remote: str, local_url: str, port: _Port) -> FrameStream | None:
        """Answer the opening HTTP request of an accepted stream, after the plain requests that ``port.http`` serves.
        Return the open connection; None if the peer spoke plain HTTP, was refused, gave up or took too long."""
        early = b""
        while True:
            gate = _Gate(stream, early=early)
            head = b""
            with trio.move_on_at(gate.scope.deadline):
                try:
                    head = await gate.read_head()
                except Exception as error:  # the peer hung up, or sent no head
                    log.debug("handshake_failed remote=%s: %r", remote, error)
                    return None
            if not head:
                await _refuse(stream, "408 Request Timeout")
                return None
            if port.http is None or not is_for(head, port.http.prefix):
                break
            peer = HttpPeer(stream, remote, _identities_of(stream), port.origins, self._backlog)
            left = await _serve_http(port.http, peer, head + gate.early)
            if left is None:
                return None
            early = left
        if not await self._shake_hands_as_server(gate, head, remote, port):
            return None
        opened = self._open(stream, remote, gate.early, server=True)
        opened.local_url = local_url
        return opened

    async def _shake_hands_as_server(self, gate: _Gate, head: bytes, remote: str, port: _Port) -> bool:
        """Answer a request with a page, or do the WebSocket handshake. Return whether the WebSocket is open."""
        accepted = False
        with gate.scope:
            try:
                page = _page(head, port.pages, port.origins)
                if page is not None:
                    await gate.send_all(page)
                    return False
                async with trio.open_nursery() as nursery:
                    request = await trio_websocket.wrap_server_stream(nursery, gate)
                    if SUBPROTOCOL in request.proposed_subprotocols:
                        await request.accept(subprotocol=SUBPROTOCOL)
                        accepted = True
                    else:
                        await request.reject(400, body=f"this server speaks {SUBPROTOCOL} only\n".encode())
                    nursery.cancel_scope.cancel()
            except* Exception as group:  # whatever the peer sent, the libraries choke on it in many ways
                log.debug("handshake_failed remote=%s: %r", remote, group.exceptions[0])
                accepted = False
        return accepted


@dataclass(frozen=True, slots=True)
class _Port:
    """What a port serves: the handler of WebSocket connections, the pages, and plain HTTP."""

    handler: Callable[[Connection], Awaitable[None]]
    pages: Pages
    origins: Origins
    http: HttpPort | None = None


async def _serve_http(port: HttpPort, peer: HttpPeer, data: bytes) -> bytes | None:
    """Let the port serve plain requests. Return the bytes of a request that is not for it; None if the connection is
    over. An exception is logged and ends the connection."""
    try:
        return await port.serve(peer, data)
    except Exception:
        log.exception("http_failed remote=%s", peer.remote)
        return None


def _identities_of(stream: Stream) -> tuple[NodeIdentity, ...] | None:
    """Return the identities in the peer's certificate; None if none was asked for."""
    if isinstance(stream, TlsStream) and stream.context.verify_mode:
        return identities_of(stream.getpeercert())
    return None


async def _run(handler: Callable[[Connection], Awaitable[None]], connection: FrameStream) -> None:
    """Run ``handler`` with a connection, and close the connection at the end, with the close code that fits the
    handler's exception. No exception leaves this function; an unexpected one is logged."""
    code, reason = 1000, ""
    try:
        await handler(connection)
    except ProtocolError as error:
        code, reason = int(error.detail.get("close_code", 1002)), error.message
    except Unreachable as error:  # the peer went away: nothing to tell it
        log.debug("connection_ended remote=%s: %s", connection.remote, error.message)
    except Exception:
        log.exception("connection_handler_failed remote=%s", connection.remote)
        code, reason = 1011, "internal error"
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 2.0):
            await connection.aclose(code, reason)


def _page(head: bytes, pages: Pages, origins: Origins) -> bytes | None:
    """Return the HTTP answer to a request; None if the WebSocket handshake has to answer it. If a page's function
    fails, the exception is logged and the answer is HTTP 500."""
    try:
        return answer(head, pages, origins)
    except Exception:
        log.exception("page_failed")
        return answer(head, dict.fromkeys(pages, _failed))


def _failed(accept: str) -> Page:
    return Page(b"internal error\n", status=500)


async def _refuse(stream: Stream, status: str, header: str = "", text: str = "") -> None:
    """Send an HTTP answer with this status, further header lines and a text, within a second. Does nothing if the
    connection is broken."""
    with trio.move_on_after(1.0), contextlib.suppress(trio.BrokenResourceError):
        header += "content-type: text/plain; charset=utf-8\r\n" if text else ""
        head = f"HTTP/1.1 {status}\r\n{header}connection: close\r\ncontent-length: {len(text)}\r\n\r\n"
        await stream.send_all((head + text).encode())


def _tune(stream: trio.SocketStream) -> None:
    """Set the TCP options of a stream: no delay, a bound on unsent bytes, and a time-out for unacknowledged bytes."""
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in (("TCP_NOTSENT_LOWAT", NOTSENT_LOWAT), ("TCP_USER_TIMEOUT", USER_TIMEOUT_MS)):
        option = getattr(socket, name, None)  # macOS lacks the second
        if option is not None:
            stream.setsockopt(socket.IPPROTO_TCP, option, value)


def _parse(url: str) -> tuple[str, int, str, bool]:
    """Return host, port, path, and whether TLS is asked for, of a WebSocket URL. Raises ``Unreachable`` if ``url`` is
    not a URL of the form ``ws://host:port`` or ``wss://host:port``."""
    try:
        parts = urlsplit(url)
        secure = parts.scheme == "wss"
        port = parts.port or (443 if secure else 80)
    except ValueError as error:
        raise Unreachable(f"{url} is no WebSocket URL: {error}") from error
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise Unreachable(f"{url} is no URL of the form ws://host:port or wss://host:port")
    return parts.hostname, port, parts.path or "/", secure


def _reachable(host: str) -> str:
    """Return the host by which a peer on this machine reaches a port that listens on ``host``, as it is written in a
    URL."""
    if host in ("", "0.0.0.0"):
        return "127.0.0.1"
    if host == "::":
        return "[::1]"
    return f"[{host}]" if ":" in host else host
