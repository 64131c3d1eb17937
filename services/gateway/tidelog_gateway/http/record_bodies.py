"""The records that a request appends, from its body.

    application/json       {"records": [RECORD, …]}, or one RECORD
    application/x-ndjson   a RECORD on each line
    anything else          one record, whose value is the body as it stands

A RECORD is an object: ``key``, ``value`` (text or null), ``key_b64``, ``value_b64`` (bytes in base64), ``headers``
(an object, or an array of ``{"name": …, "value": …}`` where a name may occur twice) and ``timestamp_ms``. Records
that were read over HTTP can be sent back: their fields ``offset`` and ``leader_epoch`` are ignored. Any other field
is refused, so that nothing that was meant is left out in silence.
"""

from __future__ import annotations

import base64
import binascii
import json
from io import BytesIO
from typing import Any

from tidelog.batch.format import MAX_RECORDS, NewRecord, RecordHeaders

from tidelog_gateway.http.responses import HttpError

NDJSON = "application/x-ndjson"
JSON = "application/json"
MAX_JSON_BYTES = 1 << 20
"""Longest text of JSON that is parsed at once: a document, or a line."""
FIELDS = ("key", "key_b64", "value", "value_b64", "headers", "timestamp_ms")
IGNORED = ("offset", "leader_epoch")
MAX_TIMESTAMP_MS = 2**63 - 1


def single_record(value: bytes, key: bytes | None, now_ms: int) -> list[NewRecord]:
    """Return the record whose value is a whole body."""
    return [NewRecord(value, key, now_ms)]


def records_of_document(body: bytes, now_ms: int) -> list[NewRecord]:
    """Return the records of a JSON document. Raises ``HttpError``, which says what is wrong."""
    document = _parse(body, "the body")
    if not isinstance(document, dict) or "records" not in document:
        return [record_of(document, "the record", now_ms)]
    if set(document) != {"records"} or not isinstance(document["records"], list):
        raise HttpError(400, 'the body is {"records": [...]} and nothing else, or one record')
    if not 1 <= len(document["records"]) <= MAX_RECORDS:
        raise HttpError(400, f"a request has 1 to {MAX_RECORDS} records")
    return [record_of(one, f"record {number}", now_ms) for number, one in enumerate(document["records"], 1)]


def records_of_lines(body: bytes, now_ms: int) -> list[NewRecord]:
    """Return the records of an NDJSON body. Empty lines are skipped. Raises ``HttpError``, which says what is
    wrong."""
    records: list[NewRecord] = []
    for number, text in enumerate(BytesIO(body), 1):  # not all lines at once: a body may have very many
        if text.isspace():
            continue
        records.append(record_of_line(text, number, now_ms))
        if len(records) > MAX_RECORDS:
            raise HttpError(413, f"a request has at most {MAX_RECORDS} records", code="BATCH_TOO_LARGE")
    if not records:
        raise HttpError(400, "the body has no record")
    return records


def record_of_line(line: bytes, number: int, now_ms: int) -> NewRecord:
    """Return the record on line ``number`` of an NDJSON body. Raises ``HttpError``, which says what is wrong."""
    return record_of(_parse(line, f"line {number}"), f"line {number}", now_ms)


def record_of(document: Any, where: str, now_ms: int) -> NewRecord:
    """Return the record that a JSON object describes. Raises ``HttpError``; ``where`` says which record is wrong."""
    if not isinstance(document, dict):
        raise HttpError(400, f"{where} is not an object with the value of a record")
    unknown = next((name for name in document if name not in FIELDS and name not in IGNORED), None)
    if unknown is not None:
        known = ", ".join(FIELDS)
        text = f"{where} has a field {unknown!r}; there are {known}. To append the body as one record: format=raw"
        raise HttpError(400, text)
    if "value" not in document and "value_b64" not in document:
        raise HttpError(400, f'{where} has no value; a record without one has "value": null')
    time_ms = document.get("timestamp_ms", now_ms)
    if type(time_ms) is not int or not 0 <= time_ms <= MAX_TIMESTAMP_MS:
        raise HttpError(400, f"{where}: timestamp_ms is a number from 0 to 2^63 - 1")
    return NewRecord(
        _bytes(document, "value", where), _bytes(document, "key", where), time_ms, _headers(document, where)
    )


def _parse(text: bytes, where: str) -> Any:
    """Return the value of a JSON text. Raises ``HttpError`` if it is none, or too long or deep."""
    if len(text) > MAX_JSON_BYTES:
        raise HttpError(413, f"{where} has more than {MAX_JSON_BYTES} bytes of JSON", code="BATCH_TOO_LARGE")
    try:
        return _DECODER.decode(text.decode())
    except UnicodeDecodeError:
        raise HttpError(400, f"{where} is not UTF-8") from None
    except RecursionError:
        raise HttpError(400, f"{where} is nested too deeply") from None
    except ValueError as error:
        raise HttpError(400, f"{where} is not JSON: {error}") from None


def parse_object(body: bytes, fields: dict[str, type]) -> dict[str, Any]:
    """Return the JSON object in a body, of whose members each has the type that ``fields`` names. Raises
    ``HttpError``."""
    document = _parse(body, "the body")
    if not isinstance(document, dict):
        raise HttpError(400, "the body is not a JSON object")
    for name, value in document.items():
        if name not in fields:
            raise HttpError(400, f"the body has a field {name!r}; there are {', '.join(fields)}")
        if type(value) is not fields[name]:
            raise HttpError(400, f"the field {name} is not of the type {fields[name].__name__}")
    return document


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _number(text: str) -> int | float:
    """Return a number that is written with a fraction or an exponent; 5.0 is the whole number 5."""
    number = float(text)
    return int(number) if number.is_integer() else number


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object names a member twice")
    return found


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_number, object_pairs_hook=_without_repetition)


def _bytes(document: dict[str, Any], name: str, where: str) -> bytes | None:
    """Return the bytes of a key or value, given as text or in base64; None if there are none."""
    encoded = f"{name}_b64"
    if name in document and encoded in document:
        raise HttpError(400, f"{where} has both {name} and {encoded}")
    if encoded in document:
        text = document[encoded]
        try:
            return base64.b64decode(text, validate=True) if isinstance(text, str) else _no_base64(where, encoded)
        except (binascii.Error, ValueError):
            return _no_base64(where, encoded)
    value = document.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise HttpError(400, f"{where}: {name} is a text or null; write other JSON as a text")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise HttpError(400, f"{where}: {name} has half of a surrogate pair") from None


def _no_base64(where: str, name: str) -> bytes:
    raise HttpError(400, f"{where}: {name} is not base64")


def _headers(document: dict[str, Any], where: str) -> RecordHeaders:
    """Return the headers of a record, which an object or an array of objects names."""
    given = document.get("headers")
    if given is None:
        return ()
    if isinstance(given, dict):
        given = [{"name": name, "value": value} for name, value in given.items()]
    found: list[tuple[str, bytes]] = []
    for one in given if isinstance(given, list) else [None]:
        if not isinstance(one, dict) or not set(one) <= {"name", "value", "value_b64"}:
            raise HttpError(400, f"{where}: headers are an object, or an array of name and value")
        name, value = one.get("name"), _bytes(one, "value", where)
        if not isinstance(name, str) or value is None or not _is_text(name):
            raise HttpError(400, f"{where}: a header has a name and a value")
        found.append((name, value))
    return tuple(found)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
