"""The stub of the blocking client's administration (``shared/tidelog/sync/admin.pyi``), from the asynchronous one."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from tidelog.client.admin import access, cluster, groups, partitions, topics, transactions
from tidelog.sync import admin

SOURCES = (topics, partitions, groups, transactions, access, cluster)
HEAD = '"""The blocking face of administration. Generated from the code by `make pages`."""'
RUFF = str(Path(sys.executable).parent / "ruff")

Imports = dict[str, set[str]]
"""What the stub imports, by module."""


def stub() -> str:
    """Return the whole stub."""
    imports: Imports = {"tidelog.sync.portal": {"Portal"}, "typing": {"Any"}}
    classes = [_class(module, imports) for module in SOURCES]
    there = {name for name, thing in vars(admin).items() if isinstance(thing, type)}
    assert there == {each.name for each in classes}, "deploy/stubs.py knows other modules"
    lines = [f"from {module} import {', '.join(sorted(names))}" for module, names in imports.items() if names]
    text = "\n".join([HEAD, *sorted(lines), *map(ast.unparse, classes)])
    return _ruff("format", text=_ruff("check", "--select=I", "--fix-only", text=text))


def _class(module: ModuleType, imports: Imports) -> ast.ClassDef:
    """The blocking face of what a module administers. Adds to ``imports`` what its signatures name."""
    tree = ast.parse(inspect.getsource(module))
    (face,) = (each for each in tree.body if isinstance(each, ast.ClassDef) and each.name.endswith("Admin"))
    methods = [each for each in face.body if isinstance(each, ast.AsyncFunctionDef) and not each.name.startswith("_")]
    (init,) = ast.parse("def __init__(self, portal: Portal, inner: Any) -> None: ...").body
    face.body = [face.body[0], init, *map(_method, methods)]
    names = {each.id for each in ast.walk(face) if isinstance(each, ast.Name)}
    for each in tree.body:
        if isinstance(each, ast.ImportFrom) and each.module is not None:
            imports.setdefault(each.module, set()).update(names & {alias.name for alias in each.names})
        elif isinstance(each, ast.ClassDef) and each.name in names:
            imports.setdefault(module.__name__, set()).add(each.name)
    imports.pop("__future__", None)
    return face


def _method(method: ast.AsyncFunctionDef) -> ast.FunctionDef:
    """Its signature and its docstring."""
    return ast.FunctionDef(method.name, method.args, [method.body[0]], [], method.returns, lineno=0)


def _ruff(*command: str, text: str) -> str:
    done = subprocess.run(
        [RUFF, *command, "--quiet", "--no-cache", "--stdin-filename=admin.pyi", "-"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout
