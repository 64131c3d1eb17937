"""The declaration of a pipeline. Pure: parses a TOML text into checked values, and reports every error."""

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
"""Names that a table may have: identifiers of SQL."""
T = TypeVar("T", "Input", "Step", "DeclaredOutput", "Plot")


@dataclass(frozen=True, slots=True)
class Watermark:
    """Rows later than ``delay`` behind the newest are left out of windows."""

    column: str
    delay: str


@dataclass(frozen=True, slots=True)
class Input:
    """A topic that is read as a table."""

    name: str
    topic: str
    value: str = "raw"
    """``raw``: the source's columns, unchanged; ``json``, ``cbor``: the fields of ``schema``, and ``_key``,
    ``_topic``, ``_partition``, ``_offset``, ``_timestamp``."""
    schema: str = ""
    """Columns and types of the values, as in SQL."""
    bad: str = ""
    """Topic for records whose value does not match ``value`` and ``schema``; "": such a record ends the pipeline."""
    watermark: Watermark | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    """More options of the source."""


@dataclass(frozen=True, slots=True)
class Step:
    """A table computed from others."""

    name: str
    sql: str = ""
    python: str = ""
    """``file.py:function``. The function gets the Spark session, in which every earlier table is a view, and returns
    a DataFrame."""
    watermark: Watermark | None = None


@dataclass(frozen=True, slots=True)
class DeclaredOutput:
    """The destination of a table: one streaming query with a checkpoint of its own."""

    name: str
    table: str
    topic: str = ""
    parquet: str = ""
    delta: str = ""
    value: str = "json"
    """Encoding of records of a topic. ``json`` or ``cbor``: all columns as a map; ``raw``: the table's columns are
    those of the sink."""
    key: str = ""
    """Key of records of a topic: an SQL expression."""
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    """More options of the sink."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture of the contents of the outputs when the pipeline has ended."""

    name: str
    sql: str
    """A query over the Parquet and Delta outputs, each a table by its name."""
    x: str
    y: str
    by: str = ""
    """Column whose values each get a line, or a part of each bar."""
    mark: str = "line"
    title: str = ""
    file: str = ""
    """``….svg`` or ``….png``; "": NAME.svg."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline. ``trigger``: ``available-now`` (end after all that is there), or a time between batches."""

    name: str
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[DeclaredOutput, ...]
    plots: tuple[Plot, ...] = ()
    gateway: str = ""
    checkpoints: str = "checkpoints"
    trigger: str = AVAILABLE_NOW
    delivery: str = ""
    """Delivery guarantee for output topics, unless their options override it; "": the sink's default."""
    spark: Mapping[str, str] = field(default_factory=dict)
    """Settings of the Spark session."""


def parse(text: str) -> Pipeline:
    """Parse a declaration. Raises ``ConfigError`` with every error, one a line."""
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
    """Yield every valid table of a section."""
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
    if isinstance(value, list):
        return tuple(map(str, value))
    if isinstance(value, dict):
        if set(value) == {"column", "delay"}:
            return Watermark(str(value["column"]), str(value["delay"]))
        return {name: str(one).lower() if isinstance(one, bool) else str(one) for name, one in value.items()}
    return value


def _input(one: Input) -> list[str]:
    faults = []
    if one.value not in FORMATS:
        faults.append(f"value is one of {', '.join(FORMATS)}; not {one.value!r}")
    if (one.value == "raw") != (not one.schema):
        faults.append("schema goes with value json or cbor, and with each of them")
    if one.bad and one.value == "raw":
        faults.append("every raw value is a good one: bad goes with json or cbor")
    return faults + _watermark(one.watermark)


def _step(one: Step) -> list[str]:
    faults = [] if bool(one.sql) != bool(one.python) else ["give either sql or python"]
    if one.python and not re.fullmatch(r"[^:]+\.py:[A-Za-z_]\w*", one.python):
        faults.append(f"python is file.py:function, not {one.python!r}")
    return faults + _watermark(one.watermark)


def _watermark(one: object) -> list[str]:
    fine = one is None or isinstance(one, Watermark)
    return [] if fine else ['watermark is such as {column = "at", delay = "10 minutes"}']


def _output(one: DeclaredOutput) -> list[str]:
    faults = []
    if sum(map(bool, (one.topic, one.parquet, one.delta))) != 1:
        faults.append("give exactly one of topic, parquet and delta")
    if one.value not in FORMATS:
        faults.append(f"value is one of {', '.join(FORMATS)}; not {one.value!r}")
    if one.partition_by and one.topic:
        faults.append("partition-by goes with parquet and delta")
    return faults


def _plot(one: Plot) -> list[str]:
    faults = []
    if one.mark not in MARKS:
        faults.append(f"mark is one of {', '.join(MARKS)}; not {one.mark!r}")
    if one.file and not one.file.endswith(PICTURES):
        faults.append(f"file ends in {' or '.join(PICTURES)}, not {one.file!r}")
    return faults


def _references(inputs: tuple[Input, ...], steps: tuple[Step, ...], outputs: tuple[DeclaredOutput, ...]) -> list[str]:
    tables: list[Input | Step] = [*inputs, *steps]
    names = [one.name for one in tables]
    faults = [f"two tables are called {name}" for name in sorted({name for name in names if names.count(name) > 1})]
    faults += [f"[out.{one.name}]: there is no table {one.table}" for one in outputs if one.table not in names]
    if not inputs:
        faults.append("a pipeline has at least one [in.NAME]")
    if not outputs:
        faults.append("a pipeline has at least one [out.NAME]")
    return faults
