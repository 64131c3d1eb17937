"""Each request once (Raft §8, dissertation §6.3): the answers to the last requests of each client.

A client that got no answer asks again, maybe another controller, with the same client id and sequence. A request
that was applied is not applied again; it gets the answer that it got then. The table is part of the replicated state,
so every controller forgets the same at the same place in the log: beyond ``PER_CLIENT`` requests of a client the ones
with the smallest sequences, and beyond ``CLIENTS`` clients the one that was silent longest, of the principal with the
most.

An answer belongs to one request. Since feature level ``REQUEST_DIGESTS`` a digest of the request is remembered with
it, and another request of the same client and sequence is refused: ``REQUEST_CONFLICT``. Below that level only the
kind of the answer tells one request from another (``fitting``), and the client that was silent longest is
forgotten."""

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
"""Number of clients whose answers are remembered, at most."""
PER_CLIENT = 64
"""Number of answers that are remembered of each client, at most."""
DIGEST_BYTES = 16
TEXT, DETAILS = 1024, 16
"""Number of characters that are kept of each text of a remembered refusal, and number of its details."""
NOT_ASKED = ("client", "sequence", "asker", "spared")
"""Fields of a request that name its sender and do not count as its content."""
_ASKED = Schema(
    ValueError,
    lambda cls, field: issubclass(cls, Message) or is_later(field),
    ignores_unknown=False,
    bounds_integers=False,
)
"""The schema by which a request is written for its digest."""


@dataclass(frozen=True, slots=True)
class RequestId:
    """The identity of one request of a client. A client numbers its requests from 1 on, and repeats a request under
    the same number."""

    client: str
    sequence: int
    digest: bytes = b""
    """The digest of the request's content (``digest_of``); empty below feature level ``REQUEST_DIGESTS``."""


@dataclass(frozen=True, slots=True)
class _Answered:
    """A remembered answer: the name of its class ("" for an error), its CBOR document, and the digest of the
    request."""

    kind: str
    data: bytes
    digest: bytes = later(b"")
    """The digest of the request's content; empty below feature level ``REQUEST_DIGESTS``."""


@dataclass(frozen=True, slots=True)
class Client:
    """The last answers to one client, by sequence number. ``forgotten`` is the highest sequence number whose answer
    has been dropped; 0 if none has."""

    answers: dict[int, _Answered] = field(default_factory=dict)
    forgotten: int = 0


@dataclass(frozen=True, slots=True)
class ClientSessions:
    """The remembered answers to all clients, part of the replicated state. An object never changes. ``clients`` is in
    the order of their last requests."""

    clients: dict[str, Client] = field(default_factory=dict)

    def find(self, request: RequestId) -> Message | TidelogError | None:
        """Return the remembered answer to a request; None if the request is new. Return the error
        ``REQUEST_CONFLICT`` if another request had the same number, and ``MALFORMED`` if the number is so old that
        its answer is forgotten."""
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
        """Return a table with this answer added. Answers beyond ``PER_CLIENT`` of a client and clients beyond
        ``CLIENTS`` are forgotten in it, the oldest first."""
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
    """Return a digest of ``DIGEST_BYTES`` bytes of the content of a request. Fields that name the sender are left
    out, and so are fields with their default, since an earlier release does not know them."""
    asked = {name: value for name, value in _ASKED.to_map(request).items() if name not in NOT_ASKED}
    return hashlib.sha256(cbor2.dumps([request.OP, asked], canonical=True)).digest()[:DIGEST_BYTES]


def fitting(answer: Message | TidelogError, asked: type[Message] | None) -> Message | TidelogError:
    """Return ``answer``, which was remembered for a request, if it is an error or of the class ``asked`` that answers
    the present request; any answer if ``asked`` is None. Otherwise return the error ``REQUEST_CONFLICT``: the client
    would take an answer of another class for a broken connection."""
    fits = isinstance(answer, TidelogError) or asked is None or isinstance(answer, asked)
    return answer if fits else _conflict()


def _conflict() -> TidelogError:
    """Return the error ``REQUEST_CONFLICT`` for a request whose number the client used for another request."""
    return refuse("REQUEST_CONFLICT", "the client's request of this number was another one: this one was not done")


def _first_to_go(clients: dict[str, Client]) -> str:
    """Return the name of the client to forget: of the principal with the most clients, the client that has been
    silent longest. So no principal can make the controllers forget the clients of another."""
    most = Counter(map(owner_of, clients)).most_common(1)[0][0]
    return next(name for name in clients if owner_of(name) == most)


_KINDS = {kind.__name__: kind for kind in MESSAGES}


def _written(answer: Message | TidelogError, digest: bytes) -> _Answered:
    """Return an answer in the form in which the table keeps it, with the digest of its request. If there is a digest,
    the texts of an error are shortened to ``TEXT`` characters."""
    if isinstance(answer, TidelogError):
        info = answer.to_info()
        if digest:
            detail = {key: text[:TEXT] for key, text in list(info.detail.items())[:DETAILS]}
            info = dataclasses.replace(info, message=info.message[:TEXT], detail=detail)
        return _Answered("", cbor2.dumps(STORED.to_map(info)), digest)
    return _Answered(type(answer).__name__, cbor2.dumps(STORED.to_map(answer)), digest)


def _read(answered: _Answered) -> Message | TidelogError:
    """Return the remembered answer, a message or an error, from the form that ``_written`` gave it."""
    document = cbor2.loads(answered.data)
    if not answered.kind:
        return from_info(STORED.from_map(ErrorInfo, document))
    return STORED.from_map(_KINDS[answered.kind], document)
