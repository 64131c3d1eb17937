"""Serves plain HTTP on one connection: request after request, each in full before the next.

A request passes these steps, and the first that refuses it gives the answer: the head, the web page that asks, the
path, the client, the body, the operation. Nothing is passed to the gateway before the body has arrived. When it is
not certain where the next request begins, or the body was not read to its end, the connection is closed after the
answer.

Time-outs: a head has ``HEAD_S`` from its first byte. A body must make progress as a WebSocket message must. The
connection may be idle for ``IDLE_S``. A client that takes less than ``PIECE_BYTES`` in ``SEND_S`` is disconnected.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import TypeVar

import structlog
import trio
from tidelog.errors import TidelogError, refuse
from tidelog.net.direct_socket import StreamSender, direct_socket, read_when_ready
from tidelog.net.http_pages import is_for
from tidelog.net.transport import HttpPeer
from tidelog.net.websocket.frame_stream import PROGRESS_BYTES, PROGRESS_S

from tidelog_gateway.clients.connections import ClientConnections
from tidelog_gateway.http.administration import Administration
from tidelog_gateway.http.appends import Appends
from tidelog_gateway.http.cross_origin import headers_for, preflight_headers, refuse_page
from tidelog_gateway.http.decoded_batches import DecodedBatches, LongWork
from tidelog_gateway.http.events import EventStream, EventStreams
from tidelog_gateway.http.http_link import HttpLink, open_link, token_of
from tidelog_gateway.http.openapi import description
from tidelog_gateway.http.reads import Reads
from tidelog_gateway.http.record_formats import EVENTS
from tidelog_gateway.http.request_body import RequestBody
from tidelog_gateway.http.request_head import MAX_HEAD_BYTES, RequestHead, parse_head
from tidelog_gateway.http.responses import Headers, HttpError, Response, refusal, response_head
from tidelog_gateway.http.routes import PREFIX, Matched, allowed, find
from tidelog_gateway.http.streams.stream_events import StreamEvents
from tidelog_gateway.http.streams.streams import Streams
from tidelog_gateway.shell import GatewayShell

HEAD_S = 5.0
IDLE_S = 60.0
SEND_S = 10.0
FREE_UNSENT_BYTES = 4 << 20
"""If a client has not taken more bytes of an answer than this, they count among those that all connections hold."""
RECEIVE_BYTES = 64 << 10
LAST_CHUNK = b"0\r\n\r\n"
LINGER_S, LINGER_BYTES = 1.0, 1 << 20
"""After a refusal so much is still received and thrown away, for so long: closing at once could lose the answer."""

_CLOSE: Headers = (("connection", "close"),)

Result = TypeVar("Result")


class _Gone(Exception):
    """Raised when the client has hung up, or takes no bytes."""


class GatewayHttp:
    """The HTTP of a gateway, an ``HttpPort``. There is one for each gateway."""

    prefix = PREFIX

    def __init__(self, shell: GatewayShell, clients: ClientConnections, scheme: str = "http") -> None:
        """``scheme``: ``http`` or ``https``, by which clients reach the port."""
        long_work = LongWork()
        decoded = DecodedBatches(long_work)
        self.clients = clients
        self.wall_ms = shell.wall_ms
        self.appends = Appends(shell, long_work)
        self.reads = Reads(shell, decoded, long_work)
        self.events = EventStreams(shell, decoded)
        self.administration = Administration(shell)
        self.streams = Streams(shell, scheme)

    async def serve(self, peer: HttpPeer, data: bytes) -> bytes | None:
        """Serve the requests of a connection. Return None at its end, or the bytes of a request that is for another
        part of the port."""
        return await _HttpConnection(self, peer, data).run()


class _HttpConnection:
    """One connection, with the link of the client whose request came last."""

    def __init__(self, http: GatewayHttp, peer: HttpPeer, data: bytes) -> None:
        self._http = http
        self._peer = peer
        self._stream = peer.stream
        self._direct = direct_socket(peer.stream)
        self._sender = StreamSender(peer.stream)
        self._buffer: bytes = data
        """Bytes that have arrived and belong to the next request."""
        self._last_head: tuple[bytes, RequestHead] | None = None
        """The head that was parsed last, and its bytes."""
        self._link: HttpLink | None = None
        self._token = ""
        self._idle = trio.CancelScope()
        self._receiving, self._sending = trio.CancelScope(), trio.CancelScope()
        self._must_give_up = False
        self._log = structlog.get_logger()

    async def run(self) -> bytes | None:
        """Serve requests until the connection ends, and return None; or the bytes of a request that is for another
        part of the port."""
        try:
            while (head := await self._next_head()) is not None:
                if not is_for(head, PREFIX):
                    return head + self._buffer
                if not await self._serve(head):
                    await self._linger()
                    return None
                if self._buffer:  # requests that are sent at once take turns with other tasks
                    await trio.lowlevel.checkpoint()
        except (_Gone, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._log.debug("http_connection_ended", remote=self._peer.remote, reason=repr(error))
        finally:
            self._peer.backlog.remove(self)
            self._end_link()
        return None

    def give_up(self) -> None:
        """Stop receiving the body that has begun, or sending the answer, since all connections together hold too many
        bytes."""
        self._must_give_up = True
        self._receiving.cancel()
        self._sending.cancel()

    # --- heads -----------------------------------------------------------------------------------------------

    async def _next_head(self) -> bytes | None:
        """Wait for the next head and return it; None if the client hangs up, is idle for too long, or the gateway has
        closed its link. A head that is late or too long is answered."""
        deadline = trio.current_time() + (HEAD_S if self._buffer else IDLE_S)
        while True:
            self._buffer = self._buffer.removeprefix(b"\r\n")  # some clients send one behind a body
            end = self._buffer.find(b"\r\n\r\n") + 4
            if 4 <= end <= MAX_HEAD_BYTES:
                head, self._buffer = self._buffer[:end], self._buffer[end:]
                return head
            if len(self._buffer) > MAX_HEAD_BYTES:
                await self._end_with(HttpError(431, f"a head has at most {MAX_HEAD_BYTES} bytes"))
                return None
            if self._link is not None and self._link.closed:
                return None
            had = bool(self._buffer)
            with trio.CancelScope(deadline=deadline) as self._idle:
                data = await self._receive_some()
                if not data:
                    return None
                self._buffer += data
            if self._idle.cancelled_caught:
                if had:
                    text = f"no whole head within {HEAD_S:g} s"
                    await self._end_with(HttpError(408, text, code="REQUEST_TIMED_OUT"))
                return None
            if not had:
                deadline = trio.current_time() + HEAD_S

    async def _receive_some(self) -> bytes:
        """Wait until bytes arrive and return them; b"" at the end of the connection. Raises
        ``trio.BrokenResourceError`` or ``trio.ClosedResourceError``."""
        if self._direct is None:
            return bytes(await self._stream.receive_some(RECEIVE_BYTES))
        try:
            return await read_when_ready(self._direct, RECEIVE_BYTES)
        except OSError as error:
            raise trio.BrokenResourceError from error

    async def _end_with(self, error: HttpError) -> None:
        """Answer what is no request, and end the connection."""
        await self.send(_encoded(refusal(error), _CLOSE, self._date()))
        await self._linger()

    # --- one request -----------------------------------------------------------------------------------------

    async def _serve(self, data: bytes) -> bool:
        """Serve one request. Return whether the connection may be used for another one."""
        try:
            head = self._parsed(data)
        except HttpError as error:
            await self._end_with(error)
            return False
        body: RequestBody | None = None
        answer: Response | EventStream | StreamEvents
        page = refuse_page(head, self._peer.origins)
        try:
            if page is not None:
                raise page
            if head.method == "OPTIONS":
                answer = Response(204, content_type="", headers=preflight_headers(allowed(head)))
                body = RequestBody(head)
            else:
                matched = find(head)
                link = None if matched.route.operation == "openapi" else self._link_for(head)
                body = RequestBody(head)
                await self._receive(body, head.waits_for_continue)
                answer = await self._operate(matched, head, body.content, link)
        except TidelogError as error:
            answer = refusal(error)
        except (_Gone, trio.BrokenResourceError, trio.ClosedResourceError):
            raise
        except Exception:
            self._log.exception("http_request_failed", remote=self._peer.remote)
            answer = refusal(HttpError(500, "internal error", code="UNREACHABLE"))
        if isinstance(answer, EventStream | StreamEvents):
            await self._send_events(head, answer)
            return False
        keeps = body is not None and body.is_complete and head.keeps_connection
        keeps = keeps and not (self._link is not None and self._link.closed)
        more = headers_for(head) if page is None else ()
        more = more if keeps else (*more, *_CLOSE)
        await self.send(_encoded(answer, more, self._date(), is_head=head.method == "HEAD"))
        return keeps

    def _parsed(self, data: bytes) -> RequestHead:
        """Return the checked head of a request. A client often sends the same head again, which is parsed once.
        Raises ``HttpError``."""
        if self._last_head is None or self._last_head[0] != data:
            self._last_head = data, parse_head(data)
        return self._last_head[1]

    def _link_for(self, head: RequestHead) -> HttpLink:
        """Return the link of the client that a request's token names, which is opened if the last request had another
        one. Raises the refusal."""
        token = token_of(head.header("authorization"))
        if self._link is None or self._link.closed or self._token != token:
            self._end_link()
            self._link = open_link(self._http.clients, self._peer.remote, self._peer.identities, token)
            self._token = token
        self._link.on_closing = self._idle_ends
        return self._link

    def _idle_ends(self) -> None:
        """End the connection if no request is under way, since the gateway has closed the link."""
        self._idle.cancel()

    def _end_link(self) -> None:
        if self._link is not None:
            link, self._link = self._link, None
            link.end()

    async def _receive(self, body: RequestBody, waits: bool) -> None:
        """Receive a body to its end. ``waits``: the client waits for ``100 Continue``. Raises ``HttpError`` if the
        body is not as announced or makes no progress, and ``OVERLOADED`` if all connections together hold too much.
        """
        if body.is_complete:
            return
        if waits and not self._buffer:
            await self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        backlog = self._peer.backlog
        wanted, due = PROGRESS_BYTES, trio.current_time() + PROGRESS_S
        try:
            data, self._buffer = self._buffer, b""
            while True:
                if data:
                    backlog.add(self, len(data))
                    body.receive(data)
                if body.is_complete:
                    self._buffer = body.rest
                    return
                if body.size >= wanted:
                    wanted, due = body.size + PROGRESS_BYTES, trio.current_time() + PROGRESS_S
                with trio.CancelScope(deadline=due) as self._receiving:
                    if self._must_give_up:
                        self._receiving.cancel()
                    data = await self._receive_some()
                    if not data:
                        raise _Gone
                if self._must_give_up:
                    self._must_give_up = False  # the answer is short
                    raise refuse("OVERLOADED", "bodies that are not complete have too many bytes together")
                if self._receiving.cancelled_caught:
                    text = f"the body gets on by less than {PROGRESS_BYTES} bytes in {PROGRESS_S:g} s"
                    raise HttpError(408, text, code="REQUEST_TIMED_OUT")
        finally:
            backlog.remove(self)

    async def _operate(
        self, matched: Matched, head: RequestHead, body: bytes, link: HttpLink | None
    ) -> Response | EventStream | StreamEvents:
        """Carry out the operation of a request, and return its answer. Raises the refusal."""
        http, names = self._http, matched.names
        if link is None:
            return description()
        match matched.route.operation:
            case "append" | "append_to_partition":
                return await http.appends.append(link, head, names, body)
            case "read" if "wait" in head.query:
                return await self._while_connected(lambda: http.reads.read(link, head, names))
            case "read":
                return await http.reads.read(link, head, names)
            case "follow":
                return await http.events.open(link, head, names)
            case "create_stream" | "append_stream" | "read_stream" | "delete_stream" as operation:
                parts = head.path[2:]
                if operation == "read_stream" and head.query.get("live") == "long-poll":
                    return await self._while_connected(lambda: http.streams.serve(operation, link, head, parts, body))
                return await http.streams.serve(operation, link, head, parts, body)
            case "describe_cluster":
                return await http.administration.describe_cluster(link)
            case "list_topics":
                return await http.administration.list_topics(link)
            case "describe_topic":
                return await http.administration.describe_topic(link, head, names)
            case "create_topic":
                return await http.administration.create_topic(link, body)
            case "delete_topic":
                return await http.administration.delete_topic(link, names)
            case "get_positions":
                return await http.administration.get_positions(link, names)
            case operation:
                assert operation == "set_positions"
                return await http.administration.set_positions(link, names, body)

    async def _while_connected(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """Do work that may take long, and return its result. If the client hangs up meanwhile, cancel the work and
        raise ``_Gone``. Bytes that arrive are kept for the next request."""
        results: list[Result] = []
        failures: list[Exception] = []

        async def watch(scope: trio.CancelScope) -> None:
            while len(self._buffer) <= MAX_HEAD_BYTES:
                try:
                    data = await self._receive_some()
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    data = b""
                if not data:
                    scope.cancel()
                    return
                self._buffer += data

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, nursery.cancel_scope)
            try:
                results.append(await work())
            except Exception as error:  # raised again below, so that the nursery does not wrap it in a group
                failures.append(error)
            nursery.cancel_scope.cancel()
        if failures:
            raise failures[0]
        if not results:
            raise _Gone
        return results[0]

    # --- sending ---------------------------------------------------------------------------------------------

    async def _send_events(self, head: RequestHead, stream: EventStream | StreamEvents) -> None:
        """Send a stream of events until it ends, or the client hangs up. The connection then ends, too."""
        coding = (("transfer-encoding", "chunked"),) if head.is_http_11 else ()
        more = (*headers_for(head), *stream.headers, ("x-accel-buffering", "no"), *coding, *_CLOSE)
        await self.send(response_head(200, _headers(EVENTS, more, self._date())))
        if head.method == "HEAD":
            return
        sender = _EventSender(self, is_chunked=head.is_http_11)
        await self._while_connected(lambda: stream.run(sender))
        if head.is_http_11:
            await self.send(LAST_CHUNK)

    @property
    def is_free(self) -> bool:
        """Return whether all that was sent has left, and the socket can be written without waiting."""
        return self._sender.is_free

    async def send(self, data: bytes) -> None:
        """Send bytes, and wait until the socket has taken them. Raises ``_Gone`` if the client does not take them in
        time."""
        if not self.put(data):
            await self.flush()

    def put(self, data: bytes) -> bool:
        """Send bytes without waiting, and count them for the client. Return False if some are left for ``flush``."""
        self._sender.put(data)
        if self._link is not None:
            self._link.sent_bytes += len(data)
        return not self._sender.has_unsent

    async def flush(self) -> None:
        """Wait until the socket has taken what ``put`` has left. Raises ``_Gone`` if the client does not take it in
        time, or if all connections together hold too many bytes and this client has been slow for longest."""
        backlog = self._peer.backlog
        if self._sender.unsent_bytes > FREE_UNSENT_BYTES:
            backlog.add(self, self._sender.unsent_bytes)
        try:
            while self._sender.has_unsent:
                if self._must_give_up:
                    raise _Gone
                with trio.move_on_after(SEND_S) as self._sending:
                    await self._sender.flush_some()
                if self._sending.cancelled_caught:
                    raise _Gone
        finally:
            backlog.remove(self)

    async def _linger(self) -> None:
        """Receive and throw away what the client still sends, within bounds, so that it gets the last answer."""
        left = LINGER_BYTES
        with trio.move_on_after(LINGER_S):
            if isinstance(self._stream, trio.SocketStream):
                await self._stream.send_eof()
            while left > 0 and (data := await self._stream.receive_some(RECEIVE_BYTES)):
                left -= len(data)

    def _date(self) -> str:
        return formatdate(self._http.wall_ms() / 1000, usegmt=True)


class _EventSender:
    """Sends the text of events on a connection, as chunks of the body (RFC 9112 §7.1) except to a client of
    HTTP/1.0."""

    def __init__(self, connection: _HttpConnection, *, is_chunked: bool) -> None:
        self._connection = connection
        self._is_chunked = is_chunked

    @property
    def is_free(self) -> bool:
        return self._connection.is_free

    def send_now(self, text: bytes) -> bool:
        return self._connection.put(self._framed(text))

    async def send(self, text: bytes) -> None:
        await self._connection.send(self._framed(text))

    async def flush(self) -> None:
        await self._connection.flush()

    def _framed(self, text: bytes) -> bytes:
        """Return text as a chunk. An empty chunk would be the end of the body, so empty text stays empty."""
        return b"%x\r\n%b\r\n" % (len(text), text) if text and self._is_chunked else text


def _headers(content_type: str, more: Headers, date: str) -> list[tuple[str, str]]:
    """Return the headers of a response."""
    headers = [("date", date), ("x-content-type-options", "nosniff")]
    if not any(name == "cache-control" for name, _ in more):
        headers.append(("cache-control", "no-store"))
    if content_type:
        headers.append(("content-type", content_type))
    return [*headers, *more]


def _encoded(answer: Response, more: Headers, date: str, *, is_head: bool = False) -> bytes:
    """Return the bytes of a response. ``more``: headers besides its own."""
    headers = _headers(answer.content_type, (*answer.headers, *more), date)
    if answer.status in (204, 304):
        return response_head(answer.status, headers)
    head = response_head(answer.status, (*headers, ("content-length", str(len(answer.body)))))
    return head if is_head else head + answer.body
