"""Values that are messages of syslog, as RFC 5424 and RFC 3164 have them, or as they stand in log files, without a
priority.

=========  ======================================================================================================
RFC 5424   ``<PRI>1 2026-11-29T10:00:00.5Z host app pid msgid [id name="value"] message``; ``-`` is a missing field
RFC 3164   ``<PRI>Nov 29 10:00:00 host app[pid]: message``, without a year and a time zone; ``<PRI>``, the app and
           the pid may be missing, and the time may be as in RFC 5424 (as rsyslog writes it)
=========  ======================================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from tidelog.spark.pipelines.values.conversion import BadValue, Decode
from tidelog.spark.pipelines.values.lines import line_of

COLUMNS = (
    "priority INT, facility INT, severity INT, timestamp TIMESTAMP, host STRING, app STRING, pid STRING, "
    "msgid STRING, structured_data MAP<STRING, MAP<STRING, ARRAY<STRING>>>, message STRING"
)
"""The columns of syslog, in SQL. ``structured_data`` has the parameters of each element, with all their values."""
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_AHEAD = timedelta(days=1)
_YEARS = 9
"""Number of years among which there is a 29 February, always."""
_ISO = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:\d\d)"
_NEW = re.compile(
    rf"<(?P<priority>\d{{1,3}})>1 (?P<time>-|{_ISO}) (?P<host>\S+) (?P<app>\S+) (?P<pid>\S+) "
    r"(?P<msgid>\S+) (?P<rest>.*)",
    re.ASCII | re.DOTALL,
)
_OLD = re.compile(
    rf"(?:<(?P<priority>\d{{1,3}})>)?(?:(?P<month>{'|'.join(_MONTHS)}) (?P<day>[ 0]?\d|\d\d) "
    rf"(?P<clock>\d\d:\d\d:\d\d)|(?P<time>{_ISO})) (?P<host>\S+) "
    r"(?:(?P<app>[^\s\[\]:]+)(?:\[(?P<pid>[^\]\s]*)\])?:(?: |$))?(?P<message>.*)",
    re.ASCII | re.DOTALL,
)
_ELEMENT = re.compile(r'\[(?P<id>[^\s="\]]+)(?P<parameters>(?: [^\s="\]]+="(?:[^"\\\]]|\\.)*")*)\]', re.DOTALL)
_PARAMETER = re.compile(r' ([^\s="\]]+)="((?:[^"\\\]]|\\.)*)"', re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\\]])')


def syslog_decoder(year: int | None, zone: tzinfo) -> Decode:
    """Return a decoder for messages of syslog. A time without a year is of ``year``, or, without it, of the
    latest year in which it is at most a day after the record's timestamp. A time without a time zone
    is of ``zone``."""

    def decode(value: bytes, at_us: int) -> Mapping[str, Any]:
        line = line_of(value)
        if found := _NEW.fullmatch(line):
            return _of_new(found)
        if found := _OLD.fullmatch(line):
            return _of_old(found, year, zone, at_us)
        raise BadValue("the line is not a message of syslog (RFC 5424, RFC 3164)")

    return decode


def _of_new(found: re.Match[str]) -> dict[str, Any]:
    """Return the fields of a message as in RFC 5424."""
    fields: dict[str, Any] = {name: _present(found[name]) for name in ("host", "app", "pid", "msgid")}
    elements, message = _structured_data(found["rest"])
    moment = None if found["time"] == "-" else _moment(found["time"])
    return {
        **_priority(found["priority"]), **fields,
        "timestamp": moment, "structured_data": elements, "message": message,
    }  # fmt: skip


def _of_old(found: re.Match[str], year: int | None, zone: tzinfo, at_us: int) -> dict[str, Any]:
    """Return the fields of a message as in RFC 3164."""
    moment = _moment(found["time"]) if found["time"] else _in_year(found, year, zone, at_us)
    fields: dict[str, Any] = {name: found[name] for name in ("host", "app", "pid", "message")}
    return {**_priority(found["priority"]), **fields, "timestamp": moment}


def _priority(text: str | None) -> dict[str, int | None]:
    """Return the columns of a priority: its number is 8 times the facility, plus the severity."""
    if text is None:
        return {"priority": None, "facility": None, "severity": None}
    if int(text) > 191:
        raise BadValue(f"{text} is more than 191, the greatest priority", "priority")
    return {"priority": int(text), "facility": int(text) // 8, "severity": int(text) % 8}


def _present(text: str) -> str | None:
    return None if text == "-" else text


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise BadValue(f"{text} is no time", "timestamp") from None


def _in_year(found: re.Match[str], year: int | None, zone: tzinfo, at_us: int) -> datetime:
    """Return the time of a message without a year."""
    latest = _EPOCH + timedelta(microseconds=at_us) + _AHEAD
    month, day, clock = _MONTHS.index(found["month"]) + 1, int(found["day"]), found["clock"]
    for one in range(latest.year, latest.year - _YEARS, -1) if year is None else (year,):
        try:
            moment = datetime.fromisoformat(f"{one:04}-{month:02}-{day:02}T{clock}").replace(tzinfo=zone)
        except ValueError:
            continue  # there is no 29 February in most years
        if year is not None or moment <= latest:
            return moment
    when = f"{found['month']} {found['day']} {clock}" + ("" if year is None else f" {year}")
    raise BadValue(f"{when} is no time", "timestamp")


def _structured_data(rest: str) -> tuple[dict[str, dict[str, list[str]]] | None, str | None]:
    """Split what follows the message id into the elements of structured data and the message. Each is None if it is
    missing."""
    if rest == "-" or rest.startswith("- "):
        return None, _message(rest[1:])
    elements: dict[str, dict[str, list[str]]] = {}
    place = 0
    while element := _ELEMENT.match(rest, place):
        if element["id"] in elements:
            raise BadValue(f"{element['id']} occurs twice", "structured_data")
        parameters = elements.setdefault(element["id"], {})
        for name, text in _PARAMETER.findall(element["parameters"]):
            parameters.setdefault(name, []).append(_ESCAPED.sub(r"\1", text))
        place = element.end()
    if not elements or (place < len(rest) and rest[place] != " "):
        raise BadValue('the structured data is neither - nor such as [id name="value"]', "structured_data")
    return elements, _message(rest[place:])


def _message(text: str) -> str | None:
    """Return the message after the structured data, without the byte order mark that RFC 5424 puts before UTF-8."""
    return text[1:].removeprefix("\ufeff") if text else None
