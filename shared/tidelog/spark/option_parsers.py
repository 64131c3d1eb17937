"""Parsers of single options of the source and the sink: each takes the text of an option and returns its value. Pure.
A parser raises ``ValueError`` with a description of the valid values.

The grammar is that of Spark's Kafka connector: topics separated by commas, offsets and times as JSON, in which -2
means ``earliest`` and -1 ``latest``."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tidelog.errors import ConfigError
from tidelog.net.addresses import gateway_url
from tidelog.quantities import BYTES, MILLISECONDS, Unit, in_words, parse_whole
from tidelog.types import TOPIC_NAME

EARLIEST, LATEST = -2, -1
"""The numbers that stand for the words ``earliest`` and ``latest`` in offsets given as JSON."""

Offsets = dict[str, dict[int, int]]
"""Topic -> partition -> offset. The offset may be ``EARLIEST`` or ``LATEST``."""


@dataclass(frozen=True, slots=True)
class AtTime:
    """A place in the logs given by time: in each partition the first record with that time or a later one. ``ms`` is
    in milliseconds since 1970, and is either one time for all partitions, or a map topic -> partition -> time."""

    ms: int | Offsets


Place = str | Offsets | AtTime
"""Where a read begins or ends: the word ``earliest`` or ``latest``, offsets, or times."""

Parser = Callable[[str], Any]
Parsers = Mapping[str, tuple[str, Parser]]
"""Name of an option -> the field that it sets, and the parser of its text."""

_OF_SPARK = ("owner", "provider", "checkpointlocation", "queryname")
"""Names of Spark's own options, which are ignored here. Options that begin with ``option.``, which Spark adds for
CREATE TABLE, are ignored, too."""


def collect(options: Mapping[str, str], parsers: Parsers, what: str) -> tuple[dict[str, Any], list[str]]:
    """Parse the texts of all ``options`` with ``parsers``. Return the values by field, and a list of errors, one for
    every unknown option and every invalid text. Names are compared without case, as in Spark; options of Spark itself
    are ignored. ``what`` names the receiver of the options in the errors."""
    names = {name.lower(): name for name in parsers}
    values: dict[str, Any] = {}
    faults: list[str] = []
    for given, text in options.items():
        name = names.get(given.lower())
        if name is None:
            if not (given.lower() in _OF_SPARK or given.lower().startswith("option.")):
                faults.append(_unknown(given, parsers, what))
            continue
        field, parser = parsers[name]
        try:
            values[field] = parser(text)
        except ValueError as error:
            faults.append(f"{name} is {error}; not {text!r}")
    return values, faults


def given_of(options: Mapping[str, str], names: tuple[str, ...]) -> list[str]:
    """Return those of ``names`` that are keys of ``options``, in the order of ``names``. Case is ignored."""
    given = {name.lower() for name in options}
    return [name for name in names if name.lower() in given]


def _unknown(given: str, parsers: Parsers, what: str) -> str:
    """Return the error for an option that does not exist, with the valid option whose name is most like it, if one
    is."""
    if given.lower() == "path":
        return f"{what} takes no path: name topics with options"
    close = difflib.get_close_matches(given.lower(), [name.lower() for name in parsers], n=1)
    hint = next((f", perhaps {name}" for name in parsers if close and name.lower() == close[0]), "")
    return f"there is no option {given}{hint}; {what} takes {', '.join(parsers)}"


def gateways(text: str) -> tuple[str, ...]:
    """Parse addresses of gateways, separated by commas, and return their URLs in that order. Raises ``ValueError`` if
    there is none, or one is no address (``net.addresses``)."""
    try:
        urls = tuple(gateway_url(address.strip()) for address in text.split(",") if address.strip())
    except ConfigError:
        urls = ()
    if not urls:
        raise ValueError("one or more URLs ws://host:port or wss://host:port, separated by commas")
    return urls


def name_of(what: str) -> Callable[[str], str]:
    """Return a parser that returns its text unchanged if that is a valid name by the rule for topic names, and
    otherwise raises ``ValueError``. ``what`` (such as ``a consumer group``) says in the error what is named."""

    def parse(text: str) -> str:
        if not TOPIC_NAME.fullmatch(text):
            raise ValueError(f"the name of {what}: 1 to 249 of A-Z a-z 0-9 . _ -")
        return text

    return parse


def topics(text: str) -> tuple[str, ...]:
    """Parse names of topics, separated by commas, and return them in that order. Raises ``ValueError`` for an empty
    list, an invalid name, or a name that occurs twice."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) < len(names) or not all(TOPIC_NAME.fullmatch(name) for name in names):
        raise ValueError("different topic names, separated by commas")
    return tuple(names)


def pattern(text: str) -> str:
    """Return the text unchanged if it is a regular expression and not empty; otherwise raise ``ValueError``."""
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"a regular expression that topic names match as a whole ({error})") from None
    if not text:
        raise ValueError("a regular expression that topic names match as a whole")
    return text


def assign(text: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Parse JSON such as ``{"orders": [0, 1]}``: return (topic, its partitions in ascending order) for each topic,
    sorted by topic. Raises ``ValueError`` for another shape, or for no partitions."""
    shape = 'JSON such as {"orders": [0, 1]}'
    chosen = []
    for name, partitions in _json(text, shape).items():
        if not isinstance(partitions, list) or not partitions or not all(_is_index(p) for p in partitions):
            raise ValueError(shape)
        chosen.append((name, tuple(sorted(set(partitions)))))
    if not chosen:
        raise ValueError(shape)
    return tuple(sorted(chosen))


def offsets(words: tuple[str, ...]) -> Callable[[str], str | Offsets]:
    """Return a parser for a place given without times. It takes one of ``words`` (``earliest``, ``latest``) and
    returns that word, or takes JSON with an offset for each partition and returns the ``Offsets``. In JSON -2 and -1
    are valid only if the word that they stand for is one of ``words``. The parser raises ``ValueError`` for any other
    text."""
    numbers = [number for word, number in (("earliest", EARLIEST), ("latest", LATEST)) if word in words]
    never = "".join(
        f", never {word} ({number})"
        for word, number in (("latest", LATEST), ("earliest", EARLIEST))
        if word not in words
    )
    shape = f'{" or ".join(words)}, or JSON such as {{"orders": {{"0": 23, "1": {numbers[0]}}}}}{never}'

    def parse(text: str) -> str | Offsets:
        if text.strip().lower() in words:
            return text.strip().lower()
        return _numbers(text, shape, lambda offset: offset >= 0 or offset in numbers)

    return parse


def time(text: str) -> AtTime:
    """Parse a time in milliseconds since 1970, and return it as an ``AtTime`` for all partitions. Raises
    ``ValueError`` if the text is not a whole number from 0."""
    return AtTime(count(0, "milliseconds since 1970, a whole number")(text))


def times(text: str) -> AtTime:
    """Parse JSON with a time for each partition, in milliseconds since 1970, and return it as an ``AtTime``. Raises
    ``ValueError`` for another shape or a negative time."""
    shape = 'JSON such as {"orders": {"0": 1700000000000, "1": 1700000000000}}, in milliseconds since 1970'
    return AtTime(_numbers(text, shape, lambda ms: ms >= 0))


def duration_ms(text: str) -> int:
    """Parse a duration such as ``500ms``, ``30s``, ``15m``, ``1h`` or ``2d``, or a number of milliseconds, and return
    it in milliseconds. Raises ``ValueError`` for other texts, and for negative times."""
    return _quantity(text, MILLISECONDS, 0, "a time such as 500ms, 30s, 15m, 1h")


def size_bytes(least: int) -> Callable[[str], int]:
    """Return a parser that takes a size such as ``4MiB``, or a number of bytes, and returns it in bytes. The parser
    raises ``ValueError`` for other texts, and for sizes below ``least``."""

    shape = f"{BYTES.accepted(whole=True)}, at least {in_words(least, BYTES)}"
    return lambda text: _quantity(text, BYTES, least, shape)


def _quantity(text: str, unit: Unit, least: int, shape: str) -> int:
    """Parse a number, alone or with a unit, and return it in what ``unit`` counts. Raises ``ValueError(shape)`` for
    other texts, and for numbers below ``least``."""
    try:
        number = parse_whole(text, unit)
    except ValueError:
        raise ValueError(shape) from None
    if number < least:
        raise ValueError(shape)
    return number


def count(least: int, shape: str = "") -> Callable[[str], int]:
    """Return a parser that returns a whole number, and raises ``ValueError`` for other texts and for numbers below
    ``least``. ``shape``, if given, is the text of that error."""

    def parse(text: str) -> int:
        if not text.strip().isdecimal() or int(text) < least:
            raise ValueError(shape or f"a whole number, at least {least}")
        return int(text)

    return parse


def flag(text: str) -> bool:
    """Return whether the text is ``true``, in any case. Raises ``ValueError`` if it is neither ``true`` nor
    ``false``."""
    return one_of("true", "false")(text) == "true"


def archive(text: str) -> dict[str, str] | None:
    """Parse ``true`` (an empty map), ``false`` (None), or JSON with the id of each topic. Raises ``ValueError`` for
    other texts."""
    shape = 'true, false, or JSON with the ids of topics, such as {"orders": "…"}'
    if text.strip().lower() in ("true", "false"):
        return {} if text.strip().lower() == "true" else None
    found = _json(text, shape)
    if not all(isinstance(id, str) for id in found.values()):
        raise ValueError(shape)
    return found


def history(text: str) -> tuple[str, str]:
    """Parse ``FORMAT:PLACE`` of a table, and return both, the format as ``TableAddress`` has it. Raises
    ``ValueError`` for other texts."""
    formats = {"iceberg": "iceberg", "delta": "delta", "manifest": "parquet"}
    kind, _, place = text.strip().partition(":")
    if kind.lower() not in formats or not place:
        raise ValueError("a table: iceberg:NAMESPACE.TABLE, delta:FOLDER or manifest:FOLDER (or s3://…)")
    return formats[kind.lower()], place


def one_of(*words: str) -> Callable[[str], str]:
    """Return a parser that takes one of ``words``, in any case, and returns it in lower case. The parser raises
    ``ValueError`` for another text."""

    def parse(text: str) -> str:
        if text.strip().lower() not in words:
            raise ValueError(f"{', '.join(words[:-1])} or {words[-1]}")
        return text.strip().lower()

    return parse


def _json(text: str, shape: str) -> dict[str, Any]:
    """Parse a JSON object whose keys are names of topics, and return it. Raises ``ValueError(shape)`` for another
    text."""
    try:
        found = json.loads(text)
    except ValueError:
        raise ValueError(shape) from None
    if not isinstance(found, dict) or not all(TOPIC_NAME.fullmatch(name) for name in found):
        raise ValueError(shape)
    return found


def _numbers(text: str, shape: str, allowed: Callable[[int], bool]) -> Offsets:
    """Parse JSON with a whole number for each partition of each topic. Raises ``ValueError(shape)`` for another
    shape, and for a number that is not ``allowed``."""
    found: Offsets = {}
    for name, partitions in _json(text, shape).items():
        if not isinstance(partitions, dict):
            raise ValueError(shape)
        found[name] = {}
        for partition, number in partitions.items():
            if not partition.isdecimal() or type(number) is not int or not allowed(number):
                raise ValueError(shape)
            found[name][int(partition)] = number
    return found


def _is_index(value: object) -> bool:
    return type(value) is int and value >= 0
