"""How ``tidelog consume`` prints a record: the formats of ``--format``."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tidelog.cli.output import json_text
from tidelog.cli.records.internal_records import as_document
from tidelog.cli.records.template import compile_template, time_of
from tidelog.printable import escaped

if TYPE_CHECKING:
    from tidelog.batch.format import Record


def text_or_b64(name: str, data: bytes | None) -> dict[str, Any]:
    """Return ``{name: text}`` for data in UTF-8, ``{NAME_b64: base64}`` for other data, and ``{name: None}`` for
    None."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_b64": base64.b64encode(data).decode()}


def _part(record: Record, part: str) -> dict[str, Any]:
    """Return the key or value of a record as a map for JSON: in records of the cluster's own topics an object,
    otherwise text or base64."""
    found = as_document(record, part)
    return text_or_b64(part, getattr(record, part)) if found is None else {part: found}


def _as_json(record: Record) -> bytes:
    """Return a record as a line of JSON, with its place, time, key, value and headers."""
    document = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "leader_epoch": record.leader_epoch,
        "timestamp": time_of(record.timestamp_ms),
        **_part(record, "key"),
        **_part(record, "value"),
        "headers": [{"name": name, **text_or_b64("value", value)} for name, value in record.headers],
    }
    return json_text(document).encode() + b"\n"


def _as_hex(record: Record) -> bytes:
    """Return a record as ``PARTITION/OFFSET KEY VALUE``, key and value in hexadecimal; ``-`` stands for a missing key
    or value."""
    key = record.key.hex() if record.key is not None else "-"
    value = record.value.hex() if record.value is not None else "-"
    return f"{record.partition}/{record.offset} {key} {value}\n".encode()


def _as_hexdump(record: Record) -> bytes:
    """Return a record in the manner of ``hexdump -C``: a line that names the record, then key, value and headers, 16
    bytes in each line as position, hexadecimal and printable characters."""
    at = time_of(record.timestamp_ms)
    lines = [f"{escaped(record.topic)}/{record.partition} offset {record.offset} epoch {record.leader_epoch} {at}"]
    parts = [
        ("key", record.key),
        ("value", record.value),
        *((f"header {escaped(name)}", data) for name, data in record.headers),
    ]
    for name, data in parts:
        if data is not None:
            lines += [f"{name}, {len(data)} bytes", *_dump(data)]
        elif name == "value":
            lines.append("no value")
    return "\n".join([*lines, "", ""]).encode()


def _dump(data: bytes) -> Iterator[str]:
    """Yield the lines of a hexdump of ``data``, 16 bytes in each."""
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        halves = f"{row[:8].hex(' '):23}  {row[8:].hex(' '):23}"
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{at:08x}  {halves}  |{text}|"


def as_it_is(data: bytes) -> bytes:
    """Return the same bytes: what files and pipes get."""
    return data


def for_terminal(data: bytes) -> bytes:
    """Return bytes of a record made safe for a terminal: on one line, with escapes for control characters and other
    characters that do not show, and for bytes that are not UTF-8. Tabs stay."""
    text = data.decode("utf-8", "backslashreplace")
    return "\t".join(map(escaped, text.split("\t"))).encode()


FORMATS = ("value", "json", "key-value", "hex", "hexdump")
"""The names of the formats."""


def style_of(name: str, separator: bytes, terminal: bool) -> Callable[[Record], bytes]:
    """Return the function that returns what is printed of a record, with the end of the line. ``name`` is one of
    ``FORMATS`` or a template, ``separator`` that of ``key-value``. With ``terminal`` the records' bytes are made safe
    for terminals. Raises ``ValueError`` for an unknown format."""
    shown = for_terminal if terminal else as_it_is
    match name:
        case "hex":
            return _as_hex
        case "hexdump":
            return _as_hexdump
        case "json":
            return _as_json
        case "value":
            return lambda record: shown(record.value or b"") + b"\n"
        case "key-value":
            return lambda record: shown(_key_and_value(record, separator)) + b"\n"
    if "%" not in name:
        raise ValueError(f"{name!r} is none of {', '.join(FORMATS)}, and no template such as '%p %o %k %v\\n'")
    return compile_template(name, shown)


def _key_and_value(record: Record, separator: bytes) -> bytes:
    """Return key, separator and value, as ``produce --key-separator`` reads them; without a key the value alone."""
    value = record.value or b""
    return value if record.key is None else record.key + separator + value
