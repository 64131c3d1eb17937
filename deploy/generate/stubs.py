"""Writes the stub of the blocking faces (``shared/tidelog/sync/faces.pyi``) from the asynchronous classes."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from tidelog.sync import faces

HEAD = '"""The blocking faces of consumers and of administration. Generated from the code by `make pages`."""'
RUFF = str(Path(sys.executable).parent / "ruff")
PLACE = Path(__file__).resolve().parents[2] / "shared" / "tidelog" / "sync" / "faces.pyi"

Imports = dict[str, set[str]]
"""The names that the stub imports, by module."""


def stub() -> str:
    """Return the text of the whole stub, formatted by ruff."""
    imports: Imports = {"typing": {"Any"}}
    classes = [
        ast.unparse(_class(getattr(faces, name), imports)) for name in (*faces.CONSUMERS, *faces.ADMINISTRATION)
    ]
    lines = [f"from {module} import {', '.join(sorted(names))}" for module, names in imports.items() if names]
    text = "\n".join([HEAD, *sorted(lines), *classes])
    return _ruff("format", text=_ruff("check", "--select=I,F401", "--fix-only", text=text))


def _class(made: type, imports: Imports) -> ast.ClassDef:
    """Return the syntax tree of a blocking face with the signatures of its asynchronous class. Adds the names that it
    uses to ``imports``."""
    face, base = made._face, made.__mro__[1]  # type: ignore[attr-defined]
    tree = ast.parse(inspect.getsource(sys.modules[face.__module__]))
    (node,) = (each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == face.__name__)
    functions = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    about = ast.Expr(ast.Constant(made.__doc__))
    node.body = [about, *(_method(each) for each in functions if each.name in vars(made))]
    node.bases = [ast.Name(base.__name__ + ("[Any]" if getattr(base, "__parameters__", ()) else ""))]
    imports.setdefault(base.__module__, set()).add(base.__name__)
    _add_imports(sys.modules[face.__module__], tree, node, imports)
    return node


def _method(method: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.FunctionDef:
    """Return a method with the signature and the docstring of an asynchronous one, and no body."""
    about, marks = [method.body[0]], method.decorator_list
    return ast.FunctionDef(method.name, method.args, about, marks, method.returns, lineno=0)


def _add_imports(module: ModuleType, tree: ast.Module, node: ast.ClassDef, imports: Imports) -> None:
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    kept = [each for block in tree.body if isinstance(block, ast.If) for each in block.body]  # if TYPE_CHECKING
    for each in (*tree.body, *kept):
        if isinstance(each, ast.ImportFrom) and each.module not in (None, "__future__"):
            imports.setdefault(str(each.module), set()).update(names & {alias.name for alias in each.names})
        elif isinstance(each, ast.ClassDef | ast.FunctionDef) and each is not node and each.name in names:
            imports.setdefault(module.__name__, set()).add(each.name)
        elif isinstance(each, ast.Assign) and (named := {ast.unparse(target) for target in each.targets} & names):
            imports.setdefault(module.__name__, set()).update(named)


def _ruff(*command: str, text: str) -> str:
    done = subprocess.run(
        [RUFF, *command, "--quiet", "--no-cache", "--stdin-filename", str(PLACE), "-"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout
