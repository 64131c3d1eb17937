"""The options of the source: the words of Spark's Kafka connector. Pure: texts in, checked values out.

Every fault is reported, not only the first, each with the option's name and what it may be.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tidelog.spark.errors import SourceError
from tidelog.tls import TlsOptions
from tidelog.types import TOPIC_NAME

DEFAULT_GATEWAY = "ws://127.0.0.1:9292"
EARLIEST, LATEST = -2, -1
"""The numbers that stand for the words in JSON offsets."""

Offsets = dict[str, dict[int, int]]
"""topic -> partition -> offset, or ``EARLIEST`` or ``LATEST``."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a batch read is asked to do."""

    gateways: tuple[str, ...] = (DEFAULT_GATEWAY,)
    subscribe: tuple[str, ...] = ()
    """Topics, all partitions of each; or, when empty,"""
    assign: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """topics and the partitions wanted of each."""
    starting_offsets: str | Offsets = "earliest"
    ending_offsets: str | Offsets = "latest"
    min_partitions: int = 0
    """Cut the offset ranges until there are so many Spark partitions; 0: one for each partition of the topics."""
    fail_on_data_loss: bool = True
    include_headers: bool = False
    fetch_max_bytes: int = 4 << 20
    """Bytes that a task reads ahead."""
    ca: str = ""
    """Files for URLs with ``wss:``, as in ``TlsOptions``; on every machine on which a task may run."""
    cert: str = ""
    key: str = ""
    token: str = field(default="", repr=False)

    def how_to_connect(self) -> dict[str, Any]:
        """Arguments of ``connect``."""
        return {"urls": self.gateways, "tls": TlsOptions(self.ca, self.cert, self.key), "token": self.token}

    def topics(self) -> tuple[str, ...]:
        """The topics to read."""
        return self.subscribe or tuple(topic for topic, _ in self.assign)


def _gateways(text: str) -> tuple[str, ...]:
    urls = tuple(url.strip() for url in text.split(",") if url.strip())
    if not urls or not all(url.startswith(("ws://", "wss://")) for url in urls):
        raise ValueError("one or more URLs ws://host:port or wss://host:port, separated by commas")
    return urls


def _topics(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) < len(names) or not all(TOPIC_NAME.fullmatch(name) for name in names):
        raise ValueError("different topic names, separated by commas")
    return tuple(names)


def _assign(text: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    shape = 'JSON such as {"orders": [0, 1]}'
    found = _json(text, shape)
    chosen = []
    for topic, partitions in found.items():
        if not isinstance(partitions, list) or not partitions or not all(_is_index(p) for p in partitions):
            raise ValueError(shape)
        chosen.append((topic, tuple(sorted(set(partitions)))))
    if not chosen:
        raise ValueError(shape)
    return tuple(sorted(chosen))


def _offsets(word: str, other: int) -> Callable[[str], str | Offsets]:
    """A parser for the word, or JSON in which ``other`` (the opposite end) has no place."""
    never = "latest (-1)" if other == LATEST else "earliest (-2)"
    shape = f'{word}, or JSON such as {{"orders": {{"0": 23, "1": {EARLIEST + LATEST - other}}}}}, never {never}'

    def parse(text: str) -> str | Offsets:
        if text.strip().lower() == word:
            return word
        offsets: Offsets = {}
        for topic, partitions in _json(text, shape).items():
            if not isinstance(partitions, dict):
                raise ValueError(shape)
            offsets[topic] = {}
            for partition, offset in partitions.items():
                if not partition.isdecimal() or type(offset) is not int or offset < EARLIEST or offset == other:
                    raise ValueError(shape)
                offsets[topic][int(partition)] = offset
        return offsets

    return parse


def _json(text: str, shape: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        raise ValueError(shape) from None
    if not isinstance(found, dict):
        raise ValueError(shape)
    return found


def _is_index(value: Any) -> bool:
    return type(value) is int and value >= 0


def _count(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.strip().isdecimal() or int(text) < least:
            raise ValueError(f"a whole number, at least {least}")
        return int(text)

    return parse


def _flag(text: str) -> bool:
    words = {"true": True, "false": False}
    if text.strip().lower() not in words:
        raise ValueError("true or false")
    return words[text.strip().lower()]


_PARSERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "gateway": ("gateways", _gateways),
    "subscribe": ("subscribe", _topics),
    "assign": ("assign", _assign),
    "startingOffsets": ("starting_offsets", _offsets("earliest", LATEST)),
    "endingOffsets": ("ending_offsets", _offsets("latest", EARLIEST)),
    "minPartitions": ("min_partitions", _count(1)),
    "failOnDataLoss": ("fail_on_data_loss", _flag),
    "includeHeaders": ("include_headers", _flag),
    "fetchMaxBytes": ("fetch_max_bytes", _count(64 << 10)),
    "ca": ("ca", str),
    "cert": ("cert", str),
    "key": ("key", str),
    "token": ("token", str),
}
_OF_SPARK = ("owner", "provider")  # Spark adds these, and option.*, for CREATE TABLE


def parse(options: Mapping[str, str]) -> ReadOptions:
    """Check the options of a read. Names are compared without case, as Spark does. Raises ``SourceError``
    (``TIDELOG_OPTION``) that names every fault."""
    names = {name.lower(): name for name in _PARSERS}
    values: dict[str, Any] = {}
    faults: list[str] = []
    for given, text in options.items():
        name = names.get(given.lower())
        if name is None:
            if not (given.lower() in _OF_SPARK or given.lower().startswith("option.")):
                faults.append(_unknown(given))
            continue
        field, parser = _PARSERS[name]
        try:
            values[field] = parser(text)
        except ValueError as error:
            faults.append(f"{name} is {error}; not {text!r}")
    chosen = [name for name in ("subscribe", "assign") if name.lower() in map(str.lower, options)]
    if len(chosen) != 1:
        faults.append(f"give exactly one of subscribe and assign, not {' and '.join(chosen) or 'neither'}")
    if not faults:
        result = ReadOptions(**values)
        faults = _contradictions(result)
    if faults:
        raise SourceError("TIDELOG_OPTION", "; ".join(faults))
    return result


def _unknown(given: str) -> str:
    if given.lower() == "path":
        return "load() takes no path: name topics with subscribe"
    close = difflib.get_close_matches(given.lower(), [name.lower() for name in _PARSERS], n=1)
    hint = next((f", perhaps {name}" for name in _PARSERS if close and name.lower() == close[0]), "")
    return f"there is no option {given}{hint}; a read takes {', '.join(_PARSERS)}"


def _contradictions(options: ReadOptions) -> list[str]:
    faults = []
    if bool(options.cert) != bool(options.key):
        faults.append("give both cert and key, or neither")
    topics = set(options.topics())
    for name, offsets in (("startingOffsets", options.starting_offsets), ("endingOffsets", options.ending_offsets)):
        if isinstance(offsets, dict) and set(offsets) != topics:
            named = ", ".join(sorted(offsets)) or "none"
            faults.append(f"{name} names topics {named}, but {', '.join(sorted(topics))} are read")
    return faults
