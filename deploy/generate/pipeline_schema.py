"""Writes ``docs/pipeline.schema.json``: the JSON schema of the file of a pipeline, for editors. It is made of the
dataclasses of ``tidelog.spark.pipelines.declaration``: their types, defaults and docstrings."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from dataclasses import MISSING, fields, is_dataclass
from itertools import pairwise
from typing import Any, get_args, get_origin

from tidelog.spark.pipelines.declaration import Pipeline
from tidelog.spark.pipelines.file.toml_settings import NAME, OneOf, Setting, is_section, settings_of

SIMPLE = {str: "string", bool: "boolean", int: "integer", float: "number"}
WITH_VARIABLE = {"type": "string", "pattern": r"\$\{"}
"""A text with a variable, whose value the schema does not know."""


def page() -> str:
    """Return the schema as the text of its file."""
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Pipeline of Tidelog",
        **_table(Pipeline, named=False),
    }
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _table(kind: type[Any], *, named: bool) -> dict[str, Any]:
    """Return the schema of a table with the settings of a dataclass. ``named``: the name of the table is its field
    ``name``, which is no setting."""
    texts = _docstrings(kind)
    settings = [one for one in settings_of(kind) if not (named and one.field == "name")]
    defaults = {one.name: one.default for one in fields(kind) if one.default is not MISSING}
    properties = {}
    for one in settings:
        properties[one.key] = _value(one)
        if text := texts.get(one.field):
            properties[one.key]["description"] = text
        default = defaults.get(one.field)
        if isinstance(default, str | bool | int | float) and default != "":
            properties[one.key]["default"] = default
    schema: dict[str, Any] = {"type": "object"}
    if text := _plain(inspect.getdoc(kind) or ""):
        schema["description"] = text
    return schema | {
        "properties": properties,
        "required": [one.key for one in settings if one.required],
        "additionalProperties": False,
    }


def _value(setting: Setting) -> dict[str, Any]:
    """Return the schema of the value of a setting."""
    hint = setting.hint
    if is_section(hint):
        table = _table(get_args(hint)[0], named=True)
        section: dict[str, Any] = {"type": "object", "patternProperties": {f"^{NAME.pattern}$": table}}
        return section | {"additionalProperties": False} | ({"minProperties": 1} if setting.required else {})
    if is_dataclass(hint):
        assert isinstance(hint, type)
        return _table(hint, named=False)
    if get_origin(hint) is tuple:
        return {"type": "array", "items": {"type": "string"}}
    if hint in SIMPLE:
        words = [list(one.words) for one in setting.extras if isinstance(one, OneOf)]
        return {"anyOf": [{"enum": words[0]}, WITH_VARIABLE]} if words else {"type": SIMPLE[hint]}
    return {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}


def _docstrings(kind: type[Any]) -> dict[str, str]:
    """Return the docstring of each field of a dataclass that has one."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    texts = {}
    for before, here in pairwise(tree.body):
        match before, here:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = _plain(text)
    return texts


def _plain(text: str) -> str:
    """Return a docstring on one line, without the marks of code."""
    return re.sub(r"\s+", " ", text).replace("``", "`").strip()
