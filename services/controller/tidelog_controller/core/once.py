"""Each request once (Raft §8, dissertation §6.3): what the last requests of each client were answered.

A client that got no answer asks again, perhaps another controller: with the same client id and sequence. What was
applied is not applied again; it is answered as it was then. The table is part of the replicated state, so every
controller forgets the same at the same place in the log: beyond ``PER_CLIENT`` requests of a client the ones with the
smallest sequences, and beyond ``CLIENTS`` clients the one that was silent longest."""

from __future__ import annotations

from dataclasses import dataclass, field

import cbor2
from tidelog.errors import TidelogError, from_info, refuse
from tidelog.wire.codec import MESSAGES
from tidelog.wire.messages import ErrorInfo, Message

from tidelog_controller.core.document import from_document, to_document

CLIENTS = 1024
PER_CLIENT = 64


@dataclass(frozen=True, slots=True)
class RequestId:
    """Which request of which client; sequences begin with 1 and grow."""

    client: str
    sequence: int


@dataclass(frozen=True, slots=True)
class _Answered:
    """An answer as bytes: the class's name ("": an error) and its document."""

    kind: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Client:
    """One client: its last answers by sequence, and below which sequence they are forgotten."""

    answers: dict[int, _Answered] = field(default_factory=dict)
    forgotten: int = 0


@dataclass(frozen=True, slots=True)
class Once:
    """The table. Never changed in place; the client heard last stands last."""

    clients: dict[str, Client] = field(default_factory=dict)

    def find(self, request: RequestId) -> Message | TidelogError | None:
        """How it was answered; None if it is new. One that is too old to be remembered is refused."""
        client = self.clients.get(request.client)
        if client is None:
            return None
        if request.sequence in client.answers:
            return _read(client.answers[request.sequence])
        if request.sequence <= client.forgotten:
            return refuse("MALFORMED", f"request {request.sequence} of {request.client} was answered too long ago")
        return None

    def with_answer(self, request: RequestId, answer: Message | TidelogError) -> Once:
        """With one more answer."""
        clients = dict(self.clients)
        client = clients.pop(request.client, Client())
        answers, forgotten = {**client.answers, request.sequence: _written(answer)}, client.forgotten
        while len(answers) > PER_CLIENT:
            oldest = min(answers)
            del answers[oldest]
            forgotten = max(forgotten, oldest)
        clients[request.client] = Client(answers, forgotten)
        while len(clients) > CLIENTS:
            del clients[next(iter(clients))]
        return Once(clients)


_KINDS = {kind.__name__: kind for kind in MESSAGES}


def _written(answer: Message | TidelogError) -> _Answered:
    if isinstance(answer, TidelogError):
        return _Answered("", cbor2.dumps(to_document(answer.to_info())))
    return _Answered(type(answer).__name__, cbor2.dumps(to_document(answer)))


def _read(answered: _Answered) -> Message | TidelogError:
    document = cbor2.loads(answered.data)
    if not answered.kind:
        return from_info(from_document(ErrorInfo, document))
    return from_document(_KINDS[answered.kind], document)
