"""Checks what the parts of a pipeline mean for each other: names, the order of tables, folders, checkpoints, topics.
Pure."""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.spark import options as source
from tidelog.spark.errors import SourceError
from tidelog.spark.option_parsers import Parsers, collect
from tidelog.spark.pipelines.file.sql_names import tables_of
from tidelog.spark.pipelines.file.toml_lines import Path
from tidelog.spark.pipelines.file.toml_settings import Faults
from tidelog.spark.pipelines.file.variables import has_variables
from tidelog.spark.pipelines.source_options import reading_options, topics_of, writing_options
from tidelog.spark.write import options as sink

EXACTLY_ONCE = "exactly-once"

if TYPE_CHECKING:
    from tidelog.spark.pipelines.declaration import DeclaredOutput, Input, Pipeline, Step


def check_parts(pipeline: Pipeline, tree: Mapping[str, Any], faults: Faults) -> None:
    """Add what is wrong between the parts of a pipeline to ``faults``. ``tree`` is the parsed text of its file, which
    also has the names of parts that could not be made."""
    places = _places(tree)
    _check_names(places, faults)
    _check_tables(pipeline, places, faults)
    _check_options(pipeline, faults)
    _check_folders(pipeline, faults)
    _check_shared_reads(pipeline, faults)
    _check_topics(pipeline, faults)


def _places(tree: Mapping[str, Any]) -> list[Path]:
    """Return the paths of all inputs and computed tables of a file, in its order: inputs first, as they are made."""
    sections = ((section, tree.get(section)) for section in ("in", "table"))
    return [(section, name) for section, tables in sections if isinstance(tables, dict) for name in tables]


def _check_names(places: list[Path], faults: Faults) -> None:
    """Find tables with the same name. Case makes no difference to Spark."""
    seen: dict[str, Path] = {}
    for path in sorted(places, key=faults.lines.of):
        name = str(path[1])
        first = seen.setdefault(name.lower(), path)
        if first is not path:
            faults.add(path, f"two tables are called {name}; the first is in line {faults.lines.of(first)}")


# --- tables ----------------------------------------------------------------------------------------------


def _check_tables(pipeline: Pipeline, places: list[Path], faults: Faults) -> None:
    """Find outputs of tables that do not exist, and tables whose SQL reads one that is not there yet."""
    names = {str(path[1]).lower(): str(path[1]) for path in places}
    for output in pipeline.outputs:
        if output.table and output.table.lower() not in names:
            text = f"[out.{output.name}]: there is no table {output.table}{_meant(output.table, names)}"
            faults.add(("out", output.name, "from"), text)
    later = {str(path[1]).lower() for path in places if path[0] == "table"}
    reads = {step.name.lower(): {one.name for one in tables_of(step.sql)} for step in pipeline.steps}
    for step in pipeline.steps:
        path: Path = ("table", step.name, "sql")
        for table in tables_of(step.sql):
            line, where = faults.lines.within(path, table.line), f"[table.{step.name}]"
            if table.name == step.name.lower():
                faults.add_at(line, path, f"{where}: the table reads itself")
            elif table.name in later:
                faults.add_at(line, path, f"{where}: {_too_early(step, table.name, names, reads, faults)}")
            elif table.name not in names and not _may_be_elsewhere(pipeline):
                text = f"{where}: {table.name} is no table of this pipeline{_meant(table.name, names)}"
                faults.add_at(line, path, text, warning=True)
        later.discard(step.name.lower())


def _too_early(
    step: Step, table: str, names: Mapping[str, str], reads: Mapping[str, set[str]], faults: Faults
) -> str:
    """Return the fault of a step that reads a table further down: a cycle, or an order that is to be changed."""
    way = _way(table, step.name.lower(), reads)
    if way:
        return f"the tables {', '.join(names.get(one, one) for one in way)} read each other in a circle"
    line = faults.lines.of(("table", names[table]))
    return f"the table {names[table]} is declared later, in line {line}; a table reads those above it"


def _way(start: str, end: str, reads: Mapping[str, set[str]]) -> list[str]:
    """Return the tables by which ``start`` reads ``end``, both included, on a shortest way; an empty list if it does
    not."""
    ways = {start: [start]}
    waiting = [start]
    for table in waiting:
        for one in sorted(reads.get(table, set()) - set(ways)):
            ways[one] = [*ways[table], one]
            waiting.append(one)
    return ways.get(end, [])


def _may_be_elsewhere(pipeline: Pipeline) -> bool:
    """Return whether queries may read tables that the file does not declare: those that Python functions register, or
    those of a catalog that the settings of the session name."""
    return any(step.python for step in pipeline.steps) or any("catalog" in name.lower() for name in pipeline.spark)


def _meant(name: str, names: Mapping[str, str]) -> str:
    close = difflib.get_close_matches(name.lower(), names, n=1)
    return f"; do you mean {names[close[0]]}?" if close else ""


# --- options ---------------------------------------------------------------------------------------------


def _check_options(pipeline: Pipeline, faults: Faults) -> None:
    """Find options that the source or the sink refuses."""
    for one in pipeline.inputs:
        if topics_of(one) or one.subscribe_pattern:
            path = ("in", one.name, "options")
            for name in one.options if pipeline.group_prefix else ():
                if name.lower() == "groupid":
                    text = "groupId does not go with group-prefix, by which each query has a group of its own"
                    faults.add((*path, name), f"[in.{one.name}]: options: {text}")
            if _each_is_good(one.options, source.STREAM, "a stream", path, faults):
                _check_together(partial(source.parse, reading_options(one), streaming=True), path, faults)
    for output in pipeline.outputs:
        if output.topic:
            path = ("out", output.name, "options")
            if _each_is_good(output.options, sink.WRITE, "a stream", path, faults):
                _check_together(partial(sink.parse, writing_options(pipeline, output), streaming=True), path, faults)


def _each_is_good(options: Mapping[str, str], parsers: Parsers, what: str, path: Path, faults: Faults) -> bool:
    """Return whether each option exists and has a valid value; add those that do not to ``faults``."""
    good = True
    for name, value in options.items():
        for text in () if has_variables(value) else collect({name: value}, parsers, what)[1]:
            good = False
            faults.add((*path, name), f"[{path[0]}.{path[1]}]: options: {text}")
    return good


def _check_together(parse: Callable[[], object], path: Path, faults: Faults) -> None:
    """Add to ``faults`` what ``parse`` finds wrong in options that are each good, unless their part has other errors,
    which it would find again."""
    if path[:2] in faults.parts:
        return
    try:
        parse()
    except SourceError as error:
        faults.add(path, f"[{path[0]}.{path[1]}]: options: {str(error).partition('] ')[2]}")


# --- folders ---------------------------------------------------------------------------------------------


def _check_folders(pipeline: Pipeline, faults: Faults) -> None:
    """Find outputs that write to one folder, or keep their checkpoints in one."""
    folders = [
        (_normal(path), output, kind)
        for output in pipeline.outputs
        for kind, path in (output.destination(),)
        if kind in ("delta", "manifest", "parquet")
    ]
    for number, (folder, output, kind) in enumerate(folders):
        for other_folder, other, _ in folders[:number]:
            if folder == other_folder or _is_inside(folder, other_folder) or _is_inside(other_folder, folder):
                how = "the same folder as" if folder == other_folder else "a folder that overlaps with that of"
                faults.add(("out", output.name, kind), f"[out.{output.name}]: writes to {how} [out.{other.name}]")
    checkpoints: dict[str, str] = {}
    for output in pipeline.outputs:
        option = next((name for name in output.options if name.lower() == "checkpointlocation"), "")
        place = _normal(output.options[option]) if option else _normal(f"{pipeline.checkpoints}/{output.name}")
        other_name = checkpoints.setdefault(place, output.name)
        if other_name != output.name:
            path = ("out", output.name, "options", option) if option else ("out", output.name)
            faults.add(path, f"[out.{output.name}]: has the same checkpoint as [out.{other_name}]")
    for folder, output, kind in folders:
        for place in checkpoints:
            if folder == place or _is_inside(place, folder) or _is_inside(folder, place):
                faults.add(("out", output.name, kind), f"[out.{output.name}]: writes to a folder with checkpoints")
                break


def _normal(path: str) -> str:
    """Return a path or URL in the one form by which two are compared."""
    scheme, mark, rest = path.rpartition("://")
    return f"{scheme}{mark}{posixpath.normpath(rest)}"


def _is_inside(path: str, folder: str) -> bool:
    return path.startswith(f"{folder}/") or (folder == "." and not path.startswith(("/", "..")) and "://" not in path)


# --- shared reads ----------------------------------------------------------------------------------------


def _check_shared_reads(pipeline: Pipeline, faults: Faults) -> None:
    """Find outputs that cannot share the read of an input, as far as their settings tell."""
    outputs = {one.name: one for one in pipeline.outputs}
    shared: dict[str, str] = {}
    for one in pipeline.inputs:
        for number, name in enumerate(one.shared_by):
            first = outputs.get(one.shared_by[0])
            if shared.setdefault(name, one.name) != one.name or name in one.shared_by[:number]:
                fault = f"{name} is named twice, here or in another input"
            elif (output := outputs.get(name)) is None:
                fault = f"there is no output {name}"
            else:
                fault = _not_shared(pipeline, output, output if first is None else first)
            if fault:
                faults.add(("in", one.name, "shared-by", number), f"[in.{one.name}]: shared-by: {fault}")


def _not_shared(pipeline: Pipeline, output: DeclaredOutput, first: DeclaredOutput) -> str:
    """Return why an output cannot be written by the query that also writes ``first``; "" if it can."""
    if output.parquet:
        return (
            f"{output.name} writes parquet, which could have a batch twice; take manifest, delta, iceberg or a topic"
        )
    if output.mode != "append":
        return f"{output.name} has mode {output.mode}; outputs that share a read are appended to"
    if (delivery := writing_options(pipeline, output).get("delivery", EXACTLY_ONCE)) != EXACTLY_ONCE:
        return f"{output.name} has delivery {delivery}; outputs that share a read are written exactly-once"
    if pipeline.trigger_of(output) != pipeline.trigger_of(first):
        return f"{output.name} has another trigger than {first.name}, and both have one query"
    if output.restart != first.restart:
        return f"{output.name} has another restart than {first.name}, and both have one query"
    return ""


# --- topics ----------------------------------------------------------------------------------------------


def _check_topics(pipeline: Pipeline, faults: Faults) -> None:
    """Find topics that the pipeline reads and writes, and applications that two outputs share."""
    for output in pipeline.outputs:
        for one in _readers(output.topic, pipeline):
            text = f"writes the topic {output.topic}, which [in.{one.name}] reads: records may go round for ever"
            faults.add(("out", output.name, "topic"), f"[out.{output.name}]: {text}", warning=True)
    for one in pipeline.inputs:
        for reader in _readers(one.bad, pipeline):
            text = f"bad records go to the topic {one.bad}, which [in.{reader.name}] reads"
            faults.add(("in", one.name, "bad"), f"[in.{one.name}]: {text}", warning=True)
    apps: dict[str, DeclaredOutput] = {}
    for output in pipeline.outputs:
        for name, value in output.options.items():
            if name.lower() == "appid" and apps.setdefault(value, output) is not output:
                text = f"has the appId of [out.{apps[value].name}]: batches of one would count as those of the other"
                faults.add(("out", output.name, "options", name), f"[out.{output.name}]: {text}")


def _readers(topic: str, pipeline: Pipeline) -> Iterator[Input]:
    """Yield the inputs that read a topic."""
    for one in pipeline.inputs:
        if topic and (topic in topics_of(one) or _matches(one.subscribe_pattern, topic)):
            yield one


def _matches(pattern: str, topic: str) -> bool:
    try:
        return bool(pattern) and re.fullmatch(pattern, topic) is not None
    except re.error:
        return False
