r"""Templates of ``tidelog consume --format``, such as ``%p %o %k %v\n``, and escapes in texts of the command line.

A template is printed once for each record. Nothing is added, not even the end of a line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.batch.format import Record

_TOKEN = re.compile(r"\\(?:x[0-9A-Fa-f]{2}|.|$)|%(?:.|$)|[^\\%]+", re.DOTALL)
_KNOWN = r"\t \n \r \0 \\ and \x1f (a byte in hexadecimal)"
_ESCAPES = {"t": b"\t", "n": b"\n", "r": b"\r", "0": b"\0", "\\": b"\\"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Shown = Callable[[bytes], bytes]
"""A function that returns the bytes of a key, value, header or topic as they are printed."""


def time_of(timestamp_ms: int) -> str | int:
    """Return a record's timestamp as ISO 8601 in UTC with milliseconds; after the year 9999 as the number of ms since
    1970."""
    try:
        return (EPOCH + timedelta(milliseconds=timestamp_ms)).isoformat(timespec="milliseconds")
    except OverflowError:
        return timestamp_ms


def _length(data: bytes | None) -> bytes:
    return b"-1" if data is None else b"%d" % len(data)


def _headers(record: Record, shown: Shown) -> bytes:
    return b",".join(shown(name.encode()) + b"=" + shown(value) for name, value in record.headers)


FIELDS: dict[str, Callable[[Record, Shown], bytes]] = {
    "t": lambda record, shown: shown(record.topic.encode()),
    "p": lambda record, shown: b"%d" % record.partition,
    "o": lambda record, shown: b"%d" % record.offset,
    "e": lambda record, shown: b"%d" % record.leader_epoch,
    "k": lambda record, shown: shown(record.key or b""),
    "K": lambda record, shown: _length(record.key),
    "v": lambda record, shown: shown(record.value or b""),
    "V": lambda record, shown: _length(record.value),
    "h": _headers,
    "T": lambda record, shown: b"%d" % record.timestamp_ms,
    "d": lambda record, shown: str(time_of(record.timestamp_ms)).encode(),
}
"""Letter of a field -> the function that returns what the field prints of a record."""


def unescaped(text: str) -> bytes:
    r"""Return the bytes of a text in which ``\t``, ``\n``, ``\r``, ``\0``, ``\\`` and ``\xNN`` are escapes. Raises
    ``ValueError`` for another escape."""
    return b"".join(_literal(token) for token in _TOKEN.findall(text))


def compile_template(text: str, shown: Shown) -> Callable[[Record], bytes]:
    """Return the function that returns what a template prints of a record. ``shown`` is applied to topic, key, value
    and headers, and not to the text between the fields. Raises ``ValueError``, which says what is wrong."""
    parts = list(_parts(text))

    def style(record: Record) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(record, shown) for part in parts)

    return style


def _parts(text: str) -> Iterator[bytes | Callable[[Record, Shown], bytes]]:
    """Yield the parts of a template in order: bytes for text, and the functions of the fields. Raises ``ValueError``
    for an unknown field or escape."""
    for token in _TOKEN.findall(text):
        if not token.startswith("%"):
            yield _literal(token)
        elif token == "%%":
            yield b"%"
        elif token == "%":
            raise ValueError("it ends with a lone %; %% prints a percent sign")
        elif token[1] in FIELDS:
            yield FIELDS[token[1]]
        else:
            known = " ".join(f"%{letter}" for letter in FIELDS)
            raise ValueError(f"{token} is no field; there are {known} and %%")


def _literal(token: str) -> bytes:
    """Return the bytes of a token that is an escape or other text. Raises ``ValueError`` for an unknown escape."""
    if not token.startswith("\\"):
        return token.encode(errors="surrogateescape")
    if len(token) == 4:
        return bytes.fromhex(token[2:])
    if (found := _ESCAPES.get(token[1:])) is None:
        raise ValueError(f"{token} is no escape; there are {_KNOWN}")
    return found
