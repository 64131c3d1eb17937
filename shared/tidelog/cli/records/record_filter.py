"""Which records ``tidelog consume`` prints, and which part of their values: ``--grep`` and ``--json-path``."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from tidelog.cli.output import json_text

if TYPE_CHECKING:
    from jsonpath import CompoundJSONPath, JSONPath

    from tidelog.batch.format import Record


class RecordFilter:
    """The choice of ``--grep REGEX`` and ``--json-path PATH``; None for an option that is not given. Raises
    ``ValueError``, which names the option, if an expression is invalid."""

    def __init__(self, grep: str | None, json_path: str | None) -> None:
        self._grep = None if grep is None else _regex(grep)
        self._path = None if json_path is None else _json_path(json_path)

    def choose(self, record: Record) -> list[Record]:
        """Return what is to be printed of a record. An empty list: nothing, because its value does not match. With
        ``--json-path`` one record for each matched part, with the part as its value: a text as it is, anything else
        as JSON."""
        if self._grep is not None:
            text = None if record.value is None else record.value.decode("utf-8", "surrogateescape")
            if text is None or not self._grep.search(text):
                return []
        return [record] if self._path is None else _matched(record, self._path)


def _regex(expression: str) -> re.Pattern[str]:
    """Return a compiled regular expression. Raises ``ValueError`` if it is invalid."""
    try:
        return re.compile(expression)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"--grep: {expression!r} is no regular expression: {error}") from error


def _json_path(expression: str) -> JSONPath | CompoundJSONPath:
    """Return a compiled JSONPath. Raises ``ValueError`` if it is invalid."""
    from jsonpath import JSONPathError, compile

    try:
        return compile(expression)
    except (JSONPathError, RecursionError) as error:
        raise ValueError(f"--json-path: {expression!r} is no JSONPath: {str(error).splitlines()[0]}") from error


def _matched(record: Record, path: JSONPath | CompoundJSONPath) -> list[Record]:
    """Return one record for each part of the value that the path matches; an empty list if there is none, also if
    the value is not JSON."""
    if record.value is None:
        return []
    try:
        found = path.findall(json.loads(record.value))
    except (ValueError, RecursionError):
        return []
    texts = [part if isinstance(part, str) else json_text(part) for part in found]
    return [record._replace(value=text.encode("utf-8", "surrogatepass")) for text in texts]
