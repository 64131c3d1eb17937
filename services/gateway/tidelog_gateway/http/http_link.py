"""The link to a client over HTTP: it turns calls of the handlers into messages of a client, and hands them the
answers.

The gateway sees a ``ClientLink`` like that of a WebSocket: it registers it, counts it, sends it answers and
deliveries, and closes it when its client's rights end or the gateway does. One connection has one link at a time. A
request with another token gets another link, since a proxy sends requests of many clients over one connection.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeVar

import trio
from tidelog.errors import TidelogError, Unreachable, refuse
from tidelog.net.link import INTERNAL_ERROR, PROTOCOL_VERSION, new_source
from tidelog.net.send_queue import burst
from tidelog.net.tls import NodeIdentity
from tidelog.net.transport import Outgoing
from tidelog.types import Buffer
from tidelog.wire import codec
from tidelog.wire.codec import EncodedAnswer
from tidelog.wire.messages import Delivery, Hello, Message, Produce, ProduceAck, Produced, ProducePart, Subscribe

from tidelog_gateway.clients.connections import ClientConnections
from tidelog_gateway.http.responses import HttpError

Answer = TypeVar("Answer", bound=Message)
NAME = "http"
"""The name by which a client over HTTP is known."""


class HttpLink:
    """The link to one client over HTTP, a ``ClientLink``. Made by ``open_link``; the owner of the connection calls
    ``end``."""

    def __init__(
        self,
        clients: ClientConnections,
        remote: str,
        identities: tuple[NodeIdentity, ...] | None,
        token: str,
    ) -> None:
        self.source = new_source()
        self.peer: Hello = Hello(PROTOCOL_VERSION, "client", NAME, token=token)
        self.remote = remote
        self.identities = identities
        self.sent_bytes = 0
        """Bytes of responses that were sent; the connection counts them."""
        self.reason = ""
        """Why the gateway has closed the link; "" before."""
        self.on_closing: Callable[[], None] = lambda: None
        """Called when the gateway closes the link."""
        self._clients = clients
        self._ids = itertools.count(1)
        self._requests: dict[int, type[Message]] = {}
        """Unanswered requests: the class of the answer, by number."""
        self._results: dict[int, Message | TidelogError | ProduceAck] = {}
        self._waiting: set[int] = set()
        """Numbers of requests and batches that wait for their answer or ack."""
        self._news = trio.Event()
        self._on_delivery: dict[int, Callable[[Delivery], None]] = {}
        self._close_code: int | None = None
        self._ended = trio.Event()

    @property
    def principal(self) -> str:
        """Return the principal of the client."""
        return self._clients.principal_of(self)

    # --- what the gateway calls ------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Return whether the gateway has closed the link, or the connection has ended."""
        return self._close_code is not None or self._ended.is_set()

    def post(self, message: Message) -> None:
        """Take acks of batches, or a delivery of a subscription. Other messages are ignored."""
        if isinstance(message, Produced):
            for ack in message.acks:
                self._settle(ack.id, ack)
        elif isinstance(message, Delivery) and message.sub in self._on_delivery:
            self._on_delivery[message.sub](message)

    def post_encoded(self, message: Message, encoded: Outgoing) -> None:
        """Take a delivery, as ``post`` does; its encoded form is for WebSockets."""
        self.post(message)

    def answer(self, id: int, message: Message | TidelogError) -> None:
        """Take the answer to a request."""
        if isinstance(message, EncodedAnswer):
            head, payload = codec.encode(message, re=id)
            data = b"".join([head, *map(bytes, codec.payload_buffers(payload))])
            decoded = codec.decode(data, answers=lambda re: self._requests.get(re), limits=codec.ANSWERS)
            assert decoded.message is not None
            message = decoded.message
        self._settle(id, message)

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Have the connection end when the response that is under way is complete."""
        if self._close_code is None:
            self._close_code, self.reason = code, reason
            self.on_closing()

    async def wait_closed(self) -> None:
        """Wait until the connection, or this link of it, has ended."""
        await self._ended.wait()

    def _settle(self, id: int, result: Message | TidelogError | ProduceAck) -> None:
        if id in self._waiting:
            self._waiting.discard(id)
            self._results[id] = result
            self._news.set()

    # --- what handlers call ----------------------------------------------------------------------------------

    async def call(self, request: Message, answer: type[Answer]) -> Answer:
        """Have the gateway carry out a request of the client, and return its answer, of the class ``answer``. Raises
        the error with which it was refused."""
        id = next(self._ids)
        assert request.ANSWER is not None
        self._requests[id] = request.ANSWER
        self._waiting.add(id)
        try:
            self._pass_on(id, request)
            result = await self._result(id)
        finally:
            self._waiting.discard(id)
            del self._requests[id]
        if isinstance(result, TidelogError):
            raise result
        assert isinstance(result, answer)
        return result

    async def produce(self, parts: list[ProducePart], batches: list[Buffer]) -> list[ProduceAck]:
        """Send batches of the client, each with its part, and return their acks in the order of the parts. The ids of
        the parts are replaced."""
        numbered = tuple(_with_id(part, next(self._ids)) for part in parts)
        ids = [part.id for part in numbered]
        self._waiting.update(ids)
        try:
            self._pass_on(None, Produce(numbered, b"".join(batches)))
            results = [await self._result(id) for id in ids]
        finally:
            self._waiting.difference_update(ids)
        return [result for result in results if isinstance(result, ProduceAck)]

    async def subscribe(self, request: Subscribe, on_delivery: Callable[[Delivery], None]) -> None:
        """Begin a subscription of the client; ``on_delivery`` is called with each delivery. It lasts until ``end``.
        Raises the error with which it was refused."""
        self._on_delivery[request.sub] = on_delivery
        await self.call(request, Message)

    def send(self, message: Message) -> None:
        """Pass a one-way message of the client to the gateway."""
        self._pass_on(None, message)

    def _pass_on(self, id: int | None, message: Message) -> None:
        """Pass a message of the client to the gateway, and send at once what servers get because of it."""
        with burst():
            self._clients.on_message(self, id, message)

    async def _result(self, id: int) -> Message | TidelogError | ProduceAck:
        """Wait for the answer or ack with this number. Raises ``HttpError`` (500) if a bug of the gateway has ended
        the request, and ``Unreachable`` if the link has ended."""
        while id not in self._results:
            if self._ended.is_set() or self._close_code == INTERNAL_ERROR:
                break
            self._news = trio.Event()
            await self._news.wait()
        if self._close_code == INTERNAL_ERROR:
            raise HttpError(500, "internal error", code="UNREACHABLE")
        if id not in self._results:
            raise Unreachable("the connection is closed", unknown_outcome=True)
        return self._results.pop(id)

    # --- its life --------------------------------------------------------------------------------------------

    def end(self) -> None:
        """End the link: the gateway forgets the client, and calls that wait fail. A second call does nothing."""
        if not self._ended.is_set():
            self._ended.set()
            self._news.set()
            self._clients.on_close(self)


def open_link(
    clients: ClientConnections, remote: str, identities: tuple[NodeIdentity, ...] | None, token: str
) -> HttpLink:
    """Return the link to the client that shows this token ("": none) or these identities, registered with the
    gateway. Raises the refusal."""
    link = HttpLink(clients, remote, identities, token)
    refusal = clients.authenticate(link.peer, link)
    if refusal is not None:
        raise refusal
    clients.on_open(link)
    return link


def token_of(header: str) -> str:
    """Return the bearer token in a header ``Authorization``; "" if the header is missing. Raises ``UNAUTHENTICATED``
    for another scheme."""
    if not header:
        return ""
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise refuse("UNAUTHENTICATED", "the header is Authorization: Bearer TOKEN")
    return token.strip()


def _with_id(part: ProducePart, id: int) -> ProducePart:
    return ProducePart(
        id,
        part.topic_id,
        part.partition,
        part.acks,
        part.timeout_ms,
        part.size,
        expected_offset=part.expected_offset,
    )
