"""The contents of a record of the timeline: one CBOR map. Its key names what it is about, its timestamp is its time.

    type       ``event``, ``refused``, ``keyframe`` or ``gap``
    format     1; a reader ignores records of a later format
    event      the number of the event; of a keyframe or refusal: of the last event that was known then; of a gap: of
               the last event that is missing (``from`` is the first)
    time_ms    when that event was: the active controller's wall clock, made not to go back
    keyframe   [offset, event] of the last whole keyframe before this record's end, None where none is known: from
               there on everything can be rebuilt

An **event** has besides: ``index`` (of its Raft entry), ``kind``, ``cause``, ``evidence`` (texts by name), ``words``
(the event as a sentence) and what it is about: ``topic`` and ``topic_id``, with ``partition`` if it is about one;
or ``server``; or ``controller``. ``after`` is the thing as it is from now on, None if it is gone; ``before`` has the
old values of the fields that changed, None if the thing is new.

A **refusal** changed nothing, and is no event: ``op`` is the request, ``asked_by`` the principal that sent it,
``count`` how often since ``since_ms``; ``cause`` is the error's code, ``message`` its text. Some refusals may be
missing, or counted together.

A **keyframe** comes in ``parts`` consecutive records, numbered by ``part`` from 1: ``cluster``, ``servers``,
``controllers``, ``active`` and ``term`` in the first, and ``topics`` in all: each with ``topic``, ``topic_id``,
``config``, ``first`` (number of the first partition in this part) and ``partitions``.

No field ever changes its meaning; fields may be added."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import cbor2

from tidelog.types import PartitionState, ServerState, TopicConfig
from tidelog.wire.messages import ControllerMember

FORMAT = 1
"""Version of the records that this program writes and reads."""
Document = dict[str, Any]
"""A record of the timeline, or a part of one, as a map."""
Subject = PartitionState | ServerState | TopicConfig | ControllerMember
"""The thing that an event is about, in its former or its new state; of a topic its settings."""

_ALWAYS = ("replicas", "isr", "leader", "leader_epoch", "epoch")
_DEFAULTS = asdict(PartitionState((), (), None, 0, 0))


def document(subject: Subject) -> Document:
    """Return the state of a partition, server, controller or topic (its settings) as a map, as timeline records hold
    it. A partition's map has only its essential fields and those that differ from their default."""
    match subject:
        case TopicConfig():
            return dict(subject.texts())
        case ControllerMember():
            return {"node": subject.node, "url": subject.url, "voter": subject.voter}
        case ServerState():
            return asdict(subject)
    found: Document = {}
    for name, default in _DEFAULTS.items():
        value = getattr(subject, name)
        if name in _ALWAYS or value != default:
            found[name] = list(value) if isinstance(value, tuple) else value
    return found


def changed(before: Subject | None, after: Subject | None) -> Document | None:
    """Return the field ``before`` of an event's record: the old values of the fields that differ between two states
    of a thing. None if the thing is new."""
    if before is None:
        return None
    was, now = document(before), {} if after is None else document(after)
    names = (*was, *(name for name in now if name not in was))
    return {name: was.get(name) for name in names if was.get(name) != now.get(name)}


def subject_of(record: Document) -> str:
    """Return the name of the thing that a record is about: ``topic/partition``, ``topic NAME``, ``server NAME`` or
    ``controller NAME``. For a record that is about none of these, its type is returned."""
    if "partition" in record:
        return f"{record['topic']}/{record['partition']}"
    for name in ("topic", "server", "controller"):
        if name in record:
            return f"{name} {record[name]}"
    return str(record["type"])


def encode(record: Document) -> bytes:
    """Return a record as CBOR: the value under which it is appended to the timeline topic."""
    return cbor2.dumps(record)


def decode(value: bytes | None) -> Document | None:
    """Return the record that the CBOR value of a record of the timeline topic holds; None if its format is later than
    this program knows. Raises ``ValueError`` if the value is no record of the timeline."""
    try:
        record = cbor2.loads(value or b"")
    except (cbor2.CBORDecodeError, RecursionError) as error:
        raise ValueError(f"no record of the timeline: {error}") from error
    if type(record) is not dict or type(record.get("format")) is not int or type(record.get("event")) is not int:
        raise ValueError("no record of the timeline: it has no format or no event number")
    return record if record["format"] <= FORMAT else None


def is_repeat(record: Document, event: int) -> bool:
    """Return whether a record is an event that the timeline already has before it. ``event`` is the highest event
    number of the records before it.

    The controller writes an event again if it missed the acknowledgement and retention has deleted the end of the
    topic meanwhile. If afterwards another replica leads that had not deleted the event yet, the topic has it twice.
    """
    return bool(record["type"] == "event" and record["event"] <= event)
