"""Makes the graph of a pipeline from its declaration. Pure.

What the SQL of a table reads is found by its words (``sql_names``), and what a Python function reads by the texts in
it: names of tables, and queries."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tidelog.printable import escaped
from tidelog.spark.pipelines.declaration import DeclaredOutput, Input, Pipeline, Step
from tidelog.spark.pipelines.file.sql_names import tables_of
from tidelog.spark.pipelines.source_options import topics_of


@dataclass(frozen=True, slots=True)
class Part:
    """A node of the graph: its ``kind`` (``topic``, ``input``, ``table``, ``output``, ``bad`` or ``plot``), its name,
    and what else is to be said, on one line."""

    kind: str
    name: str
    detail: str


@dataclass(frozen=True, slots=True)
class Graph:
    """The parts of a pipeline, in the order of its file, and the flows between them as pairs of their numbers."""

    title: str
    parts: tuple[Part, ...]
    flows: tuple[tuple[int, int], ...]


def graph_of(pipeline: Pipeline, sources: Mapping[str, str]) -> Graph:
    """Return the graph of a pipeline. ``sources`` has the texts of the Python files that its tables name, by the name
    of the file; tables of a file that is missing read nothing."""
    builder = _Builder(pipeline, sources)
    return Graph(escaped(pipeline.name), tuple(builder.parts), tuple(builder.flows))


class _Builder:
    """Collects the parts and flows of a pipeline."""

    def __init__(self, pipeline: Pipeline, sources: Mapping[str, str]) -> None:
        self.parts: list[Part] = []
        self.flows: list[tuple[int, int]] = []
        self._sources = sources
        topics: dict[str, int] = {}
        tables: dict[str, int] = {}
        outputs: dict[str, int] = {}
        for one in pipeline.inputs:
            tables[one.name.lower()] = self._input(one, topics)
        reads = [(step, self._add("table", step.name, _of_step(step))) for step in pipeline.steps]
        tables |= {step.name.lower(): number for step, number in reads}
        for step, number in reads:
            self._flows((tables[name] for name in self._names(step, tables)), number)
        for output in pipeline.outputs:
            outputs[output.name.lower()] = self._output(output, pipeline, tables)
        for plot in pipeline.plots:
            number = self._add("plot", plot.file or f"{plot.name}.svg", f"plot {plot.name}")
            self._flows((outputs[one.name] for one in tables_of(plot.sql) if one.name in outputs), number)

    def _add(self, kind: str, name: str, detail: str) -> int:
        self.parts.append(Part(kind, escaped(name), escaped(detail)))
        return len(self.parts) - 1

    def _flows(self, starts: Iterator[int], end: int) -> None:
        self.flows += [(start, end) for start in starts if start != end]

    def _input(self, one: Input, topics: dict[str, int]) -> int:
        """Add an input with its topics and its topic for bad records, and return its number."""
        names = (f"/{one.subscribe_pattern}/",) if one.subscribe_pattern else topics_of(one)
        for name in names:
            if name not in topics:
                topics[name] = self._add("topic", name, "topics" if one.subscribe_pattern else "topic")
        number = self._add("input", one.name, _joined("input", one.value, _of_watermark(one)))
        self._flows((topics[name] for name in names), number)
        if one.bad:
            self._flows(iter([number]), self._add("bad", one.bad, f"topic · bad records of {one.name}"))
        return number

    def _output(self, output: DeclaredOutput, pipeline: Pipeline, tables: Mapping[str, int]) -> int:
        """Add an output, and return its number."""
        kind, place = output.destination()
        mode = "" if output.mode == "append" else output.mode
        detail = _joined(f"{kind} · {output.name}", mode, pipeline.trigger_of(output))
        number = self._add("output", place, detail)
        if output.table.lower() in tables:
            self._flows(iter([tables[output.table.lower()]]), number)
        return number

    def _names(self, step: Step, tables: Mapping[str, int]) -> list[str]:
        """Return the names of the tables that a step reads, each once."""
        if step.sql:
            found = [one.name for one in tables_of(step.sql)]
        else:
            file, _, function = step.python.rpartition(":")
            texts = _texts(self._sources.get(file, ""), function)
            found = [name for text in texts for name in (text.lower(), *(one.name for one in tables_of(text)))]
        return [name for name in dict.fromkeys(found) if name in tables]


def _texts(source: str, function: str) -> list[str]:
    """Return the texts in a function of a Python file; none if there is no such function."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    body = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == function]
    constants = [one for part in body for one in ast.walk(part) if isinstance(one, ast.Constant)]
    constants.sort(key=lambda one: (one.lineno, one.col_offset))
    return [one.value for one in constants if isinstance(one.value, str)]


def _of_step(step: Step) -> str:
    return _joined("table", f"Python {step.python}" if step.python else "SQL", _of_watermark(step))


def _of_watermark(one: Input | Step) -> str:
    return f"watermark {one.watermark.column}, {one.watermark.delay}" if one.watermark else ""


def _joined(*texts: str) -> str:
    return " · ".join(filter(None, texts))
