"""The page of the messages between clients and gateways (``docs/messages.md``): their fields and what these mean, as
the message classes have them."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Iterator
from dataclasses import MISSING, is_dataclass
from typing import Any

from tidelog.wire.codec import MESSAGES, OPS
from tidelog.wire.fields import default_of, is_payload, optional_of, typed_fields
from tidelog.wire.messages import Done, Message
from tidelog.wire.operation_errors import ERRORS

HEAD = """# Messages

Generated from the code by `make pages`. The messages between a client and a gateway, with the meaning of their
fields; [protocol](protocol.md) says how they belong together, the
[CDDL file](../shared/tidelog/wire/tidelog.cddl) is normative. A field without a default must be there. One that is
left out has its default. A *payload* is no field of the header: it follows the header as a byte string. Requests have
`op` and `id` besides, answers `re`. Fields that only services use are left alone by clients."""
ONE_WAY = {"produce": ("produced",), "subscribe": ("credit", "delivery")}
"""One-way messages that belong to an operation."""
SIMPLE = {int: "integer", str: "text", bool: "true or false", bytes: "bytes"}


def page() -> str:
    """Return the page: a section for each operation of a client, with its answer, and one for the parts."""
    lines, parts = [HEAD], dict[type, None]()
    for op in (one for named in ERRORS for one in (named, *ONE_WAY.get(named, ()))):
        request = OPS[op]
        lines.append(f"\n## {op}\n\n{_text(inspect.getdoc(request))}\n")
        lines += _table(request, parts)
        if request.ANSWER is not None:
            about = "" if request.ANSWER is Done else f" {_text(inspect.getdoc(request.ANSWER))}"
            lines.append(f"\nThe answer is `{rule_name(request.ANSWER)}`.{about}\n")
            lines += _table(request.ANSWER, parts)
    lines.append("\n## Parts\n\nMaps inside of messages, by the names that they have in the CDDL file.")
    done: set[type] = set()
    while left := sorted(set(parts) - done, key=lambda cls: cls.__name__):
        for part in left:
            done.add(part)
            lines.append(f"\n### {rule_name(part)}\n\n{_text(inspect.getdoc(part))}\n")
            lines += _table(part, parts)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def rule_name(cls: type) -> str:
    """Return the name of a class in ``tidelog.cddl``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()


def _table(cls: type, parts: dict[type, None]) -> Iterator[str]:
    """Yield the rows with the fields of a message or part, and add the parts in it to ``parts``."""
    meanings = _meanings(cls)
    rows = [(field, hint) for field, hint in typed_fields(cls) if not field.name.isupper()]
    if rows:
        yield from ("| field | type | default | meaning |", "|---|---|---|---|")
    for field, hint in rows:
        payload = is_payload(hint)
        kind = "payload" if payload else _type(hint, parts)
        default = "" if payload else _default(default_of(field))
        yield f"| `{field.name}` | {kind} | {default} | {_text(meanings.get(field.name, ''))} |"


def _type(hint: Any, parts: dict[type, None]) -> str:
    inner = optional_of(hint)
    if inner is not None:
        return _type(inner, parts)
    if typing.get_origin(hint) is tuple:
        return f"array of {_type(typing.get_args(hint)[0], parts)}"
    if typing.get_origin(hint) is dict:
        return f"map of {SIMPLE[typing.get_args(hint)[1]]}"
    if is_dataclass(hint) and isinstance(hint, type):
        parts[hint] = None
        return f"[{rule_name(hint)}](#{rule_name(hint)})"
    return SIMPLE.get(hint, "text")


def _default(value: Any) -> str:
    if value is MISSING:
        return ""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    return f'"{value}"' if value else "empty"


def _meanings(cls: type) -> dict[str, str]:
    """Return the docstrings of a class's fields, those of its base classes included, by field."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base is object or isinstance(base, types.GenericAlias) or base.__module__ == "builtins":
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, after in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                found[field.target.id] = str(after.value.value)
    return found


def _text(docstring: str | None) -> str:
    """Return a docstring as one line of Markdown, in which messages have the names of the protocol."""
    names = {cls.__name__: cls.OP or rule_name(cls) for cls in MESSAGES if issubclass(cls, Message)}
    text = re.sub(r" \(``(?:tidelog|wire)\.[\w.]+``\)", "", " ".join((docstring or "").split()))
    return re.sub(r"``([^`]+)``", lambda found: f"`{names.get(found[1], found[1])}`", text).replace("|", "\\|")
