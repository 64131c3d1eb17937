"""The session of one connection, sans-I/O: handshake, requests and answers, deadlines, and the ops that a peer may
send.

Theory. A session is *greeting*, then *open*, then *closed*.

- Greeting: the connecting end sends ``hello`` as request 0 and waits for ``welcome`` or an error. The accepting end
  accepts nothing but a hello, asks its ``welcome`` policy, and answers. Both have ``HELLO_TIMEOUT_S``. Only then is
  there a peer with a role. The role decides which ops the peer may send. If the services have a secret, both ends
  prove that they have it (``proof``), and the session opens after that.
- Open: both ends send requests and answers. A request of this end is pending from ``ask`` until its answer, its
  deadline, or the end of the session, whichever is first. Its ``token`` comes back exactly once, in an ``Answered``.
  A request of the peer is owed an answer from its ``Deliver`` until ``answer``; meanwhile its number is not used
  again. Both are limited to ``max_in_flight``: a request of this end beyond it is refused here, and a request of the
  peer is answered ``OVERLOADED``.
- Closed: every pending request has ended ``UNREACHABLE``; inputs do nothing.

If the protocol has an answer to a fault of the peer, the fault is answered: an unknown op, a forbidden op, a request
that cannot be decoded and has a number (``refused_messages``). Every other fault closes the connection with a reason
(``CloseLink``). An unknown one-way message is ignored, because the peer may be of a later release.

The deadline kept for the pending requests is a lower bound: the earliest that was set since the last check. A tick
that is too early costs one check of the pending requests, and happens at most once per timeout. So no heap has to be
kept in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tidelog.errors import ProtocolError, TidelogError, TimedOut, Unreachable, refuse, without_frames
from tidelog.wire import codec
from tidelog.wire.capabilities import STRICT
from tidelog.wire.messages import Hello, Message, Payload, Prove, Welcome
from tidelog.wire.proof import Prover
from tidelog.wire.schema import CLOSE_PROTOCOL

PROTOCOL_VERSION = 1
"""The one version of the protocol that this release speaks. A hello names a range of versions, the welcome the one
that is spoken."""
HELLO_TIMEOUT_S = 5.0
SUBPROTOCOL = "tidelog.v1"
MAX_MESSAGE_BYTES = 16 << 20
"""Largest message that any end accepts. The largest that is sent is a fetch answer (4 MiB and a batch)."""
CLIENT_ROLE = "client"
POLICY_VIOLATION = 1008


@dataclass(frozen=True, slots=True)
class Transmit:
    """Effect: the link sends these bytes to the peer as one message, ``head`` before ``payload``."""

    head: bytes
    payload: Payload = b""


@dataclass(frozen=True, slots=True)
class Deliver:
    """Effect: the link calls its handler with a message of the peer. A request has an ``id``, and the handler must
    answer it with ``Session.answer``; a one-way message has the id None."""

    id: int | None
    message: Message


@dataclass(frozen=True, slots=True)
class Denied:
    """Effect: the session has refused a hello, or a message with an op that the peer's role may not send. The link
    does not deliver it, and reports message and error to its owner (for the audit). The answer to the peer is an
    effect of its own."""

    message: Message
    error: TidelogError


@dataclass(frozen=True, slots=True)
class Answered:
    """Effect: a request of this end has ended with ``result``: its answer, or the error with which it failed.
    ``token`` is the one that was given to ``Session.ask``; every token comes back exactly once."""

    token: Any
    result: Message | TidelogError


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """Effect: the handshake has succeeded, and messages may be sent. ``peer`` is the hello or welcome of the other
    end."""

    peer: Hello | Welcome


@dataclass(frozen=True, slots=True)
class CloseLink:
    """Effect: the link sends the messages that were transmitted before, then closes with this WebSocket code and
    reason. ``error`` is why the link ends, as the end that connected reports it to its caller."""

    code: int
    reason: str
    error: TidelogError | None = None


Effect = Transmit | Deliver | Denied | Answered | SessionOpened | CloseLink


@dataclass(slots=True)
class _PendingCall:
    """A request of this end that waits for its answer."""

    answer: type[Message]
    deadline: float
    token: Any


class Session:
    """The protocol state of one end of one connection: the handshake, the requests that wait for an answer of the
    peer, and the requests of the peer that this end has not answered. It does no I/O: its methods return effects,
    which the link performs. ``peer`` is None until the handshake is done."""

    def __init__(
        self,
        now: float,
        *,
        welcome: Callable[[Hello], Welcome | TidelogError] | None = None,
        allowed: Mapping[str, frozenset[str]] | None = None,
        trust: Callable[[Welcome], TidelogError | None] | None = None,
        max_in_flight: int = 4096,
        prover: Prover | None = None,
        role: str = "",
    ) -> None:
        """``welcome`` returns the answer to a hello, if this end accepts the connection; it is None if this end
        connects. ``allowed`` has the ops that each role may send to an accepting end; None allows all. ``trust``
        returns why a connecting end refuses the other end after its welcome, or None. With a ``prover`` both ends
        must prove that they have the cluster's secret. ``role`` is that of an accepting end that is no gateway:
        refusals of a hello have it in their detail, so that a client learns where it is."""
        self._role = role
        self.peer: Hello | Welcome | None = None
        self.closed = False
        self._welcome = welcome
        self._trust = trust
        self._allowed_by_role = allowed
        self._allowed: frozenset[str] | None = frozenset()
        self._limits = codec.STRANGER if welcome else codec.ANSWERS
        self._strict = False
        """Whether requests of the peer with unknown keys are refused."""
        self._max_in_flight = max_in_flight
        self._pending: dict[int, _PendingCall] = {}
        self._owed: set[int] = set()
        self._prover = prover
        self._greeted: tuple[Hello, Welcome | None] | None = None
        self._next_id = 1
        self._hello_deadline: float | None = now + HELLO_TIMEOUT_S
        self._earliest: float | None = None

    # --- our side ----------------------------------------------------------------------------------------

    def greet(self, hello: Hello) -> list[Effect]:
        """Return the effect that sends the hello, with which the connecting end begins the handshake."""
        if self._prover is not None:
            hello = self._prover.greeting(hello)
        self._greeted = hello, None
        return [Transmit(*codec.encode(hello, id=0))]

    def ask(self, request: Message, token: Any, timeout_s: float, now: float) -> tuple[int, list[Effect]]:
        """Send a request. Return its number (for ``forget``) and the effects to perform. The request ends later with
        the effect ``Answered(token, …)``. It ends at once, with ``Unreachable`` or ``OVERLOADED``, if the session is
        not open or too many requests wait."""
        assert request.ANSWER is not None, f"{type(request).__name__} is no request"
        id = self._next_id
        if not self.is_open:
            return id, [Answered(token, Unreachable("the connection is not open"))]
        if len(self._pending) >= self._max_in_flight:
            return id, [Answered(token, refuse("OVERLOADED", f"{self._max_in_flight} requests wait already"))]
        self._next_id += 1
        deadline = now + timeout_s
        transmit = Transmit(*codec.encode(request, id=id))
        self._pending[id] = _PendingCall(request.ANSWER, deadline, token)
        if self._earliest is None or deadline < self._earliest:
            self._earliest = deadline
        return id, [transmit]

    @property
    def accepts(self) -> bool:
        """Return whether this end accepted the connection; False if it connected."""
        return self._welcome is not None

    @property
    def is_open(self) -> bool:
        """Return whether messages may be sent: the handshake is done, and the session has not closed."""
        return self.peer is not None and not self.closed

    @property
    def is_waiting(self) -> bool:
        """Return whether any request of this end waits for its answer."""
        return bool(self._pending)

    def forget(self, id: int) -> None:
        """Stop waiting for the answer to request ``id``: a later answer is ignored. Does nothing for an unknown
        number."""
        self._pending.pop(id, None)

    def send_one_way(self, message: Message) -> list[Effect]:
        """Return the effect that sends a one-way message. Return no effect if the session is not open: the message is
        lost."""
        if not self.is_open:
            return []
        return [Transmit(*codec.encode(message))]

    def answer(self, id: int, result: Message | TidelogError) -> list[Effect]:
        """Return the effect that sends the answer, or the error, to the peer's request ``id``; no effect if the
        session has closed. If the answer is longer than ``MAX_MESSAGE_BYTES``, at which the peer would close the
        link, the peer gets ``ANSWER_TOO_LARGE`` instead. Fails an assertion if the request was answered before."""
        if self.closed:
            return []
        assert id in self._owed, f"request {id} is not owed an answer"
        self._owed.discard(id)
        if isinstance(result, TidelogError):
            return [Transmit(codec.encode_error(id, result))]
        head, payload = codec.encode(result, re=id)
        size = len(head) + codec.payload_size(payload)
        if size > MAX_MESSAGE_BYTES:
            limit = f"the answer has {size} bytes, and a message has at most {MAX_MESSAGE_BYTES}"
            return [Transmit(codec.encode_error(id, refuse("ANSWER_TOO_LARGE", limit)))]
        return [Transmit(head, payload)]

    # --- the peer's side ---------------------------------------------------------------------------------

    def on_data(self, data: bytes | bytearray) -> list[Effect]:
        """Process a whole message of the peer, and return the effects: go on with the handshake, end the request that
        the message answers, or deliver or refuse it. A message that breaks the protocol closes the link. Return no
        effects if the session has closed."""
        if self.closed:
            return []
        try:
            decoded = codec.decode(data, answers=self._answer_class, limits=self._limits, strict=self._strict)
        except ProtocolError as error:
            return self._refuse(data, error)
        try:
            if self.peer is None:
                return self._on_greeting(decoded)
            if decoded.re is not None:
                return self._on_answer(decoded.re, decoded.message, decoded.error)
            return self._on_op(decoded)
        except ProtocolError as error:
            return self.fail(error)

    def _refuse(self, data: bytes | bytearray, error: ProtocolError) -> list[Effect]:
        """Return the effects for a message that cannot be decoded: the answer, if there is a number to answer to;
        otherwise ``CloseLink``. A hello gets both."""
        from tidelog.wire.refused_messages import RefusedRequest, refusal_of  # most processes never need it

        refused = refusal_of(data, error, self._limits, strict=self._strict)
        if refused is None or (self.peer is None and refused.op != Hello.OP):
            return self.fail(error)
        if self.peer is None and isinstance(refused, RefusedRequest):
            return [Transmit(codec.encode_error(refused.id, refused.error)), *self.fail(error)]
        if isinstance(refused, RefusedRequest):
            if refused.id in self._owed:
                return self.fail(_in_use(refused.id))
            why = self._refuse_op(refused.op) or refused.error
            return [Transmit(codec.encode_error(refused.id, why))]
        if self._refuse_op(refused.op) is not None:
            return self.fail(error)
        acks = Transmit(*codec.encode(refused.acks))
        return [acks] if refused.rest is None else [acks, Deliver(None, refused.rest)]

    def fail(self, error: ProtocolError) -> list[Effect]:
        """Return the effect that closes the link because the peer broke the protocol, with the close code in the
        error."""
        code = error.detail.get("close_code", CLOSE_PROTOCOL)
        return [CloseLink(int(code), error.message, without_frames(error))]

    def on_closed(self, error: TidelogError) -> list[Effect]:
        """Close the session, because the connection has ended. Return an effect for every waiting request, which ends
        with ``Unreachable`` and an unknown outcome. A second call returns no effects."""
        if self.closed:
            return []
        self.closed = True
        self._hello_deadline = self._earliest = None
        ended, self._pending = self._pending, {}
        self._owed.clear()
        return [Answered(p.token, Unreachable(error.message, unknown_outcome=True)) for p in ended.values()]

    def _answer_class(self, re: int) -> type[Message] | None:
        """Return the class of the answer to request ``re`` of this end; None if nothing waits for it."""
        if self.peer is None:
            return Welcome if re == 0 and self._welcome is None else None
        pending = self._pending.get(re)
        return None if pending is None else pending.answer

    def _on_greeting(self, decoded: codec.Decoded) -> list[Effect]:
        """Process a message of the peer during the handshake. The connecting end expects the welcome or an error; the
        accepting end the hello, and the proof if a secret is needed. Raises ``ProtocolError`` for any other
        message."""
        if self._welcome is None:
            if decoded.error is not None and decoded.re == 0:
                return [CloseLink(1000, "", decoded.error)]
            if not isinstance(decoded.message, Welcome):
                raise ProtocolError("the first message was no welcome")
            if decoded.message.version != PROTOCOL_VERSION:
                raise ProtocolError(f"the server speaks version {decoded.message.version}, not {PROTOCOL_VERSION}")
            distrust = None if self._trust is None else self._trust(decoded.message)
            proof: list[Effect] = []
            if distrust is None and self._prover is not None:
                assert self._greeted is not None
                distrust = self._prover.refuse_welcome(self._greeted[0], decoded.message)
                proof = [Transmit(*codec.encode(self._prover.prove(self._greeted[0], decoded.message)))]
            if distrust is not None:
                return [CloseLink(POLICY_VIOLATION, distrust.message, distrust)]
            self._max_in_flight = min(self._max_in_flight, decoded.message.max_in_flight)
            self._allowed = None
            return [*proof, *self._open(decoded.message)]
        if self._greeted is not None:
            return self._on_proof(*self._greeted, decoded.message)
        hello = decoded.message
        if not isinstance(hello, Hello) or decoded.id is None:
            raise ProtocolError("the first message must be hello")
        answer = self._decide(hello, self._welcome)
        if isinstance(answer, TidelogError):
            if self._role:
                answer.detail["role"] = self._role
            answered = Transmit(codec.encode_error(decoded.id, answer))
            return [Denied(hello, answer), answered, CloseLink(POLICY_VIOLATION, answer.message, answer)]
        if self._prover is not None:
            answer = self._prover.answer(hello, answer)
            self._greeted = hello, answer
            return [Transmit(*codec.encode(answer, re=decoded.id))]
        return [Transmit(*codec.encode(answer, re=decoded.id)), *self._let_in(hello, answer)]

    def _on_proof(self, hello: Hello, welcome: Welcome | None, message: Message | None) -> list[Effect]:
        """Open the session if the connecting end has proved that it has the secret; close the link otherwise."""
        assert self._prover is not None and welcome is not None
        proof = message.proof if isinstance(message, Prove) else b""
        refusal = self._prover.refuse_proof(hello, welcome, proof)
        if refusal is not None:
            return [Denied(hello, refusal), CloseLink(POLICY_VIOLATION, refusal.message, refusal)]
        return self._let_in(hello, welcome)

    def _let_in(self, hello: Hello, welcome: Welcome) -> list[Effect]:
        """Open the session of the accepting end, with the ops and limits of the peer's role."""
        self._max_in_flight = welcome.max_in_flight
        self._allowed = None if self._allowed_by_role is None else self._allowed_by_role[hello.role]
        self._limits = codec.STRANGER if hello.role == CLIENT_ROLE else codec.SERVICE
        self._strict = STRICT in hello.capabilities and STRICT in welcome.capabilities
        return self._open(hello)

    def _decide(self, hello: Hello, welcome: Callable[[Hello], Welcome | TidelogError]) -> Welcome | TidelogError:
        """Return the welcome or the refusal of a hello: check version, role and the dialed URL before ``welcome`` is
        asked."""
        lowest = hello.version if hello.version_min < 0 else hello.version_min
        highest = hello.version if hello.version_max < 0 else hello.version_max
        if not lowest <= PROTOCOL_VERSION <= highest:
            asked = f"{lowest}" if lowest == highest else f"{lowest} to {highest}"
            text = f"this server speaks version {PROTOCOL_VERSION} of the protocol, not {asked}"
            return refuse("UNSUPPORTED", text, version_min=PROTOCOL_VERSION, version_max=PROTOCOL_VERSION)
        if self._allowed_by_role is not None and hello.role not in self._allowed_by_role:
            return refuse("FORBIDDEN", f"this server takes no connections of role {hello.role!r}")
        refusal = None if self._prover is None else self._prover.refuse_hello(hello)
        return refusal or welcome(hello)

    def _open(self, peer: Hello | Welcome) -> list[Effect]:
        self.peer = peer
        self._hello_deadline = None
        return [SessionOpened(peer)]

    def _on_answer(self, re: int, message: Message | None, error: TidelogError | None) -> list[Effect]:
        """Return the effect that ends the request that was answered; none if it no longer waits."""
        pending = self._pending.pop(re, None)
        result = message if error is None else error
        if pending is None or result is None:  # it came too late
            return []
        return [Answered(pending.token, result)]

    def _on_op(self, decoded: codec.Decoded) -> list[Effect]:
        """Deliver a request or one-way message of the peer. An op that its role may not send is refused with
        ``FORBIDDEN``, an unknown request with ``UNSUPPORTED``, and one too many with ``OVERLOADED``. Raises
        ``ProtocolError`` if the request's number is in use."""
        id = decoded.id
        if id is not None and id in self._owed:
            raise _in_use(id)
        error = self._refuse_op(decoded.op)
        if error is not None:
            refused: list[Effect] = [] if decoded.message is None else [Denied(decoded.message, error)]
            if id is None:
                return [*refused, CloseLink(POLICY_VIOLATION, error.message, error)]
            return [*refused, Transmit(codec.encode_error(id, error))]
        if decoded.message is None:
            if id is None:
                return []
            return [Transmit(codec.encode_error(id, refuse("UNSUPPORTED", f"no such operation: {decoded.op[:64]}")))]
        if id is not None:
            if len(self._owed) >= self._max_in_flight:
                most = self._max_in_flight
                error = refuse("OVERLOADED", f"more than {most} requests in flight", limit="requests", most=most)
                return [Transmit(codec.encode_error(id, error))]
            self._owed.add(id)
        return [Deliver(id, decoded.message)]

    def _refuse_op(self, op: str) -> TidelogError | None:
        """Return ``FORBIDDEN`` for an operation that the peer's role may not ask for; None for any other, also one
        that this release does not know."""
        if self._allowed is None or op in self._allowed or op not in codec.OPS:
            return None
        return refuse("FORBIDDEN", f"{op} is not allowed to a {getattr(self.peer, 'role', 'peer')}")

    # --- time --------------------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """Return when ``on_tick`` is to be called next, in seconds of the caller's clock; None if there is nothing to
        time out. The time may be earlier than the first timeout."""
        return self._hello_deadline if self._earliest is None else self._earliest

    def on_tick(self, now: float) -> list[Effect]:
        """Return the effects that are due at ``now``: ``CloseLink`` if the handshake took too long, otherwise an
        ``Answered`` for each request whose timeout has passed, with ``TimedOut`` and an unknown outcome. Late answers
        to these requests are ignored. The list is empty if nothing is due."""
        if self._hello_deadline is not None and now >= self._hello_deadline:
            self._hello_deadline = None
            text = f"no {'hello' if self._welcome else 'welcome'} within {HELLO_TIMEOUT_S:g} s"
            return [CloseLink(POLICY_VIOLATION, text, TimedOut(text))]
        if self._earliest is None or now < self._earliest:
            return []
        late = [(id, p) for id, p in self._pending.items() if p.deadline <= now]
        for id, _ in late:
            del self._pending[id]
        self._earliest = min([p.deadline for p in self._pending.values()], default=None)
        return [Answered(p.token, TimedOut("no answer in time", unknown_outcome=True)) for _, p in late]


def _in_use(id: int) -> ProtocolError:
    """Return the ``ProtocolError`` for a request whose number another unanswered request has. The connection ends,
    because nobody could tell the two answers apart."""
    return ProtocolError(f"request id {id} is in use already")
