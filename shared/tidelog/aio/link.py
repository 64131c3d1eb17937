"""A link over one connection, for asyncio, on the package ``websockets``.

``wire.link_session`` makes the decisions, as it does for trio (``tidelog.net.link``). Here a reader and a writer move
the bytes, and one timer ends what is overdue. ``websockets`` pings a quiet gateway and drops one that does not
answer. A link ends once: when the connection does, or at the end of the block of ``connect_link``. Then every call
ends with ``UNREACHABLE``.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, InvalidURI, WebSocketException
from websockets.typing import Subprotocol

from tidelog.client.loop import Handler, refuse_other_roles
from tidelog.errors import TidelogError, Unreachable
from tidelog.net.addresses import why_no_connection, why_refused
from tidelog.net.tls import TlsFiles, handshake_failure
from tidelog.wire.codec import payload_size
from tidelog.wire.link_session import (
    MAX_MESSAGE_BYTES,
    SUBPROTOCOL,
    Answered,
    CloseLink,
    Deliver,
    Effect,
    Session,
    SessionOpened,
    Transmit,
)
from tidelog.wire.messages import Hello, Message, Payload, Welcome

HANDSHAKE_TIMEOUT_S = 5.0
"""Longest time in seconds for opening a WebSocket connection."""
CLOSE_TIMEOUT_S = 2.0
"""Longest time in seconds for closing a WebSocket connection."""
PING_EVERY_S = 5.0
"""Interval of pings to a gateway, in seconds."""
PING_TIMEOUT_S = 10.0
"""Seconds without an answer to a ping after which the connection is dropped."""
ROOM_BYTES = 8 << 20
"""``send`` waits while more than this many bytes are queued."""
FAIR_MESSAGES = 128
"""Number of messages after which the reader lets other tasks run."""
WRONG_DATA = 1003
"""WebSocket close code for a frame of the wrong kind."""


class AsyncioLink:
    """A link to one gateway over one WebSocket connection, on asyncio. Made by ``connect_link``; it ends with the
    connection and is not opened again."""

    def __init__(self, url: str, websocket: ClientConnection, handler: Handler) -> None:
        self.error: TidelogError | None = None
        """The reason why the link ended; None while it is open."""
        self._url = url
        self._websocket = websocket
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._session = Session(self._loop.time(), trust=refuse_other_roles)
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._work = asyncio.Event()
        self._room = asyncio.Event()
        self._opened = asyncio.Event()
        self._ended = asyncio.Event()
        self._close: tuple[int, str] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def closed(self) -> bool:
        """Whether the link is closed for sending."""
        return self._close is not None or self._ended.is_set()

    @property
    def peer(self) -> Welcome:
        """The welcome of the gateway."""
        assert isinstance(self._session.peer, Welcome)
        return self._session.peer

    async def call(self, request: Message, timeout_s: float) -> Message:
        """Send a request, wait for its answer and return it. Raises ``BrokerError`` if the gateway refuses it,
        ``TimedOut`` after ``timeout_s``, ``Unreachable`` if the link ends first."""
        answer: asyncio.Future[Message] = self._loop.create_future()

        def done(result: Message | TidelogError) -> None:
            if answer.done():
                return  # cancelled
            if isinstance(result, TidelogError):
                answer.set_exception(result)
            else:
                answer.set_result(result)

        id = self._ask(request, timeout_s, done)
        try:
            return await answer
        finally:
            self._session.forget(id)

    def start_call(self, request: Message, timeout_s: float, done: Callable[[Message | TidelogError], None]) -> None:
        """Send a request and return without waiting. ``done`` is called exactly once, without a change of task, with
        the answer or with the error that ``call`` would raise; that may be before this returns."""
        self._ask(request, timeout_s, done)

    def _ask(self, request: Message, timeout_s: float, done: Callable[[Message | TidelogError], None]) -> int:
        """Send a request and return its id; ``done`` gets the outcome. If the link is closed, ``done`` gets
        ``Unreachable`` at once and -1 is returned."""
        if self._close is not None:
            done(Unreachable(f"the link to {self._url} is closed"))
            return -1
        id, effects = self._session.ask(request, done, timeout_s, self._loop.time())
        self._perform(effects)
        self._plan()
        return id

    def post(self, message: Message) -> None:
        """Queue a one-way message without waiting for space. The message is dropped if the link has ended."""
        self._perform(self._session.send_one_way(message))

    @property
    def has_space(self) -> bool:
        """Whether at most ``ROOM_BYTES`` are queued, so that ``send`` would not wait."""
        return self._queued <= ROOM_BYTES

    def send_now(self, message: Message) -> None:
        """Queue a one-way message for the writing task, because ``websockets`` has no send that does not wait. The
        message is dropped if the link has ended."""
        self.post(message)

    async def send(self, message: Message) -> None:
        """Queue a one-way message, after waiting until at most ``ROOM_BYTES`` are queued. Raises ``Unreachable`` if
        the link has ended."""
        await asyncio.sleep(0)
        while not self.has_space and not self.closed:
            self._room.clear()
            await self._room.wait()
        if self.closed:
            raise Unreachable(f"the link to {self._url} is closed")
        self.post(message)

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Accept no more messages, and have the writing task close the connection after it has sent everything that
        is queued. Returns at once. Does nothing if the link is being closed already."""
        self._close = self._close or (code, reason)
        self._work.set()
        self._room.set()

    async def wait_closed(self) -> None:
        """Wait until the link has ended, for whatever reason; return at once if it has ended already."""
        await self._ended.wait()

    async def wait_open(self) -> None:
        """Wait until the gateway has answered the hello. Raises the error with which the gateway refused the hello,
        or with which the connection ended before the answer."""
        await self._opened.wait()
        if self._session.peer is None:
            assert self.error is not None
            raise self.error

    # --- how -------------------------------------------------------------------------------------------------

    def _perform(self, effects: list[Effect]) -> None:
        """Perform effects of the session: queue messages, pass messages and answers on, open or close the link. A
        request of the gateway is refused with ``UNSUPPORTED``."""
        for effect in effects:
            match effect:
                case Transmit(head, payload):
                    self._put(head, payload)
                case Deliver(id, message):
                    if id is not None:  # a gateway sends no requests
                        refusal = TidelogError("nothing is served here", code="UNSUPPORTED")
                        self._perform(self._session.answer(id, refusal))
                    elif self._close is None:
                        self._handler(self, id, message)
                case Answered(done, result):
                    done(result)
                case SessionOpened():
                    self._opened.set()
                case CloseLink(code, reason, error):
                    self.error = self.error or error
                    self.close(code, reason)

    def _put(self, head: bytes, payload: Payload) -> None:
        """Queue a message for the writing task. It is dropped if the link is being closed."""
        if self._close is not None:
            return
        chunks = payload if isinstance(payload, list) else [payload]
        self._queue.append(b"".join((head, *chunks)))
        self._queued += len(head) + (payload_size(payload) if payload else 0)
        self._work.set()

    def _plan(self) -> None:
        """Set the timer for the session's next deadline, unless the timer is set for an earlier time. At the
        deadline, overdue calls end."""
        deadline = self._session.deadline()
        if deadline is None or (self._timer is not None and self._timer.when() <= deadline):
            return
        self._cancel_timer()
        self._timer = self._loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._perform(self._session.on_tick(self._loop.time()))
        self._plan()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def run(self, hello: Hello) -> None:
        """Send the hello, then read and write messages until the connection has ended; then end every open call with
        an error. ``connect_link`` runs it as a task."""
        self._perform(self._session.greet(hello))
        self._plan()
        writer = asyncio.create_task(self._write())
        try:
            await self._read()
        except ConnectionClosed as closed:
            received = closed.rcvd
            why = f": {received.reason}" if received is not None and received.reason else ""
            self.error = self.error or Unreachable(f"the link to {self._url} is closed{why}")
        finally:
            writer.cancel()
            self._end()
            self._websocket.transport.abort()

    async def _read(self) -> None:
        """Pass received messages to the session until the connection ends, which raises ``ConnectionClosed``. A text
        frame closes the link."""
        for turn in itertools.count(1):
            data = await self._websocket.recv(decode=None)
            if isinstance(data, str):
                self.close(WRONG_DATA, "a text frame")
            elif self._close is None:
                self._perform(self._session.on_data(data))
            if turn % FAIR_MESSAGES == 0:
                await asyncio.sleep(0)

    async def _write(self) -> None:
        """Send queued messages until the link is being closed, then close the connection. Returns without an error if
        the connection ends before."""
        try:
            while self._queue or self._close is None:
                while self._queue:
                    data = self._queue.popleft()
                    self._queued -= len(data)
                    await self._websocket.send(data)
                    self._room.set()
                self._work.clear()
                if self._close is None:
                    await self._work.wait()
            await self._websocket.close(*self._close)
        except ConnectionClosed:
            return  # the reader sees it too

    def _end(self) -> None:
        """Mark the link as ended, wake all tasks that wait for it, and end every open call with the link's error."""
        self.error = self.error or Unreachable(f"the link to {self._url} is closed")
        self._cancel_timer()
        self._ended.set()
        self._opened.set()
        self._room.set()
        self._perform(self._session.on_closed(self.error))


@asynccontextmanager
async def connect_link(url: str, tls: TlsFiles, hello: Hello, handler: Handler) -> AsyncIterator[AsyncioLink]:
    """Open a link to the gateway at ``url``, and close it at the end of the block. ``handler`` is called with the
    messages that arrive. The block is not cancelled when the link ends: calls raise ``Unreachable``, and
    ``wait_closed`` returns. Raises ``Unreachable`` if there is no connection, or the error with which the gateway
    refused ``hello``."""
    link = AsyncioLink(url, await _open(url, tls), handler)
    running = asyncio.create_task(link.run(hello))
    try:
        await link.wait_open()
        yield link
    finally:
        link.close()
        await asyncio.wait([running], timeout=CLOSE_TIMEOUT_S)
        running.cancel()
        await asyncio.wait([running])
    if not running.cancelled():
        running.result()  # raises an unexpected error of the task


async def _open(url: str, tls: TlsFiles) -> ClientConnection:
    """Open a WebSocket connection to this URL and return it. Raises ``Unreachable`` if that fails or the server does
    not speak the protocol of Tidelog."""
    secure: dict[str, Any] = {"ssl": tls.connecting()} if url.startswith("wss:") else {}
    try:
        websocket = await connect(
            url,
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            compression=None,
            proxy=None,
            max_size=MAX_MESSAGE_BYTES,
            open_timeout=HANDSHAKE_TIMEOUT_S,
            ping_interval=PING_EVERY_S,
            ping_timeout=PING_TIMEOUT_S,
            close_timeout=CLOSE_TIMEOUT_S,
            **secure,
        )
    except TimeoutError as error:
        raise Unreachable(f"{url}: no connection within {HANDSHAKE_TIMEOUT_S:g} s") from error
    except InvalidURI as error:
        raise Unreachable(f"{url} is no URL of the form ws://host:port or wss://host:port") from error
    except InvalidStatus as error:
        answer = error.response
        why = why_refused(url, answer.status_code, answer.headers.get("Server", ""))
        raise Unreachable(f"{url}: {why}") from error
    except OSError as error:
        raise Unreachable(f"{url}: {handshake_failure(error) or why_no_connection(error)}") from error
    except WebSocketException as error:
        raise Unreachable(f"{url}: {handshake_failure(error) or error}") from error
    if websocket.subprotocol != SUBPROTOCOL:
        await websocket.close()
        raise Unreachable(f"{url}: the server does not speak {SUBPROTOCOL}")
    return websocket
