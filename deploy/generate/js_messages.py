"""The messages that a gateway sends, as the JavaScript client reads them: writes
``shared/js/src/wire/messages.js``."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import MISSING, is_dataclass
from typing import Any

from tidelog.wire import messages
from tidelog.wire.fields import default_of, is_payload, optional_of, typed_fields
from tidelog.wire.messages import ErrorInfo, Message

ANSWERS: tuple[type[Message], ...] = (
    messages.AccessAnswer,
    messages.DescribeGroupAnswer,
    messages.DigestAnswer,
    messages.Done,
    messages.FetchOffsetsAnswer,
    messages.GroupHeartbeatAnswer,
    messages.HistoryAnswer,
    messages.JoinGroupAnswer,
    messages.ListGroupsAnswer,
    messages.ListTransactionsAnswer,
    messages.MetadataAnswer,
    messages.MetricsAnswer,
    messages.OffsetAnswer,
    messages.PlayAnswer,
    messages.ProducerId,
    messages.ProducerTicket,
    messages.QuorumAnswer,
    messages.ReadAnswer,
    messages.RebalancePlan,
    messages.TopicCreated,
    messages.TransactionEnded,
    messages.Welcome,
)
"""Answers to the requests that the client sends."""
NOTICES: tuple[type[Message], ...] = (messages.Produced, messages.Delivery)
"""One-way messages to the client."""
LEFT_OUT = {(messages.MetricsAnswer, name) for name in ("unreadable", "differing", "recent", "recent_ms")}
"""Fields that the client does not read. A producer id in ``unreadable`` may be larger than JavaScript's integers."""
LINE = 118
SIMPLE: dict[Any, str] = {int: "integer", str: "text", bool: "flag", bytes: "bytes"}
SIMPLE |= {dict[str, str]: "texts", dict[str, int]: "integers"}


def page() -> str:
    """Return the text of the module. A part of a message stands before the messages that contain it."""
    shapes: dict[type, str] = {}
    for cls in (ErrorInfo, *ANSWERS, *NOTICES):
        _add(cls, shapes)
    lines = [
        "/**",
        " * The answers and notices that a gateway sends, as objects: their fields in camelCase, checked, and set to",
        " * their defaults where they were left out. What each field means: shared/tidelog/wire/messages. Generated",
        " * from there by `make pages`.",
        " */",
        "",
        f'import {{ {", ".join(sorted({*SIMPLE.values(), "list", "or", "shape"}))} }} from "./shapes.js";',
    ]
    public = {ErrorInfo, *ANSWERS}
    for cls, text in shapes.items():
        if cls not in NOTICES:
            lines += ["", f"{'export ' if cls in public else ''}const {_name(cls)} = {text};"]
    lines += ["", "/** What comes unasked, by `op`. */", "export const NOTICES = {"]
    lines += [f"  {cls.OP}: {shapes[cls].replace(chr(10), chr(10) + '  ')}," for cls in NOTICES]
    return "\n".join([*lines, "};", ""])


def _add(cls: type, shapes: dict[type, str]) -> None:
    """Add the JavaScript shape of a class to ``shapes``, behind those of its parts."""
    kept = [(field, hint) for field, hint in typed_fields(cls) if (cls, field.name) not in LEFT_OUT]
    for part in _parts(hint for _, hint in kept):
        if part not in shapes:
            _add(part, shapes)
    fields = [f"{field.name}: {_reader(hint, default_of(field))}" for field, hint in kept]
    one = f"shape({{ {', '.join(fields)} }})" if fields else "shape({})"
    long = len(f"export const {_name(cls)} = {one};") > LINE
    shapes[cls] = "\n".join(["shape({", *[f"  {field}," for field in fields], "})"]) if long else one


def _parts(hints: typing.Iterable[Any]) -> Iterator[type]:
    for hint in hints:
        for inner in (hint, optional_of(hint), *typing.get_args(hint)):
            if isinstance(inner, type) and is_dataclass(inner):
                yield inner


def _reader(hint: Any, default: Any) -> str:
    """Return the JavaScript expression that reads a field. The payload is always there, and may be empty."""
    if is_payload(hint):
        return "bytes"
    kind = _kind(optional_of(hint) or hint)
    return kind if default is MISSING else f"or({_literal(default)}, {kind})"


def _kind(hint: Any) -> str:
    if typing.get_origin(hint) is tuple:
        return f"list({_kind(typing.get_args(hint)[0])})"
    return SIMPLE.get(hint) or _name(hint)


def _literal(default: Any) -> str:
    texts = {True: "true", False: "false", None: "null", "": '""', b"": "new Uint8Array()", (): "[]"}
    if isinstance(default, dict):
        return "{}"
    return str(default) if type(default) is int else texts[default]


def _name(cls: type) -> str:
    return cls.__name__[0].lower() + cls.__name__[1:]
