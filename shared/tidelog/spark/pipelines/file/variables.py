"""Variables of a pipeline's file: ``${NAME}`` in a text stands for a value from outside. Pure.

``${NAME:-x}`` stands for ``x`` where no value of that name is given, and ``$${`` for the two characters ``${``.
Values are put into the texts of the parsed file, so a value with a quote or a line break changes nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tidelog.spark.pipelines.file.toml_lines import Path

_VARIABLE = re.compile(r"\$(\$\{)|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}|(\$\{)")
MIN_HIDDEN = 4
"""Least length of a value that is hidden in what is printed. A shorter one stands in too many words by chance."""


def replaced(tree: Any, values: Mapping[str, str]) -> tuple[Any, list[tuple[Path, str]], set[str]]:
    """Return a parsed TOML text in which the variables of all texts are replaced by their ``values``; the faults,
    each with the path of its text; and the names of the variables that were replaced by a value."""
    faults: list[tuple[Path, str]] = []
    used: set[str] = set()

    def each(value: Any, path: Path) -> Any:
        if isinstance(value, dict):
            return {name: each(one, (*path, name)) for name, one in value.items()}
        if isinstance(value, list):
            return [each(one, (*path, number)) for number, one in enumerate(value)]
        if not isinstance(value, str) or "${" not in value:
            return value
        faults.extend((path, fault) for fault in _faults(value, values))
        used.update(found[2] for found in _VARIABLE.finditer(value) if found[2] and found[2] in values)
        return _VARIABLE.sub(lambda found: _text(found, values), value)

    return each(tree, ()), faults, used


def has_variables(text: str) -> bool:
    """Return whether a text has a variable."""
    return any(found[2] for found in _VARIABLE.finditer(text))


def hidden(text: str, values: Mapping[str, str]) -> str:
    """Return a text that may be printed: each of ``values`` in it, if it is not very short, is replaced by
    ``${NAME}``, since it may be a secret."""
    for name in sorted(values, key=lambda name: -len(values[name])):
        if len(values[name]) >= MIN_HIDDEN:
            text = text.replace(values[name], f"${{{name}}}")
    return text


def _text(found: re.Match[str], values: Mapping[str, str]) -> str:
    """Return what stands for one variable or escape; a variable without a value stays."""
    escape, name, default, _ = found.groups()
    if escape:
        return "${"
    return values.get(name, found[0] if default is None else default) if name else found[0]


def _faults(text: str, values: Mapping[str, str]) -> Iterator[str]:
    """Yield the faults of the variables in a text."""
    for found in _VARIABLE.finditer(text):
        if found[4]:
            yield "a variable is ${NAME} or ${NAME:-default}; for the characters ${ write $${"
        elif found[2] and found[2] not in values and found[3] is None:
            name = found[2]
            yield (
                f"the variable {name} has no value: give --set {name}=…, set it in the environment, or write "
                f"${{{name}:-default}}"
            )
