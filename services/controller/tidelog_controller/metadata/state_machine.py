"""The replicated state machine: what every controller does with a committed entry, and its state as a document.

An entry's data is a command (``commands.py``), or ``[client, sequence, command]`` where the request is to be done at
most once (``metadata/client_sessions.py``), since feature level ``REQUEST_DIGESTS`` with the request's digest as a
fourth. The state is the metadata and the table of answered requests. As a document it is one CBOR map; it is written
in pieces, topic by topic, so that a thread that writes a large one lets others run in between. At feature level 1 it
says nothing of the level: releases that know of none read it too."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, get_args

import cbor2
from tidelog.errors import TidelogError
from tidelog.types import later_fields
from tidelog.wire.cbor import is_array, map_head
from tidelog.wire.fields import hints
from tidelog.wire.messages import Message
from tidelog.wire.schema import STORED

from tidelog_controller.metadata.application import apply, skip
from tidelog_controller.metadata.client_sessions import ClientSessions, RequestId
from tidelog_controller.metadata.commands import Command, decode_command, encode_command
from tidelog_controller.metadata.state import Applied, MetadataState
from tidelog_controller.metadata.timeline_state import PendingTimeline
from tidelog_controller.raft.log import Entry

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Replicated:
    """The whole replicated state after some entry of the log: the metadata, and in ``sessions`` the answers to each
    client's last requests. An object never changes."""

    metadata: MetadataState
    sessions: ClientSessions = field(default_factory=ClientSessions)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of applying one entry: the new state, and for an entry with a command also the command, its answer,
    and what it changed. ``command`` and ``applied`` are None if the entry held no command, or one whose request had
    been answered before; ``answer`` is then None, or the remembered answer."""

    state: Replicated
    answer: Message | TidelogError | None = None
    command: Command | None = None
    applied: Applied | None = None


def encode_proposal(command: Command, request: RequestId | None) -> bytes:
    """Return the data of a Raft entry with this command. ``request`` identifies the client's request behind it, so
    that a repetition is recognised; None if there is none."""
    data = encode_command(command)
    if request is None:
        return data
    digest = [request.digest] if request.digest else []
    return cbor2.dumps([request.client, request.sequence, data, *digest])


def decode_proposal(data: bytes) -> tuple[Command, RequestId | None]:
    """Return the command in the data of a Raft entry, and the identity of the client's request behind it (None if
    there is none). Raises ``ValueError`` for a command that this release does not know."""
    if not is_array(data):
        return decode_command(data), None
    client, sequence, command, *digest = cbor2.loads(data)
    return decode_command(command), RequestId(client, sequence, *digest)


def step(state: Replicated, entry: Entry) -> Outcome:
    """Return the outcome of applying one committed entry to ``state``, which stays as it is. A request that was
    answered before is not applied again; its outcome is the remembered answer. Every controller gets the same
    outcome. Raises ``ValueError`` for a command that this release does not know."""
    skipped = Replicated(skip(state.metadata, entry.index), state.sessions)
    if entry.is_members or not entry.data:
        return Outcome(skipped)
    command, request = decode_proposal(entry.data)
    known = None if request is None else state.sessions.find(request)
    if known is not None:
        return Outcome(skipped, known)
    applied = apply(state.metadata, command, entry.index)
    sessions = state.sessions if request is None else state.sessions.with_answer(request, applied.answer)
    return Outcome(Replicated(applied.state, sessions), applied.answer, command, applied)


def encode_state(state: Replicated) -> bytes:
    """Return the state as one CBOR map: ``format``, the fields of the metadata by name, and the client sessions under
    the name ``once``. ``decode_state`` reads it. It may take long, so callers run it in a thread."""
    metadata = state.metadata
    kinds = hints(MetadataState)
    for name, default in later_fields(MetadataState).items():
        if getattr(metadata, name) == default:
            del kinds[name]
    if metadata.level == 1:  # what an earlier release reads
        del kinds["level"]
    pieces = [map_head(len(kinds) + 2), cbor2.dumps("format"), cbor2.dumps(FORMAT)]
    pieces += [cbor2.dumps("once"), cbor2.dumps(STORED.to_map(state.sessions))]
    for name, kind in kinds.items():
        pieces.append(cbor2.dumps(name))
        value = getattr(metadata, name)
        if type(value) is dict:
            pieces.append(map_head(len(value)))
            encode = STORED.encoder(get_args(kind)[1])
            for key, one in value.items():
                pieces += [cbor2.dumps(key), cbor2.dumps(encode(one))]
        else:
            pieces.append(cbor2.dumps(STORED.encoder(kind)(value)))
    return b"".join(pieces)


def decode_state(data: bytes) -> Replicated:
    """Return the state in a document that ``encode_state`` wrote, in this or an earlier release. Raises
    ``ValueError`` for a document that is damaged or of a later release."""
    try:
        document: Any = cbor2.loads(data)
    except cbor2.CBORDecodeError as error:
        raise ValueError(f"the snapshot is no CBOR: {error}") from error
    if type(document) is not dict or document.pop("format", None) != FORMAT:
        raise ValueError("the snapshot is of a later version; upgrade this controller")
    sessions = STORED.from_map(ClientSessions, document.pop("once", {}))
    document.setdefault("level", 1)
    metadata = STORED.from_map(MetadataState, document)
    if "timeline" not in document and metadata.servers:  # an earlier release had no timeline: a gap
        metadata = dataclasses.replace(metadata, timeline=PendingTimeline(last=1))
    return Replicated(metadata, sessions)
