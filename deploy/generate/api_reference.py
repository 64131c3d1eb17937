"""The reference of the Python API (``docs/api.md``), from the docstrings of what its modules make public."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import re
import textwrap
import typing
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from tidelog.client.admin.old_names import CALLED, OLD_NAMES

MODULES = ("tidelog", "tidelog.aio", "tidelog.sync", "tidelog.tracing")
HEAD = (
    "# Python API\n\n"
    "Generated from the code by `make pages`. Three libraries with the same names: `tidelog` on trio, `tidelog.aio` "
    "on asyncio, `tidelog.sync` for any thread. Every error is a `TidelogError` with one of the [codes](errors.md). "
    "Programs that show them at work: [trio](examples/orders_trio.py), [asyncio](examples/tickets_asyncio.py), "
    "[threads](examples/lines_sync.py). For browsers and Node: [JavaScript](javascript.md)."
)
HIDDEN = ("(called by the ", "Called by the ", "The old name of ")
"""Parts of the docstrings of methods that are left out: they are public, but not for applications, or have a newer
name."""
OLD_HEAD = (
    "## Old names\n\n"
    "Before administration stood behind attributes, these methods belonged to `Log` itself. The old names work for "
    "one more release, and emit `DeprecationWarning`. Type checkers do not know them.\n\n"
    "| before | now |\n|---|---|"
)


def page() -> str:
    """Return the whole page."""
    seen: dict[int, str] = {}
    parts = [HEAD]
    for name in MODULES:
        parts += _module(importlib.import_module(name), seen)
    return "\n\n".join([*parts, _old_names()]) + "\n"


def _old_names() -> str:
    names = OLD_NAMES | {old: f"{old}.{new}" for old, new in CALLED.items()}
    return "\n".join([OLD_HEAD, *(f"| `log.{old}()` | `log.{new}()` |" for old, new in names.items())])


def _module(module: ModuleType, seen: dict[int, str]) -> Iterator[str]:
    yield f"## {module.__name__}"
    yield _text(module)
    for name in module.__all__:
        thing = getattr(module, name)
        full = f"{module.__name__}.{name}"
        known = seen.setdefault(id(thing), full)
        if known != full:
            yield f"### {full}\n\nThe same as [{known}](#{_anchor(known)})."
        elif inspect.isclass(thing):
            yield from _class(full, thing)
        else:
            yield f"### {full}\n\n{_signature(full, thing)}\n\n{_text(thing)}"


def _class(full: str, kind: type) -> Iterator[str]:
    yield f"### {full}\n\n{_text(kind)}"
    fields = list(_fields(kind))
    if fields:
        yield "\n".join(["| field | default | meaning |", "|---|---|---|", *fields])
    for name, member in _members(kind):
        if isinstance(member, property):
            yield f"#### {kind.__name__}.{name}\n\n{_text(member)}"
        else:
            yield f"#### {kind.__name__}.{name}\n\n{_signature(name, member)}\n\n{_text(member)}"
    for name, part in _parts(kind):
        yield f"#### {kind.__name__}.{name}\n\n{_text(part)}"
        for method, member in _members(part):
            yield f"##### {kind.__name__}.{name}.{method}\n\n{_signature(method, member)}\n\n{_text(member)}"


def _parts(kind: type) -> Iterator[tuple[str, type]]:
    """Yield the attributes of a class that are objects with methods of their own, for administration: (name,
    class)."""
    for name, member in vars(kind).items():
        if isinstance(member, functools.cached_property):
            yield name, type(getattr(kind(None, None), name))
    if not dataclasses.is_dataclass(kind) and "__annotations__" in vars(kind) and not issubclass(kind, tuple):
        for name, part in typing.get_type_hints(kind).items():
            if isinstance(part, type) and part.__module__.startswith("tidelog.") and not name.startswith("_"):
                yield name, part


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public, documented methods and properties of a class, with those that it inherits from our
    classes."""
    if issubclass(kind, tuple):
        return
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        if base.__module__.startswith("tidelog"):
            found = found | {n: m for n, m in vars(base).items() if not n.startswith("_") and n not in found}
    for name, member in found.items():
        plain = member.__func__ if isinstance(member, staticmethod | classmethod) else member
        text = " ".join((inspect.getdoc(plain) or "").split())
        shown = text and not any(mark in text for mark in HIDDEN)
        if shown and (inspect.isfunction(plain) or isinstance(plain, property)):
            yield name, plain


def _fields(kind: type) -> Iterator[str]:
    """Yield a table row for each field of a data class or named tuple, with its default and the text below it."""
    if dataclasses.is_dataclass(kind):
        defaults = {
            field.name: "" if field.default is dataclasses.MISSING else repr(field.default)
            for field in dataclasses.fields(kind)
        }
    elif issubclass(kind, tuple) and hasattr(kind, "_fields"):
        defaults = {
            name: repr(kind._field_defaults[name]) if name in kind._field_defaults else "" for name in kind._fields
        }
    else:
        return
    texts = _texts_below(kind)
    for name, default in defaults.items():
        shown = f"`{default}`" if default else ""
        yield f"| `{name}` | {shown} | {_markdown(texts.get(name, '')).replace(chr(10), ' ')} |"


def _texts_below(kind: type) -> dict[str, str]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            texts[ast.unparse(field.target)] = inspect.cleandoc(str(below.value.value))
    return texts


def _signature(name: str, thing: Any) -> str:
    signature = inspect.signature(thing)
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    returned = signature.return_annotation
    kind = "async " if inspect.iscoroutinefunction(thing) else ""
    text = f"{kind}{name}{_call(parameters)}"
    if returned is not inspect.Signature.empty:
        text += f" -> {_plain(returned)}"
    return f"```python\n{text}\n```"


def _call(parameters: list[inspect.Parameter]) -> str:
    shown: list[str] = []
    for parameter in parameters:
        if (
            parameter.kind is inspect.Parameter.KEYWORD_ONLY
            and "*" not in shown
            and not any(s.startswith("*") for s in shown)
        ):
            shown.append("*")
        star = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        text = star + parameter.name
        if parameter.annotation is not inspect.Parameter.empty:
            text += f": {_plain(parameter.annotation)}"
        if parameter.default is not inspect.Parameter.empty:
            text += f" = {_default(parameter.default)}"
        shown.append(text)
    line = f"({', '.join(shown)})"
    if len(line) <= 90:
        return line
    return "(\n" + "".join(f"    {text},\n" for text in shown) + ")"


def _default(value: Any) -> str:
    return value.__name__ if inspect.isfunction(value) else repr(value)


def _plain(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _text(thing: Any) -> str:
    return _markdown(inspect.getdoc(thing) or "")


def _markdown(text: str) -> str:
    """Return a docstring as Markdown: code is marked as in reStructuredText, and indented text is a code block."""
    lines: list[str] = []
    code = False
    for line in text.replace("``", "`").splitlines():
        if line.startswith("    ") and not code:
            lines.append("```python")
        elif code and line and not line.startswith("    "):
            blank = lines.pop() if not lines[-1] else None
            lines += ["```", *([""] if blank is not None else [])]
        code = line.startswith("    ") or (code and not line)
        lines.append(line.removeprefix("    ") if code else re.sub(r"<(?=[A-Za-z])", "&lt;", line))
    if code:
        lines.append("```")
    return "\n".join(lines)


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9_ -]", "", title.lower()).replace(" ", "-")
