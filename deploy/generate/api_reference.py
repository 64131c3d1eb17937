"""The page of the Python API (``docs/api.md``): which names there are. mkdocstrings fills in the docstrings when the
site is built (``make docs``)."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import typing
from collections.abc import Iterator
from unittest.mock import Mock

from tidelog.client.admin.old_names import CALLED, OLD_NAMES

MODULES = ("tidelog", "tidelog.aio", "tidelog.sync", "tidelog.tracing")
HEAD = """# Python API

This page lists the public names. `make docs` builds the site, in which each has its signature and its docstring; in
Python `help(tidelog.Producer)` shows the same. Three libraries have the same names: `tidelog` on trio,
`tidelog.aio` on asyncio, `tidelog.sync` for any thread. Every error is a `TidelogError` with one of the
[codes](errors.md). Programs that show them at work: [trio](examples/orders_trio.py),
[asyncio](examples/tickets_asyncio.py), [threads](examples/lines_sync.py). For browsers and Node:
[JavaScript](javascript.md)."""
HIDDEN = ("(called by the ", "Called by the ", "The old name of ")
"""Parts of the docstrings of methods that are left out: they are public, but not for applications, or have a newer
name."""
OLD_HEAD = """## Old names

Before administration stood behind attributes, these methods belonged to `Log` itself. The old names work for one more
release, and emit `DeprecationWarning`. Type checkers do not know them.

| before | now |
|---|---|"""


def page() -> str:
    """Return the page: a heading for each module, a directive of mkdocstrings for each public name, and a table of
    the old names."""
    parts = [HEAD]
    first: dict[int, str] = {}
    for module in MODULES:
        parts += [f"## {module}", f"::: {module}\n    options: {{members: false, show_root_heading: false}}"]
        parts += _names(module, first)
    return "\n\n".join([*parts, _old_names()]) + "\n"


def _names(module: str, first: dict[int, str]) -> Iterator[str]:
    """Yield the entry of each public name of a module. ``first`` maps objects to the names under which they stand on
    the page already, and is added to: an object stands there once, and its other names point to it."""
    found = importlib.import_module(module)
    for name in found.__all__:
        full, thing = f"{module}.{name}", getattr(found, name)
        known = first.setdefault(id(thing), full)
        if known != full:
            yield f"### {full}\n\nAn alias of [{known}][]."
        elif inspect.isclass(thing):
            yield from _class(full, thing)
        else:
            yield f"::: {full}"


def _class(full: str, kind: type) -> Iterator[str]:
    """Yield the entry of a class with its fields and documented methods, and those of the objects that stand behind
    its attributes, such as ``Log.topics``."""
    yield _directive(full, [*_fields(kind), *_methods(kind)])
    for name, part in _parts(kind):
        yield f"### {full}.{name}"
        yield _directive(f"{part.__module__}.{part.__qualname__}", list(_methods(part)), "show_root_heading: false, ")


def _directive(path: str, members: list[str], options: str = "") -> str:
    return f"::: {path}\n    options: {{{options}members: [{', '.join(members)}]}}"


def _fields(kind: type) -> list[str]:
    """Return the names of the fields of a data class or named tuple; none for other classes."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind) if not field.name.startswith("_")]
    return list(getattr(kind, "_fields", ()))


def _parts(kind: type) -> Iterator[tuple[str, type]]:
    """Yield the attributes of a class that are objects with methods of their own, for administration: (name,
    class)."""
    for name, member in vars(kind).items():
        if isinstance(member, functools.cached_property):
            yield name, type(getattr(kind(*(Mock() for _ in inspect.signature(kind).parameters)), name))
    if not dataclasses.is_dataclass(kind) and "__annotations__" in vars(kind) and not issubclass(kind, tuple):
        for name, part in typing.get_type_hints(kind).items():
            if isinstance(part, type) and part.__module__.startswith("tidelog.") and not name.startswith("_"):
                yield name, part


def _methods(kind: type) -> Iterator[str]:
    """Yield the names of the public, documented methods and properties of a class, with those that it inherits from
    our classes."""
    found: dict[str, object] = {}
    for base in () if issubclass(kind, tuple) else kind.__mro__:
        if base.__module__.startswith("tidelog"):
            found = found | {n: m for n, m in vars(base).items() if not n.startswith("_") and n not in found}
    for name, member in found.items():
        plain = member.__func__ if isinstance(member, staticmethod | classmethod) else member
        text = " ".join((inspect.getdoc(plain) or "").split())
        is_shown = text and not any(mark in text for mark in HIDDEN)
        if is_shown and (inspect.isfunction(plain) or isinstance(plain, property)):
            yield name


def _old_names() -> str:
    names = OLD_NAMES | {old: f"{old}.{new}" for old, new in CALLED.items()}
    return "\n".join([OLD_HEAD, *(f"| `log.{old}()` | `log.{new}()` |" for old, new in names.items())])
