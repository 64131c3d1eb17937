"""A conversation over one connection, for trio: ``connect_link`` opens one, ``serve_links`` accepts many.

Theory. ``wire.link_session`` decides, this module moves the bytes. A link is three tasks in one nursery:

- the *reader* receives, and calls the handler inline (a hop to another task costs more than most messages);
- the *writer* sends what is queued, in order, as far as the reader has not sent it at the end of a burst
  (``send_queue``): small messages that were queued while it was busy, or in one burst, leave in one send;
- the *timer* ends overdue requests, pings a quiet peer, and drops a peer that does not read or does not answer.

The send queue is bounded. ``send`` waits while more than ``ROOM_BYTES`` are queued. ``post``, ``answer`` and
``start_call`` never wait; they drop the link when more than ``OUTBOX_BYTES`` are queued: the peer does not read, and
what it asked for can be asked for again. With ``flow_control`` the reader stops when half of that is queued, until
there is room again: a peer that asks for more than its connection carries is slowed down by TCP. A peer that reads
nothing at all is dropped by the timer.

Where the transport has a ``secret``, services prove to each other that they have it (``wire.proof``). Where the peer
has shown a certificate, a service must be one of those that the certificate names (``tls``).

A link ends once: when the reader or the writer ends, when ``close`` was called and the queue is sent (at most
``CLOSE_TIMEOUT_S`` later), or when the caller is cancelled. Then every waiting call ends ``UNREACHABLE``.
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Unpack

import trio

from tidelog.errors import ProtocolError, TidelogError, Unreachable, without_frames
from tidelog.net.failure_detector import FailureDetector, Patience
from tidelog.net.send_queue import ACCEPTED_TURN_S, CONNECTED_TURN_S, OUTBOX_BYTES, SendQueue, Turn, burst
from tidelog.net.tls import CLIENT, refuse_peer
from tidelog.net.transport import Accepting, Connection, Outgoing, Transport, outgoing
from tidelog.wire.codec import know_all_messages
from tidelog.wire.link_session import (
    PROTOCOL_VERSION,
    Answered,
    CloseLink,
    Deliver,
    Denied,
    Effect,
    Session,
    SessionOpened,
    Transmit,
)
from tidelog.wire.messages import Hello, Message, Welcome
from tidelog.wire.proof import NONCE_BYTES, Prover

__all__ = ["OUTBOX_BYTES", "PROTOCOL_VERSION", "Handler", "Link", "burst", "connect_link", "serve_links"]

SEND_TIMEOUT_S = 10.0
"""Seconds after which a send that has not ended drops the link."""
PATIENCE = Patience(15.0, 15.0)
"""The default patience: a peer that is silent for this long counts as dead."""
CLOSE_TIMEOUT_S = 2.0
"""Seconds that a link has to send what is queued after ``close``, and again to close its connection."""
SETTLING_TURNS = 5
"""Turns of the event loop that the timer waits before it times requests out: one to learn that data has arrived, one
to read it, and some for messages that this process is about to send itself."""
GOING_AWAY, INTERNAL_ERROR, TRY_AGAIN_LATER = 1001, 1011, 1013
"""WebSocket close codes (RFC 6455 §7.4)."""

Authenticate = Callable[[Hello, Connection], "TidelogError | None"]
"""Returns the refusal of a hello that came over this connection; None if the hello is accepted."""
Handler = Callable[["Link", int | None, Message], None]
"""Called inline with a message of the peer; must not block. A ``TidelogError`` that it raises answers the request."""

OnRefused = Callable[["Link", Message, TidelogError], None]
"""Called with a message that the link itself has refused: a hello, or an op that the peer's role may not send."""

_sources = itertools.count(1)


def new_source() -> int:
    """Return the number of a new link; no other link in this process has it."""
    return next(_sources)


class Link:
    """One open connection between two processes, with the protocol session over it: it sends requests, answers and
    one-way messages, and calls a handler with those of the peer. ``connect_link`` and ``serve_links`` make it. It
    ends with its connection and is never connected again."""

    def __init__(
        self,
        connection: Connection,
        session: Session,
        handler: Handler | None,
        on_open: Callable[[Link], None] | None = None,
        on_close: Callable[[Link], None] | None = None,
        on_refused: OnRefused | None = None,
        patience: Patience = PATIENCE,
        *,
        flow_control: bool = False,
    ) -> None:
        self._flow_control = flow_control
        self._stopped = False
        """Whether the reader receives nothing until queued messages have been sent."""
        self._detector = FailureDetector(patience, trio.current_time())
        self.source = new_source()
        """Unique number of this link in this process."""
        self.peer: Hello | Welcome
        """The hello or welcome of the other side (set when the link opens)."""
        self.remote = connection.remote
        self.identities = connection.identities
        """The identities in the peer's certificate; None if none is asked for."""
        self.error: TidelogError | None = None
        """The reason why the link has ended; None before."""
        self._connection = connection
        self._session = session
        self._handler = handler
        self._on_open = on_open
        self._on_close = on_close
        self._on_refused = on_refused
        self._outbox = SendQueue(connection)
        self._opened = trio.Event()
        self._ended = trio.Event()
        self._scope = trio.CancelScope()
        self._timer = trio.CancelScope()
        self._close: tuple[int, str] | None = None

    @property
    def closed(self) -> bool:
        """Return whether the link has ended or ``close`` was called, so that nothing more is sent."""
        return self._close is not None or self._ended.is_set()

    @property
    def sent_bytes(self) -> int:
        """Return how many bytes were queued on this link since it was opened, whether they are sent already or
        not."""
        return self._outbox.taken_bytes

    @property
    def patience_s(self) -> float:
        """Return the seconds for which the peer may be silent before the link is closed. The number follows how fast
        the peer has answered pings."""
        return self._detector.patience_s(trio.current_time())

    # --- what its users call -----------------------------------------------------------------------------

    async def call(self, request: Message, timeout_s: float) -> Message:
        """Send a request, wait for its answer and return the answer. Raises the error with which the peer answered
        (``BrokerError``), ``TimedOut`` after ``timeout_s`` seconds, ``Unreachable`` if the link ends, or
        ``OVERLOADED`` if too many requests wait already. If the caller is cancelled, a later answer is ignored."""
        answered = trio.Event()
        results: list[Message | TidelogError] = []

        def done(result: Message | TidelogError) -> None:
            results.append(result)
            answered.set()

        if self._session.is_waiting:  # others called, and may call in this turn: what they queue leaves together
            id = self._ask(request, timeout_s, done)
        else:
            with burst():
                id = self._ask(request, timeout_s, done)
        try:
            await answered.wait()
        except trio.Cancelled:
            self._session.forget(id)
            raise
        result = results[0]
        if isinstance(result, TidelogError):
            raise result
        return result

    def start_call(self, request: Message, timeout_s: float, done: Callable[[Message | TidelogError], None]) -> None:
        """Send a request without waiting. ``done`` is called exactly once with the answer or the error (the errors of
        ``call``), possibly before this method returns."""
        self._ask(request, timeout_s, done)

    def _ask(self, request: Message, timeout_s: float, done: Callable[[Message | TidelogError], None]) -> int:
        """Send a request, and let the timer wake in time for its timeout. Return the request's number. If the link is
        closing, call ``done`` with ``Unreachable`` and return -1."""
        if self._close is not None:
            done(Unreachable(f"the link to {self.remote} is closed"))
            return -1
        now = trio.current_time()
        id, effects = self._session.ask(request, done, timeout_s, now)
        self._perform(effects)
        if now + timeout_s < self._timer.deadline:
            self._timer.deadline = now + timeout_s
        return id

    def post(self, message: Message) -> None:
        """Queue a one-way message without waiting. The message is lost if the link has ended; if the send queue is
        full, the link is dropped."""
        self._perform(self._session.send_one_way(message))

    def post_encoded(self, message: Message, encoded: Outgoing) -> None:
        """Queue a one-way message that is encoded already, as ``post`` does. So a message for many peers is encoded
        once."""
        if self._session.is_open:
            self._queue(encoded)

    @property
    def has_space(self) -> bool:
        """Return whether the send queue has room for another message, so that ``send`` would not wait."""
        return self._outbox.has_room

    def send_now(self, message: Message) -> None:
        """Hand a one-way message to the kernel, or else to the send queue, without waiting or a switch of tasks. The
        caller checks ``has_space`` before. The message is lost if the link has ended."""
        with burst():
            self.post(message)

    async def send(self, message: Message) -> None:
        """Wait until the send queue has room, then queue a one-way message. Raises ``Unreachable`` if the link has
        ended or ends meanwhile."""
        while not self.has_space and not self.closed:
            await self._outbox.wait_room()
        if self.closed:
            raise Unreachable(f"the link to {self.remote} is closed")
        self.send_now(message)
        await trio.lowlevel.checkpoint()

    def answer(self, id: int, message: Message | TidelogError) -> None:
        """Queue the answer, or the error, to the peer's request with number ``id``, without waiting. It is called
        once for each request. Does nothing if the link has ended; if the send queue is full, the link is dropped."""
        self._perform(self._session.answer(id, message))

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the link with a WebSocket close code, after the queued messages are sent, at most ``CLOSE_TIMEOUT_S``
        later. Returns at once. Calls in flight end with ``Unreachable``; further messages of the peer are ignored. A
        second call does nothing."""
        if self._close is None:
            self._close = (code, reason)
            self._scope.deadline = min(self._scope.deadline, trio.current_time() + CLOSE_TIMEOUT_S)
            self._outbox.wake()
            self._outbox.stop_waiting()

    async def wait_closed(self) -> None:
        """Wait until the link has ended: closed by either side, or broken by the network. Returns at once if it has
        ended."""
        await self._ended.wait()

    # --- performing --------------------------------------------------------------------------------------

    def _perform(self, effects: list[Effect]) -> None:
        """Carry out the effects of the protocol session in order: queue bytes to send, call the handler, end calls,
        open, or close the link."""
        for effect in effects:
            match effect:
                case Transmit(head, payload):
                    self._queue(outgoing(head, payload))
                case Deliver(id, message):
                    self._deliver(id, message)
                case Answered(done, result):
                    done(result)
                case SessionOpened(peer):
                    self.peer = peer
                    self._opened.set()
                    if self._on_open is not None:
                        self._on_open(self)
                case Denied(message, why):
                    if self._on_refused is not None:
                        self._on_refused(self, message, why)
                case CloseLink(code, reason, error):
                    self.error = self.error or error
                    self.close(code, reason)

    def _queue(self, message: Outgoing) -> None:
        """Queue a message for the writer; drop the link if the send queue is overfull. Does nothing if the link is
        closing."""
        if self._close is not None:
            return
        self._outbox.put(message)
        if self._outbox.is_overfull:
            self._drop(TRY_AGAIN_LATER, Unreachable(f"{self.remote} does not read: its outbox is full"))

    def _deliver(self, id: int | None, message: Message) -> None:
        """Call the handler with a message of the peer, and answer a request with the ``TidelogError`` that the
        handler raises; one that it raises for a one-way message is raised. Without a handler, answer requests with
        ``UNSUPPORTED`` and ignore one-way messages. Does nothing if the link is closing."""
        if self._close is not None:
            return
        if self._handler is None:
            if id is not None:
                self.answer(id, TidelogError("nothing is served here", code="UNSUPPORTED"))
            return
        try:
            self._handler(self, id, message)
        except TidelogError as error:
            if id is None:
                raise
            self.answer(id, error)

    def _drop(self, code: int, error: TidelogError) -> None:
        """End the link at once with ``error`` and this WebSocket close code. Queued messages are lost."""
        self.error = self.error or error
        if self._close is None:
            self._close = (code, error.message)
        self._scope.cancel()

    # --- running -----------------------------------------------------------------------------------------

    async def wait_open(self) -> None:
        """Wait until the peer has accepted the hello. Raises the peer's refusal (``BrokerError``), ``TimedOut`` or
        ``Unreachable`` if the link ends before."""
        await self._opened.wait()
        if self._session.peer is None:
            assert self.error is not None
            raise self.error

    async def run(self) -> None:
        """Receive, send, ping and time out requests until the connection is closed. A fault of the network or of the
        peer only ends the link; ``error`` then has the reason. An exception of the handler or of a callback is
        raised, after the connection was closed with code 1011."""
        self._connection.on_urgent = self._outbox.wake
        ending = (GOING_AWAY, "going away")
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._run_writer, nursery.cancel_scope)
                    nursery.start_soon(self._run_timer)
                    await self._run_reader()
                    nursery.cancel_scope.cancel()
            ending = (1000, "")
        except Exception:
            ending = (INTERNAL_ERROR, "internal error")
            raise
        finally:
            self._close = code, reason = self._close or ending
            self._end()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_TIMEOUT_S):
                await self._connection.aclose(code, reason)

    def _end(self) -> None:
        """Mark the link as ended, end all waiting calls with ``Unreachable``, wake all tasks that wait for the link,
        and call ``on_close`` if the link was open."""
        self.error = self.error or Unreachable(f"the link to {self.remote} is closed")
        was_open = self._session.peer is not None
        self._ended.set()
        self._opened.set()
        self._outbox.stop_waiting()
        try:
            self._perform(self._session.on_closed(self.error))
        finally:
            if was_open and self._on_close is not None:
                self._on_close(self)

    async def _run_reader(self) -> None:
        """Receive messages and handle each one, until the link closes; then sleep until cancelled. Returns if the
        connection breaks. A message that breaks the protocol closes the link."""
        receive, on_data, perform = self._connection.receive, self._session.on_data, self._perform
        turn = Turn(ACCEPTED_TURN_S if self._session.accepts else CONNECTED_TURN_S)
        self._connection.on_wait = turn.send_collected
        try:
            while True:
                data = await receive()
                if turn.is_over:  # more has arrived, but other tasks must run
                    turn.send_collected()
                    await trio.lowlevel.checkpoint()
                turn.count_and_collect()
                perform(on_data(data))
                if self._flow_control and self._outbox.is_filling:
                    turn.send_collected()
                    await self._wait_until_sent()
                if self._close is not None:
                    break
        except ProtocolError as error:
            perform(self._session.fail(error))
        except Unreachable as error:
            self.error = self.error or without_frames(error)
            return
        finally:
            turn.send_collected()
        await trio.sleep_forever()  # closing: the writer, or the deadline, ends it

    async def _wait_until_sent(self) -> None:
        """Receive nothing until the send queue has room. Pongs are not received meanwhile either, so at the end the
        peer counts as heard."""
        self._stopped = True
        while not self._outbox.has_room and self._close is None:
            await self._outbox.wait_room()
        self._stopped = False
        self._connection.heard_at = self._connection.answered_at = trio.current_time()

    async def _run_writer(self, scope: trio.CancelScope) -> None:
        """Send queued messages until the connection breaks, or until ``close`` was called and the queue is empty;
        then cancel ``scope``, which ends the link."""
        outbox = self._outbox
        try:
            while True:
                await outbox.send()
                if outbox:
                    continue
                if self._close is not None:
                    break
                await outbox.wait_work()
        except Unreachable as error:
            self.error = self.error or without_frames(error)
        scope.cancel()

    async def _run_timer(self) -> None:
        """Time out requests, ping a quiet peer, and drop a peer that does not read or does not answer pings, until
        cancelled."""
        detector, connection = self._detector, self._connection
        planned = math.inf
        while True:
            now = trio.current_time()
            late_s = max(0.0, now - planned)
            if (due := self._session.deadline()) is not None and now >= due:
                for _ in range(SETTLING_TURNS):  # after a step that was long the answer may be there
                    await trio.lowlevel.checkpoint()
            self._perform(self._session.on_tick(now))
            sending_since = self._outbox.sending_since
            if sending_since is not None:
                sending_since = self._outbox.sending_since = min(now, sending_since + late_s)
                if now >= sending_since + SEND_TIMEOUT_S:
                    self._drop(TRY_AGAIN_LATER, Unreachable(f"{self.remote} does not read", unknown_outcome=True))
            planned = now + detector.ping_every_s
            if not self._stopped:
                verdict = detector.judge(now, late_s, connection.heard_at, connection.answered_at)
                if verdict == "ping":
                    connection.ping()
                elif verdict == "dead":
                    text = f"{self.remote} is silent, and has answered pings within {detector.slowest_s:.3f} s"
                    self._drop(TRY_AGAIN_LATER, Unreachable(text, unknown_outcome=True))
                planned = detector.due_at(now, connection.heard_at)
            due = self._session.deadline()
            planned = planned if due is None else min(due, planned)
            with trio.CancelScope(deadline=planned) as self._timer:
                await trio.sleep_forever()


@asynccontextmanager
async def connect_link(
    transport: Transport,
    url: str,
    hello: Hello,
    handler: Handler | None = None,
    patience: Patience = PATIENCE,
    trust: Callable[[Welcome], TidelogError | None] | None = None,
) -> AsyncIterator[Link]:
    """Connect to ``url``, exchange hello and welcome, yield the open link, and close it at the end of the block. The
    block is not cancelled when the link breaks: calls then raise ``Unreachable``, and ``wait_closed`` returns. The
    link also breaks if the peer is silent for longer than ``patience`` allows. Raises ``Unreachable`` if there is no
    connection, the server's refusal of the hello, or this end's refusal of the server: that which ``trust`` returns
    for its welcome, or, if this end is a service, that of a server whose certificate does not name it."""
    connection = await transport.connect(url)
    if hello.role != CLIENT:
        trust = lambda welcome: refuse_peer(welcome, connection.identities)  # noqa: E731
    prover = None if hello.role == CLIENT else _prover(transport, (url,))
    session = Session(trio.current_time(), trust=trust, prover=prover)
    link = Link(connection, session, handler, patience=patience)
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        try:
            link._perform(session.greet(hello))
            await link.wait_open()
            yield link
        except GeneratorExit:
            raise
        except BaseException as error:  # raised again below, so that the nursery does not wrap it in a group
            failure = error
        link.close()
    if failure is not None:
        raise failure


async def serve_links(
    transport: Transport,
    host: str,
    port: int,
    welcome: Callable[[Hello], Welcome | TidelogError],
    handler: Handler,
    *,
    allowed: Mapping[str, frozenset[str]],
    authenticate: Authenticate = lambda hello, connection: refuse_peer(hello, connection.identities),
    on_open: Callable[[Link], None] | None = None,
    on_close: Callable[[Link], None] | None = None,
    on_refused: OnRefused | None = None,
    own_urls: Collection[str] | None = None,
    flow_control: bool = False,
    role: str = "",
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    **accepting: Unpack[Accepting],
) -> None:
    """Open a port and accept links until cancelled. Reports the port's URL through ``task_status``. Raises
    ``ConfigError`` if the port is in use.

    ``authenticate``, then ``welcome`` decide about each hello. ``allowed`` has the ops that each role may send: other
    ops are answered with ``FORBIDDEN``, and hellos of other roles are refused. ``handler`` is called with each
    message. ``on_open`` and ``on_close`` are called once for each link whose hello was accepted, ``on_refused`` for
    each refused hello or op. ``own_urls``: if it is given and the transport has a secret, each peer must prove that
    it has the secret, too, and must have dialed one of these addresses or the one at which it was accepted.
    ``flow_control``: stop receiving from a peer while too much is queued for it (see the module). ``role``: the role
    of this service if it is no gateway; the refusal of a hello has it in its detail.
    """

    know_all_messages()

    async def on_connection(connection: Connection) -> None:
        def admit(hello: Hello) -> Welcome | TidelogError:
            return authenticate(hello, connection) or welcome(hello)

        prover = None if own_urls is None else _prover(transport, (connection.local_url, *own_urls))
        session = Session(trio.current_time(), welcome=admit, allowed=allowed, prover=prover, role=role)
        link = Link(connection, session, handler, on_open, on_close, on_refused, flow_control=flow_control)
        await link.run()

    await transport.serve(host, port, on_connection, task_status=task_status, **accepting)


def _prover(transport: Transport, urls: Collection[str]) -> Prover | None:
    return Prover(transport.secret, secrets.token_bytes(NONCE_BYTES), urls) if transport.secret else None
