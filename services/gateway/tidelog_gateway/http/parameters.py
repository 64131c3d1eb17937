"""The values of a request's parameters: numbers within bounds, choices, offsets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tidelog.types import TOPIC_NAME

from tidelog_gateway.http.responses import HttpError

MAX_OFFSET = 2**63 - 1
_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)
_SECONDS = re.compile(r"[0-9]{1,6}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?", re.ASCII)


def whole_number(given: Mapping[str, str], name: str, default: int, most: int = MAX_OFFSET, least: int = 0) -> int:
    """Return a parameter that is a number from ``least`` to ``most``; ``default`` if it is missing. Raises
    ``HttpError``."""
    text = given.get(name)
    if text is None:
        return default
    if _NUMBER.fullmatch(text) is None or not least <= int(text) <= most:
        raise HttpError(400, f"{name} is a number from {least} to {most}, not {text!r}")
    return int(text)


def seconds(given: Mapping[str, str], name: str, default: float, most: float) -> float:
    """Return a parameter that is a time in seconds, at most ``most``; ``default`` if it is missing. Raises
    ``HttpError``."""
    text = given.get(name)
    if text is None:
        return default
    if _SECONDS.fullmatch(text) is None or float(text) > most:
        raise HttpError(400, f"{name} is a number of seconds up to {most:g}, not {text!r}")
    return float(text)


def choice(given: Mapping[str, str], name: str, choices: Sequence[str]) -> str:
    """Return a parameter that is one of ``choices``; the first of them if it is missing. Raises ``HttpError``."""
    text = given.get(name, choices[0])
    if text not in choices:
        raise HttpError(400, f"{name} is one of {', '.join(choices)}, not {text!r}")
    return text


def topic_name(names: Mapping[str, str]) -> str:
    """Return the name of the topic in a path. Raises ``HttpError`` if no topic can have it."""
    name = names["topic"]
    if TOPIC_NAME.fullmatch(name) is None or name in (".", ".."):
        raise HttpError(400, "a topic name is 1 to 249 of A-Z a-z 0-9 . _ -", code="INVALID_TOPIC")
    return name


def partition_number(names: Mapping[str, str]) -> int:
    """Return the number of the partition in a path. Raises ``HttpError`` if it is none."""
    return whole_number(names, "partition", 0, 2**31 - 1)
