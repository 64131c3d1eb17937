"""The declaration of a pipeline: the classes of its parts, and ``parse``, which makes them of a TOML text and reports
every error at once. Pure."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from tidelog.errors import ConfigError

FORMATS = ("raw", "json", "cbor")
AVAILABLE_NOW = "available-now"
MARKS = ("line", "bar")
PICTURES = (".svg", ".png")
_TEXTS = ("name", "gateway", "checkpoints", "trigger", "delivery")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Pattern of a name of a table, an output or a plot: an identifier of SQL."""
T = TypeVar("T", "Input", "Step", "DeclaredOutput", "Plot")


@dataclass(frozen=True, slots=True)
class Watermark:
    """The event-time watermark of a table, for ``withWatermark`` of Spark: a window no longer takes rows whose time
    in ``column`` is more than ``delay`` (such as ``10 minutes``) before the newest time."""

    column: str
    delay: str


@dataclass(frozen=True, slots=True)
class Input:
    """A table ``[in.NAME]`` of the declaration: a topic that the pipeline reads as a table."""

    name: str
    topic: str
    value: str = "raw"
    """Encoding of the records' values. ``raw``: the table has the source's columns, unchanged. ``json``, ``cbor``: it
    has the fields of ``schema``, and ``_key``, ``_topic``, ``_partition``, ``_offset``, ``_timestamp``."""
    schema: str = ""
    """Columns of the values with their types, as in SQL; "" with ``raw``."""
    bad: str = ""
    """Topic that gets the records whose value does not match ``value`` and ``schema``; "": the first such record ends
    the pipeline with an error."""
    watermark: Watermark | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    """Further options of the Tidelog source, by name."""


@dataclass(frozen=True, slots=True)
class Step:
    """A table ``[table.NAME]`` of the declaration: one that the pipeline computes from other tables, by either
    ``sql`` or ``python``."""

    name: str
    sql: str = ""
    python: str = ""
    """``file.py:function``. The pipeline calls the function with the Spark session, in which every earlier table is a
    view; the function returns a DataFrame."""
    watermark: Watermark | None = None


@dataclass(frozen=True, slots=True)
class DeclaredOutput:
    """An output ``[out.NAME]`` of the declaration: the table to write, and exactly one destination (``topic``,
    ``parquet`` or ``delta``). The pipeline runs it as a streaming query with a checkpoint of its own."""

    name: str
    table: str
    topic: str = ""
    parquet: str = ""
    delta: str = ""
    value: str = "json"
    """Encoding of the records of ``topic``. ``json`` or ``cbor``: a map of all columns; ``raw``: the table's columns
    are those of the sink."""
    key: str = ""
    """SQL expression for the key of the records of ``topic``; "": records without a key."""
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    """Further options of the sink, by name."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot ``[plot.NAME]`` of the declaration: a picture that is drawn from the outputs when the pipeline has
    ended."""

    name: str
    sql: str
    """A query over the Parquet and Delta outputs; each output is a table with its own name."""
    x: str
    y: str
    by: str = ""
    """Column of the query; each of its values gets a line of its own, or a part of each bar. "": one line."""
    mark: str = "line"
    title: str = ""
    file: str = ""
    """Path of the picture, ``….svg`` or ``….png``; "": NAME.svg."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A whole parsed declaration, as ``parse`` returns it. ``trigger`` is ``available-now`` (the pipeline ends when
    everything that is in the topics has been read), or the time between two micro-batches. ``checkpoints`` is the
    folder of the queries' checkpoints."""

    name: str
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[DeclaredOutput, ...]
    plots: tuple[Plot, ...] = ()
    gateway: str = ""
    checkpoints: str = "checkpoints"
    trigger: str = AVAILABLE_NOW
    delivery: str = ""
    """Delivery guarantee of output topics, unless the options of an output override it; "": the sink's default."""
    spark: Mapping[str, str] = field(default_factory=dict)
    """Settings of the Spark session, by name."""


def parse(text: str) -> Pipeline:
    """Parse the TOML text of a declaration, and return it as a ``Pipeline``. Raises ``ConfigError`` if the text is
    not TOML or the declaration has errors; its message lists all of them, one on a line."""
    try:
        parsed = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the pipeline is not TOML: {error}") from None
    faults: list[str] = []
    inputs = _each(parsed, "in", Input, _input, faults)
    steps = _each(parsed, "table", Step, _step, faults)
    outputs = _each(parsed, "out", DeclaredOutput, _output, faults)
    plots = _each(parsed, "plot", Plot, _plot, faults)
    known = (*_TEXTS, "spark", "in", "table", "out", "plot")
    faults += [
        f"there is no setting {name}; a pipeline has {', '.join(known)}" for name in parsed if name not in known
    ]
    plain = {name: parsed[name] for name in _TEXTS if name in parsed}
    faults += [f"{name} is a text" for name, value in plain.items() if not isinstance(value, str)]
    if not NAME.fullmatch(str(parsed.get("name", "")).replace("-", "_")):
        faults.append("name is letters, digits, _ and -, and must be given")
    faults += _references(inputs, steps, outputs)
    if plots and parsed.get("trigger", AVAILABLE_NOW) != AVAILABLE_NOW:
        faults.append(f"[plot.{plots[0].name}]: a plot is made at the end, and only trigger available-now has one")
    if faults:
        raise ConfigError("\n".join(faults))
    settings = {name: str(value) for name, value in parsed.get("spark", {}).items()}
    return Pipeline(inputs=inputs, steps=steps, outputs=outputs, plots=plots, spark=settings, **plain)


def _each(
    parsed: Mapping[str, Any], section: str, kind: type[T], check: Callable[[T], list[str]], faults: list[str]
) -> tuple[T, ...]:
    """Make an object of the dataclass ``kind`` of every table of a section (``in``, ``table``, ``out`` or ``plot``),
    and return the objects. Errors, also those that ``check`` returns for an object, are appended to ``faults``; a
    table with an unknown or a missing setting is left out."""
    made = []
    names = [one.name for one in fields(kind) if one.name not in ("name", "table")]
    wanted = {"in": "topic", "table": "sql or python", "out": "from", "plot": "sql, x and y"}[section]
    allowed = {"from": "table"} if section == "out" else {}
    allowed |= {name.replace("_", "-"): name for name in names}
    for name, settings in parsed.get(section, {}).items():
        where = f"[{section}.{name}]"
        if not NAME.fullmatch(name) or not isinstance(settings, dict):
            faults.append(f"{where}: a name is letters, digits and _, and has settings")
            continue
        unknown = [one for one in settings if one not in allowed]
        if unknown:
            faults.append(f"{where}: there is no setting {', '.join(unknown)}; there are {', '.join(allowed)}")
            continue
        values = {allowed[one]: _plain(value) for one, value in settings.items()}
        try:
            one = kind(name=name, **values)
        except TypeError:
            faults.append(f"{where}: {wanted} must be given")
            continue
        faults += [f"{where}: {fault}" for fault in check(one)]
        made.append(one)
    return tuple(made)


def _plain(value: Any) -> Any:
    """Return a value of the TOML text in the form in which the dataclasses keep it: a list as a tuple of strings, a
    table of ``column`` and ``delay`` as a ``Watermark``, any other table as a map of strings, everything else
    unchanged."""
    if isinstance(value, list):
        return tuple(map(str, value))
    if isinstance(value, dict):
        if set(value) == {"column", "delay"}:
            return Watermark(str(value["column"]), str(value["delay"]))
        return {name: str(one).lower() if isinstance(one, bool) else str(one) for name, one in value.items()}
    return value


def _input(one: Input) -> list[str]:
    """Return the errors of an input whose settings do not fit together; an empty list if there are none."""
    faults = []
    if one.value not in FORMATS:
        faults.append(f"value is one of {', '.join(FORMATS)}; not {one.value!r}")
    if (one.value == "raw") != (not one.schema):
        faults.append("schema goes with value json or cbor, and with each of them")
    if one.bad and one.value == "raw":
        faults.append("every raw value is a good one: bad goes with json or cbor")
    return faults + _watermark(one.watermark)


def _step(one: Step) -> list[str]:
    """Return the errors of a computed table: it needs either ``sql`` or a well-formed ``python``. An empty list if
    there are none."""
    faults = [] if bool(one.sql) != bool(one.python) else ["give either sql or python"]
    if one.python and not re.fullmatch(r"[^:]+\.py:[A-Za-z_]\w*", one.python):
        faults.append(f"python is file.py:function, not {one.python!r}")
    return faults + _watermark(one.watermark)


def _watermark(one: object) -> list[str]:
    """Return an error if a setting ``watermark`` is not a table of ``column`` and ``delay``; an empty list if it is
    one, or is not given."""
    fine = one is None or isinstance(one, Watermark)
    return [] if fine else ['watermark is such as {column = "at", delay = "10 minutes"}']


def _output(one: DeclaredOutput) -> list[str]:
    """Return the errors of an output, such as more than one destination; an empty list if there are none."""
    faults = []
    if sum(map(bool, (one.topic, one.parquet, one.delta))) != 1:
        faults.append("give exactly one of topic, parquet and delta")
    if one.value not in FORMATS:
        faults.append(f"value is one of {', '.join(FORMATS)}; not {one.value!r}")
    if one.partition_by and one.topic:
        faults.append("partition-by goes with parquet and delta")
    return faults


def _plot(one: Plot) -> list[str]:
    """Return the errors of a plot: an unknown mark, or a file of another kind than SVG or PNG. An empty list if there
    are none."""
    faults = []
    if one.mark not in MARKS:
        faults.append(f"mark is one of {', '.join(MARKS)}; not {one.mark!r}")
    if one.file and not one.file.endswith(PICTURES):
        faults.append(f"file ends in {' or '.join(PICTURES)}, not {one.file!r}")
    return faults


def _references(inputs: tuple[Input, ...], steps: tuple[Step, ...], outputs: tuple[DeclaredOutput, ...]) -> list[str]:
    """Return the errors between the parts of a declaration: two tables with one name, an output of an unknown table,
    no input, no output. An empty list if there are none."""
    tables: list[Input | Step] = [*inputs, *steps]
    names = [one.name for one in tables]
    faults = [f"two tables are called {name}" for name in sorted({name for name in names if names.count(name) > 1})]
    faults += [f"[out.{one.name}]: there is no table {one.table}" for one in outputs if one.table not in names]
    if not inputs:
        faults.append("a pipeline has at least one [in.NAME]")
    if not outputs:
        faults.append("a pipeline has at least one [out.NAME]")
    return faults
