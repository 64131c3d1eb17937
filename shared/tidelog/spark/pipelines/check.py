"""Checks a pipeline before it runs: its file, the Python functions that it names, and with Spark its SQL."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from tidelog.spark.pipelines.declaration import Reading, Step, read
from tidelog.spark.pipelines.file.toml_settings import Fault
from tidelog.spark.pipelines.file.variables import hidden


def check(text: str, variables: Mapping[str, str], folder: Path) -> Reading:
    """Return the parts of a pipeline's file with all errors and warnings that can be found without Spark, also those
    of the Python functions, whose files are below ``folder``. The files are read, and nothing in them is run."""
    reading = read(text, variables)
    faults = []
    for step in reading.pipeline.steps:
        if step.python:
            line = reading.lines.of(("table", step.name, "python"))
            faults += [Fault(line, f"[table.{step.name}]: {text}") for text in _function(step, folder)]
    return with_faults(reading, faults)


def with_faults(reading: Reading, more: list[Fault]) -> Reading:
    """Return a reading with more faults. The values of variables are hidden in their texts."""
    shown = {Fault(one.line, hidden(one.text, reading.secrets), one.warning) for one in more}
    return replace(reading, faults=tuple(sorted(shown | set(reading.faults))))


def _function(step: Step, folder: Path) -> Iterator[str]:
    """Yield what is wrong with the file and the function of a step."""
    file, _, name = step.python.rpartition(":")
    if not file.endswith(".py"):
        return  # reported as a wrong setting
    try:
        tree = ast.parse((folder / file).read_bytes())
    except OSError as error:
        yield f"{file}: {error.strerror}"
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        yield f"{file}{f':{line}' if line else ''}: this is not valid Python: {getattr(error, 'msg', None) or error}"
    else:
        yield from _definition(tree, file, name)


def _definition(tree: ast.Module, file: str, name: str) -> Iterator[str]:
    """Yield what is wrong with the definition of a function that gets the session as its only argument. A name that
    is imported or assigned may be such a function."""
    imported = {one.asname or one.name.partition(".")[0] for one in ast.walk(tree) if isinstance(one, ast.alias)}
    assigned = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    if {name, "*"} & imported or name in assigned:
        return
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = next((one for one in tree.body if isinstance(one, definitions) and one.name == name), None)
    if found is None:
        functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        yield f"{file} has no function {name}; it has {', '.join(functions) or 'none'}"
    elif isinstance(found, ast.AsyncFunctionDef):
        yield f"{file}:{found.lineno}: {name} is an async function, which Spark cannot call"
    elif isinstance(found, ast.FunctionDef):
        arguments = found.args
        positional = [*arguments.posonlyargs, *arguments.args]
        required = len(positional) - len(arguments.defaults)
        named = [
            one for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is None
        ]
        if required > 1 or (not positional and not arguments.vararg) or named:
            yield f"{file}:{found.lineno}: {name} must take one argument, the Spark session"
