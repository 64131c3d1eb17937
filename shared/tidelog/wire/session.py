"""One connection's conversation, sans-I/O: hello, request numbers, answers, deadlines, what a peer may ask.

Theory. A session is *greeting*, then *open*, then *closed*.

- Greeting: the connecting end sends ``hello`` as request 0 and waits for ``welcome`` or an error; the accepting end
  takes nothing but a hello, asks its ``welcome`` policy, and answers. Both have ``HELLO_TIMEOUT_S``. Only then is
  there a peer with a role, and with it the set of ops that it may send. Where services have a secret, both ends prove
  that they have it (``proof``), and the session opens after that.
- Open: both ends ask and answer. A request of ours is pending from ``ask`` until its answer, its deadline, or
  the end of the session, whichever is first, and its ``token`` comes back exactly once in an ``Answered``. A request
  of theirs is owed from its ``Deliver`` until ``answer``; its number is not used twice meanwhile. Both are limited to
  ``max_in_flight``: ours are refused here, theirs are answered ``OVERLOADED``.
- Closed: every pending request has ended ``UNREACHABLE``; inputs do nothing.

What the peer does wrong is answered, where the protocol has an answer (unknown op, forbidden op), or closes the
connection with a reason (``CloseLink``). An unknown one-way message is ignored: the peer may be newer than we are.

The deadline kept for the pending requests is a lower bound: the earliest ever set since the last look. A tick too
early costs a look at what is pending and happens at most once per timeout; no heap is kept in order for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tidelog.errors import ProtocolError, TidelogError, TimedOut, Unreachable, refuse, without_frames
from tidelog.wire import codec
from tidelog.wire.messages import Hello, Message, Payload, Prove, Welcome
from tidelog.wire.proof import Prover
from tidelog.wire.schema import CLOSE_PROTOCOL

PROTOCOL_VERSION = 1
"""Version that ``hello`` and ``welcome`` carry; both ends must say the same."""
HELLO_TIMEOUT_S = 5.0
SUBPROTOCOL = "tidelog.v1"
MAX_MESSAGE_BYTES = 16 << 20
"""Largest message that any side accepts; a fetch answer is the largest that is sent (4 MiB and a batch)."""
CLIENT_ROLE = "client"
POLICY_VIOLATION = 1008


@dataclass(frozen=True, slots=True)
class Transmit:
    """Send these bytes: head, then payload."""

    head: bytes
    payload: Payload = b""


@dataclass(frozen=True, slots=True)
class Deliver:
    """The peer sent this; with an ``id`` it must be answered with ``Session.answer``."""

    id: int | None
    message: Message


@dataclass(frozen=True, slots=True)
class Denied:
    """The peer said hello, or sent this, and was refused here: nobody else hears of it."""

    message: Message
    error: TidelogError


@dataclass(frozen=True, slots=True)
class Answered:
    """The request that was asked with ``token`` has ended."""

    token: Any
    result: Message | TidelogError


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """Greeting is over; the other side is ``peer``."""

    peer: Hello | Welcome


@dataclass(frozen=True, slots=True)
class CloseLink:
    """Send what was transmitted before, then close with this WebSocket code. ``error`` is what a connecting end
    should be told when it never opened."""

    code: int
    reason: str
    error: TidelogError | None = None


Effect = Transmit | Deliver | Denied | Answered | SessionOpened | CloseLink


@dataclass(slots=True)
class _PendingCall:
    answer: type[Message]
    deadline: float
    token: Any


class Session:
    """The conversation over one connection. ``peer`` is None while greeting."""

    def __init__(
        self,
        now: float,
        *,
        welcome: Callable[[Hello], Welcome | TidelogError] | None = None,
        allowed: Mapping[str, frozenset[str]] | None = None,
        trust: Callable[[Welcome], TidelogError | None] | None = None,
        max_in_flight: int = 4096,
        prover: Prover | None = None,
    ) -> None:
        """``welcome`` given: this end accepts; its policy decides about a hello. ``allowed``: ops by the peer's role
        (None: everything, for connecting ends). ``trust``: why a connecting end wants nothing to do with who welcomes
        it. ``prover``: both ends must have a secret."""
        self.peer: Hello | Welcome | None = None
        self.closed = False
        self._welcome = welcome
        self._trust = trust
        self._allowed_by_role = allowed
        self._allowed: frozenset[str] | None = frozenset()
        self._limits = codec.STRANGER if welcome else codec.ANSWERS
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
        """Connecting end: say hello."""
        if self._prover is not None:
            hello = self._prover.greeting(hello)
        self._greeted = hello, None
        return [Transmit(*codec.encode(hello, id=0))]

    def ask(self, request: Message, token: Any, timeout_s: float, now: float) -> tuple[int, list[Effect]]:
        """Send a request; its end comes as ``Answered(token, …)``, at once if it cannot be sent. The number is for
        ``forget``."""
        assert request.ANSWER is not None, f"{type(request).__name__} is no request"
        id = self._next_id
        if self.closed or self.peer is None:
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
        """Whether the peer has connected to this end, and not this end to the peer."""
        return self._welcome is not None

    @property
    def is_waiting(self) -> bool:
        """Some request of ours is not answered yet."""
        return bool(self._pending)

    def forget(self, id: int) -> None:
        """Nobody waits for this request any more; its answer will be ignored."""
        self._pending.pop(id, None)

    def tell(self, message: Message) -> list[Effect]:
        """Send a one-way message."""
        if self.closed or self.peer is None:
            return []
        return [Transmit(*codec.encode(message))]

    def answer(self, id: int, result: Message | TidelogError) -> list[Effect]:
        """Answer a delivered request; nothing when the session has closed."""
        if self.closed:
            return []
        assert id in self._owed, f"request {id} is not owed an answer"
        self._owed.discard(id)
        if isinstance(result, TidelogError):
            return [Transmit(codec.encode_error(id, result))]
        return [Transmit(*codec.encode(result, re=id))]

    # --- the peer's side ---------------------------------------------------------------------------------

    def on_data(self, data: bytes | bytearray) -> list[Effect]:
        """A message arrived."""
        if self.closed:
            return []
        try:
            decoded = codec.decode(data, answers=self._answer_class, limits=self._limits)
            if self.peer is None:
                return self._on_greeting(decoded)
            if decoded.re is not None:
                return self._on_answer(decoded.re, decoded.message, decoded.error)
            return self._on_op(decoded)
        except ProtocolError as error:
            return self.fail(error)

    def fail(self, error: ProtocolError) -> list[Effect]:
        """The peer broke the protocol: close."""
        code = error.detail.get("close_code", CLOSE_PROTOCOL)
        return [CloseLink(int(code), error.message, without_frames(error))]

    def on_closed(self, error: TidelogError) -> list[Effect]:
        """The connection is gone: everything pending ends with an unknown outcome."""
        if self.closed:
            return []
        self.closed = True
        self._hello_deadline = self._earliest = None
        ended, self._pending = self._pending, {}
        self._owed.clear()
        return [Answered(p.token, Unreachable(error.message, unknown_outcome=True)) for p in ended.values()]

    def _answer_class(self, re: int) -> type[Message] | None:
        if self.peer is None:
            return Welcome if re == 0 and self._welcome is None else None
        pending = self._pending.get(re)
        return None if pending is None else pending.answer

    def _on_greeting(self, decoded: codec.Decoded) -> list[Effect]:
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
            told = Transmit(codec.encode_error(decoded.id, answer))
            return [Denied(hello, answer), told, CloseLink(POLICY_VIOLATION, answer.message, answer)]
        if self._prover is not None:
            answer = self._prover.answer(hello, answer)
            self._greeted = hello, answer
            return [Transmit(*codec.encode(answer, re=decoded.id))]
        return [Transmit(*codec.encode(answer, re=decoded.id)), *self._let_in(hello, answer)]

    def _on_proof(self, hello: Hello, welcome: Welcome | None, message: Message | None) -> list[Effect]:
        assert self._prover is not None and welcome is not None
        proof = message.proof if isinstance(message, Prove) else b""
        refusal = self._prover.refuse_proof(hello, welcome, proof)
        if refusal is not None:
            return [Denied(hello, refusal), CloseLink(POLICY_VIOLATION, refusal.message, refusal)]
        return self._let_in(hello, welcome)

    def _let_in(self, hello: Hello, welcome: Welcome) -> list[Effect]:
        self._max_in_flight = welcome.max_in_flight
        self._allowed = None if self._allowed_by_role is None else self._allowed_by_role[hello.role]
        self._limits = codec.STRANGER if hello.role == CLIENT_ROLE else codec.SERVICE
        return self._open(hello)

    def _decide(self, hello: Hello, welcome: Callable[[Hello], Welcome | TidelogError]) -> Welcome | TidelogError:
        if hello.version != PROTOCOL_VERSION:
            return refuse("UNSUPPORTED", f"this server speaks version {PROTOCOL_VERSION}, not {hello.version}")
        if self._allowed_by_role is not None and hello.role not in self._allowed_by_role:
            return refuse("FORBIDDEN", f"this server takes no connections of role {hello.role!r}")
        refusal = None if self._prover is None else self._prover.refuse_hello(hello)
        return refusal or welcome(hello)

    def _open(self, peer: Hello | Welcome) -> list[Effect]:
        self.peer = peer
        self._hello_deadline = None
        return [SessionOpened(peer)]

    def _on_answer(self, re: int, message: Message | None, error: TidelogError | None) -> list[Effect]:
        pending = self._pending.pop(re, None)
        result = message if error is None else error
        if pending is None or result is None:  # it came too late
            return []
        return [Answered(pending.token, result)]

    def _on_op(self, decoded: codec.Decoded) -> list[Effect]:
        id = decoded.id
        if id is not None and id in self._owed:
            raise ProtocolError(f"request id {id} is in use already")
        if self._allowed is not None and decoded.op not in self._allowed and decoded.op in codec.OPS:
            error = refuse("FORBIDDEN", f"{decoded.op} is not allowed to a {getattr(self.peer, 'role', 'peer')}")
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
                error = refuse("OVERLOADED", f"more than {self._max_in_flight} requests in flight")
                return [Transmit(codec.encode_error(id, error))]
            self._owed.add(id)
        return [Deliver(id, decoded.message)]

    # --- time --------------------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """When ``on_tick`` is due; may be earlier than anything that happens then."""
        return self._hello_deadline if self._earliest is None else self._earliest

    def on_tick(self, now: float) -> list[Effect]:
        """End what is overdue."""
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
