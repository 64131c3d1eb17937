"""Each request once (Raft §8, dissertation §6.3): what the last requests of each client were answered.

A client that got no answer asks again, perhaps another controller: with the same client id and sequence. What was
applied is not applied again; it is answered as it was then. The table is part of the replicated state, so every
controller forgets the same at the same place in the log: beyond ``PER_CLIENT`` requests of a client the ones with the
smallest sequences, and beyond ``CLIENTS`` clients the one that was silent longest, of the principal with the most.

An answer belongs to what was asked. Since feature level ``REQUEST_DIGESTS`` a digest of that is remembered with it,
and another request of the same client and sequence is refused: ``REQUEST_CONFLICT``. Below that level only the kind
of the answer tells one request from another (``fitting``), and the client that was silent longest is forgotten."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from dataclasses import dataclass, field

import cbor2
from tidelog.errors import TidelogError, from_info, refuse
from tidelog.request_names import owner_of
from tidelog.types import later
from tidelog.wire.codec import MESSAGES
from tidelog.wire.fields import is_later
from tidelog.wire.messages import ErrorInfo, Message
from tidelog.wire.schema import STORED, Schema

CLIENTS = 1024
PER_CLIENT = 64
DIGEST_BYTES = 16
TEXT, DETAILS = 1024, 16
"""Of a remembered refusal so many characters of each text are kept, and so many details."""
NOT_ASKED = ("client", "sequence", "asker", "spared")
"""Fields of a request that say who asks, not what."""
_ASKED = Schema(
    ValueError,
    lambda cls, field: issubclass(cls, Message) or is_later(field),
    ignores_unknown=False,
    bounds_integers=False,
)
"""How a request is written for its digest."""


@dataclass(frozen=True, slots=True)
class RequestId:
    """Which request of which client; sequences begin with 1 and grow."""

    client: str
    sequence: int
    digest: bytes = b""
    """Of what was asked (``digest_of``); empty below feature level ``REQUEST_DIGESTS``."""


@dataclass(frozen=True, slots=True)
class _Answered:
    """An answer as bytes: the class's name ("": an error) and its document."""

    kind: str
    data: bytes
    digest: bytes = later(b"")
    """Of the request."""


@dataclass(frozen=True, slots=True)
class Client:
    """One client: its last answers by sequence, and below which sequence they are forgotten."""

    answers: dict[int, _Answered] = field(default_factory=dict)
    forgotten: int = 0


@dataclass(frozen=True, slots=True)
class ClientSessions:
    """The table. Never changed in place; the client heard last stands last."""

    clients: dict[str, Client] = field(default_factory=dict)

    def find(self, request: RequestId) -> Message | TidelogError | None:
        """How it was answered; None if it is new. One that is too old to be remembered is refused, and one that is
        another than the one that was answered."""
        client = self.clients.get(request.client)
        if client is None:
            return None
        known = client.answers.get(request.sequence)
        if known is not None:
            if known.digest and request.digest and known.digest != request.digest:
                return _conflict()
            return _read(known)
        if request.sequence <= client.forgotten:
            return refuse("MALFORMED", f"request {request.sequence} of {request.client} was answered too long ago")
        return None

    def with_answer(self, request: RequestId, answer: Message | TidelogError) -> ClientSessions:
        """With one more answer."""
        clients = dict(self.clients)
        client = clients.pop(request.client, Client())
        answers, forgotten = {**client.answers, request.sequence: _written(answer, request.digest)}, client.forgotten
        while len(answers) > PER_CLIENT:
            oldest = min(answers)
            del answers[oldest]
            forgotten = max(forgotten, oldest)
        clients[request.client] = Client(answers, forgotten)
        while len(clients) > CLIENTS:
            del clients[_first_to_go(clients) if request.digest else next(iter(clients))]
        return ClientSessions(clients)


def digest_of(request: Message) -> bytes:
    """What is asked. A field with its default counts for nothing: an earlier release does not know it."""
    asked = {name: value for name, value in _ASKED.to_map(request).items() if name not in NOT_ASKED}
    return hashlib.sha256(cbor2.dumps([request.OP, asked], canonical=True)).digest()[:DIGEST_BYTES]


def fitting(answer: Message | TidelogError, asked: type[Message] | None) -> Message | TidelogError:
    """The answer, if it is one to such a request. Whoever asked would take any other for a broken connection."""
    fits = isinstance(answer, TidelogError) or asked is None or isinstance(answer, asked)
    return answer if fits else _conflict()


def _conflict() -> TidelogError:
    return refuse("REQUEST_CONFLICT", "the client's request of this number was another one: this one was not done")


def _first_to_go(clients: dict[str, Client]) -> str:
    """Of the principal with the most clients the one that was silent longest: nobody can have others forgotten."""
    most = Counter(map(owner_of, clients)).most_common(1)[0][0]
    return next(name for name in clients if owner_of(name) == most)


_KINDS = {kind.__name__: kind for kind in MESSAGES}


def _written(answer: Message | TidelogError, digest: bytes) -> _Answered:
    if isinstance(answer, TidelogError):
        info = answer.to_info()
        if digest:
            detail = {key: text[:TEXT] for key, text in list(info.detail.items())[:DETAILS]}
            info = dataclasses.replace(info, message=info.message[:TEXT], detail=detail)
        return _Answered("", cbor2.dumps(STORED.to_map(info)), digest)
    return _Answered(type(answer).__name__, cbor2.dumps(STORED.to_map(answer)), digest)


def _read(answered: _Answered) -> Message | TidelogError:
    document = cbor2.loads(answered.data)
    if not answered.kind:
        return from_info(STORED.from_map(ErrorInfo, document))
    return STORED.from_map(_KINDS[answered.kind], document)
