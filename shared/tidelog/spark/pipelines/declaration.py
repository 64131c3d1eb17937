"""The declaration of a pipeline: the classes of its parts, and ``parse``, which makes them of a TOML text and reports
every error at once, with its line. Pure."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any

from tidelog.errors import ConfigError
from tidelog.spark import option_parsers
from tidelog.spark.pipelines.file.consistency import check_parts
from tidelog.spark.pipelines.file.ddl import refuse_schema
from tidelog.spark.pipelines.file.intervals import refuse_interval
from tidelog.spark.pipelines.file.sql_names import refuse_command
from tidelog.spark.pipelines.file.toml_lines import Lines, Path, scan
from tidelog.spark.pipelines.file.toml_settings import Fault, Faults, Grammar, Key, Maker, OneOf
from tidelog.spark.pipelines.file.variables import hidden, replaced
from tidelog.spark.pipelines.input_check import UNKNOWN, VALUES, input_faults
from tidelog.spark.pipelines.restart_policy import RestartSettings
from tidelog.spark.pipelines.security import Security
from tidelog.spark.write.options import DELIVERIES

FORMATS = ("raw", "json", "cbor")
"""Encodings of the values of an output."""
AVAILABLE_NOW = "available-now"
DESTINATIONS = ("topic", "iceberg", "delta", "manifest", "parquet")
MODES = ("append", "complete")
MARKS = ("line", "bar")
PICTURES = (".svg", ".png")
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


def _refuse_trigger(text: str) -> str:
    """Return what a trigger should be, and is not; "" if it is one."""
    fault = "" if text == AVAILABLE_NOW else refuse_interval(text)
    return fault and f"{AVAILABLE_NOW}, or {fault}"


def _parsed_by(parser: Callable[[str], object]) -> Grammar:
    """Return the grammar of an option of the source that is a setting of the pipeline, too."""

    def refuse(text: str) -> str:
        try:
            parser(text)
        except ValueError as error:
            return f"{error}; not {text!r}"
        return ""

    return Grammar(refuse)


Trigger = Annotated[str, Grammar(_refuse_trigger)]
Delay = Annotated[str, Grammar(partial(refuse_interval, months=True))]
Query = Annotated[str, Grammar(refuse_command)]
Delivery = Annotated[str, OneOf(DELIVERIES)]
Topic = Annotated[str, _parsed_by(option_parsers.name_of("a topic"))]
GroupPrefix = Annotated[str, _parsed_by(option_parsers.name_of("a consumer group"))]


@dataclass(frozen=True, slots=True)
class Watermark:
    """The event-time watermark of a table, for ``withWatermark`` of Spark: a window no longer takes rows whose time
    in ``column`` is more than ``delay`` (such as ``10 minutes``) before the newest time."""

    column: str
    delay: Delay


@dataclass(frozen=True, slots=True)
class Input:
    """A table ``[in.NAME]`` of the declaration: a topic that the pipeline reads as a table."""

    name: str
    topic: Annotated[str, _parsed_by(option_parsers.topics)] = ""
    """The topic, or several with commas between them."""
    value: Annotated[str, OneOf(VALUES)] = "raw"
    """Encoding of the records' values. ``raw``: the table has the source's columns, unchanged. Otherwise it has the
    columns of the values, and those of ``ABOUT``."""
    schema: Annotated[str, Grammar(refuse_schema)] = ""
    """Columns of the values with their types, as in SQL, for ``json``, ``cbor`` and ``csv``. With ``regex`` the types
    of the groups that are not STRING. "" with the others, which say their columns themselves."""
    schema_file: str = ""
    """Path of the schema of ``avro`` (``.avsc``) or ``protobuf`` (compiled descriptors)."""
    schema_id: int | None = None
    """With ``avro``: values begin with Confluent's prefix, which has this id. None: they have no prefix."""
    message: str = ""
    """Full name of the message of ``protobuf``."""
    pattern: str = ""
    """Regular expression of ``regex``, which matches the whole line. Its named groups are the columns."""
    separator: str = ","
    quote: str = '"'
    """Character around fields of ``csv``; "": none."""
    null: str = ""
    """Text of a field of ``csv`` that is null."""
    header: bool = False
    """Whether a record of ``csv`` with the names of the columns is a header, and no row."""
    year: int | None = None
    """Year of times of ``syslog`` that have none. None: the latest year in which they are at most a day
    after the record's timestamp."""
    strict: bool = False
    """Whether values of ``json`` and ``cbor`` must have exactly the type of their column."""
    unknown: Annotated[str, OneOf(UNKNOWN)] = "drop"
    """What becomes of fields of ``json`` and ``cbor`` that are not in ``schema``: ``drop``, ``keep`` (in a column
    ``_unknown``, as JSON) or ``bad`` (the record is bad)."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Further columns, each an SQL expression over the columns before it. A row for which one fails is bad."""
    required: tuple[str, ...] = ()
    """Columns that are not null in good rows."""
    valid: str = ""
    """SQL condition that is true for good rows; "": every row."""
    bad: Topic = ""
    """Topic that gets the records of bad rows; "": the first such record ends the pipeline with an error."""
    subscribe_pattern: Annotated[str, _parsed_by(option_parsers.pattern)] = ""
    """In place of ``topic``: a regular expression. All topics whose whole name matches it are read, also those that
    are created later."""
    watermark: Watermark | None = None
    shared_by: tuple[str, ...] = ()
    """Outputs that one query writes, together with ``bad``, so that it reads the input once for all of them."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Further options of the Tidelog source, by name."""


@dataclass(frozen=True, slots=True)
class Step:
    """A table ``[table.NAME]`` of the declaration: one that the pipeline computes from other tables, by either
    ``sql`` or ``python``."""

    name: str
    sql: Query = ""
    python: str = ""
    """``file.py:function``. The pipeline calls the function with the Spark session, in which every earlier table is a
    view; the function returns a DataFrame."""
    watermark: Watermark | None = None


@dataclass(frozen=True, slots=True)
class DeclaredOutput:
    """An output ``[out.NAME]`` of the declaration: the table to write, and exactly one destination (one of
    ``DESTINATIONS``). The pipeline runs it as a streaming query with a checkpoint of its own."""

    name: str
    table: Annotated[str, Key("from")]
    """The table that is written."""
    topic: Topic = ""
    iceberg: str = ""
    """``NAMESPACE.TABLE`` in ``catalog``."""
    delta: str = ""
    """Folder of a Delta table."""
    manifest: str = ""
    """Folder of Parquet files with a manifest of those that are committed."""
    parquet: str = ""
    """Folder of Spark's own Parquet sink."""
    catalog: Mapping[str, str] = field(default_factory=dict)
    """Properties of the catalog for pyiceberg; without any, a catalog in a file below the folder ``warehouse``."""
    upsert_by: str = ""
    """Column of ``iceberg`` or ``delta`` by which rows replace earlier ones; "": rows are appended."""
    value: Annotated[str, OneOf(FORMATS)] = "json"
    """Encoding of the records of ``topic``. ``json`` or ``cbor``: a map of all columns; ``raw``: the table's columns
    are those of the sink."""
    key: str = ""
    """SQL expression for the key of the records of ``topic``; "": records without a key."""
    partition_by: tuple[str, ...] = ()
    """Columns; the rows of each of their values get a folder of their own. Not with ``topic``."""
    trigger: Trigger = ""
    """The trigger of this output; "": that of the pipeline."""
    mode: Annotated[str, OneOf(MODES)] = "append"
    """Output mode of Spark: ``append`` writes rows that do not change any more, and ``complete``, for compacted
    topics, the whole table with every micro-batch. Spark refuses ``update`` for every sink in Python."""
    delivery: Delivery = ""
    """Delivery guarantee of ``topic``; "": that of the pipeline."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Further options of the sink, by name."""
    restart: RestartSettings = field(default_factory=RestartSettings)
    """Settings of ``[restart]`` that differ for this output."""

    def destination(self) -> tuple[str, str]:
        """Return where the output goes: one of ``DESTINATIONS`` and its value, or two empty texts."""
        return next(((kind, place) for kind in DESTINATIONS if (place := getattr(self, kind))), ("", ""))


@dataclass(frozen=True, slots=True)
class SharedRead:
    """An input, and the outputs that one query writes: those of ``shared-by``, and the topic of its bad records, if
    it has one."""

    source: Input
    outputs: tuple[DeclaredOutput, ...]
    bad: DeclaredOutput | None

    @property
    def query(self) -> str:
        """Return the name of the query, of its checkpoint, and at the end of its consumer group."""
        return f"{self.source.name}-shared"

    @property
    def writes(self) -> tuple[str, ...]:
        """Return the names of all outputs; that of the bad records comes last."""
        return tuple(one.name for one in (*self.outputs, self.bad) if one is not None)


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot ``[plot.NAME]`` of the declaration: a picture that is drawn from the outputs when the pipeline has
    ended."""

    name: str
    sql: Query
    """A query over the outputs that are tables; each output is a table with its own name."""
    x: str
    y: str
    by: str = ""
    """Column of the query; each of its values gets a line of its own, or a part of each bar. "": one line."""
    mark: Annotated[str, OneOf(MARKS)] = "line"
    title: str = ""
    file: str = ""
    """Path of the picture, ``….svg`` or ``….png``; "": NAME.svg."""


def _refuse_name(text: str) -> str:
    """Return what the name of a pipeline should be, and is not; "" if it is one."""
    good = re.fullmatch(r"[A-Za-z_-][A-Za-z0-9_-]*", text)
    return "" if good else f"letters, digits, _ and -, and begins with no digit; not {text!r}"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A whole parsed declaration, as ``parse`` returns it. ``trigger`` is ``available-now`` (the pipeline ends when
    everything that is in the topics has been read), or the time between two micro-batches. ``checkpoints`` is the
    folder of the queries' checkpoints."""

    name: Annotated[str, Grammar(_refuse_name)]
    inputs: Annotated[tuple[Input, ...], Key("in")]
    outputs: Annotated[tuple[DeclaredOutput, ...], Key("out")]
    steps: Annotated[tuple[Step, ...], Key("table")] = ()
    plots: Annotated[tuple[Plot, ...], Key("plot")] = ()
    gateway: Annotated[str, _parsed_by(option_parsers.gateways)] = ""
    """One or more URLs of gateways, separated by commas; "": the gateway of the command or of its context."""
    checkpoints: str = "checkpoints"
    trigger: Trigger = AVAILABLE_NOW
    delivery: Delivery = ""
    """Delivery guarantee of output topics, unless an output has its own; "": the sink's default."""
    group_prefix: GroupPrefix = ""
    """Each query keeps its position in the consumer group of this and its name, which is that of its output,
    ``INPUT-bad`` or ``INPUT-shared``; "": the inputs' options say so, if at all."""
    spark: Mapping[str, str] = field(default_factory=dict)
    """Settings of the Spark session, by name."""
    restart: RestartSettings = field(default_factory=RestartSettings)
    """When the query of an output is started again after an error, unless the output has settings of its own."""
    security: Security = field(default_factory=Security)
    """How the pipeline identifies itself to the cluster."""

    def trigger_of(self, output: DeclaredOutput) -> str:
        """Return the trigger of an output."""
        return output.trigger or self.trigger

    def shared_reads(self) -> list[SharedRead]:
        """Return the reads of inputs that several outputs share."""
        outputs = {one.name: one for one in self.outputs}
        return [
            SharedRead(one, tuple(outputs[name] for name in one.shared_by), bad_output(one))
            for one in self.inputs
            if one.shared_by
        ]


def bad_output(declared: Input) -> DeclaredOutput | None:
    """Return the output that writes the topic of an input's bad records; None if it has no such topic."""
    if not declared.bad:
        return None
    return DeclaredOutput(f"{declared.name}-bad", declared.name, topic=declared.bad, value="raw")


@dataclass(frozen=True, slots=True)
class Reading:
    """What ``read`` finds in the text of a declaration."""

    pipeline: Pipeline
    """The declaration without what is wrong in it. If there are errors it must not run."""
    faults: tuple[Fault, ...]
    """Errors and warnings in the order of their lines."""
    lines: Lines
    """The lines of tables, keys and texts."""
    secrets: Mapping[str, str]
    """The values of the variables in the text, which must not be printed (``variables.hidden``)."""
    faulty: frozenset[Path] = frozenset()
    """The paths of the tables ``[section.NAME]`` that have errors."""

    def errors(self) -> list[Fault]:
        """Return the faults that are no warnings."""
        return [one for one in self.faults if not one.warning]


def parse(text: str, variables: Mapping[str, str] = NO_VARIABLES, file: object = "pipeline") -> Pipeline:
    """Parse the TOML text of a declaration, and return it as a ``Pipeline``. ``variables`` has the values of
    ``${NAME}``. Raises ``ConfigError`` if the text is not TOML or the declaration has errors; its message lists all
    of them, one on a line, each with the name ``file`` and its own line."""
    reading = read(text, variables)
    if errors := reading.errors():
        raise ConfigError("\n".join(fault.shown(file) for fault in errors))
    return reading.pipeline


def read(text: str, variables: Mapping[str, str] | None = NO_VARIABLES) -> Reading:
    """Read the TOML text of a declaration, and return its parts with all errors and warnings. ``variables`` has the
    values of ``${NAME}``; None: the variables stay in the texts, as for a picture of the pipeline, and what the
    parts mean for each other is not checked."""
    try:
        tree, lines = tomllib.loads(text), scan(text)
        filled, missing, used = replaced(tree, variables or NO_VARIABLES)
    except (ValueError, RecursionError) as error:  # a number may be too long, or tables too deep, even for tomllib
        return Reading(Pipeline("", (), ()), (_not_toml(error, text),), Lines(), {})
    faults = Faults(lines)
    secrets: dict[str, str] = {}
    if variables is not None:
        tree = filled
        secrets = {name: variables[name] for name in used}
        for path, fault in missing:
            faults.add(path, fault)
    pipeline = Maker(faults, CHECKS).make(Pipeline, tree, ())
    if variables is not None:
        check_parts(pipeline, tree, faults)
        _check_plots(pipeline, faults)
    shown = (Fault(one.line, hidden(one.text, secrets), one.warning) for one in faults.sorted())
    return Reading(pipeline, tuple(shown), lines, secrets, frozenset(faults.parts))


def _check_plots(pipeline: Pipeline, faults: Faults) -> None:
    """Add plots of a pipeline that has no end to ``faults``."""
    if any(pipeline.trigger_of(one) != AVAILABLE_NOW for one in pipeline.outputs):
        for plot in pipeline.plots:
            text = f"[plot.{plot.name}]: a plot is drawn at the end, so every output needs trigger available-now"
            faults.add(("plot", plot.name), text)


def _not_toml(error: Exception, text: str) -> Fault:
    """Return the fault of a text that is not TOML, with the line that ``tomllib`` names."""
    if isinstance(error, RecursionError):
        return Fault(1, "the pipeline is not TOML that can be read: its tables or arrays are too deep")
    if not isinstance(error, tomllib.TOMLDecodeError):
        return Fault(1, "the pipeline is not TOML that can be read: a number has too many digits")
    said = str(error)
    if (place := re.search(r" \(at line (\d+), column (\d+)\)", said)) is not None:
        return Fault(int(place[1]), f"the pipeline is not TOML: {said[: place.start()]}, in column {place[2]}")
    line = text.rstrip("\n").count("\n") + 1 if "at end of document" in said else 1
    return Fault(line, f"the pipeline is not TOML: {said}")


def _input(one: Input) -> list[str]:
    """Return the errors of an input whose settings do not fit together; an empty list if there are none."""
    faults = input_faults(one)
    if bool(one.topic) == bool(one.subscribe_pattern):
        faults.append("give exactly one of topic and subscribe-pattern")
    return faults


def _step(one: Step) -> list[str]:
    """Return the errors of a computed table: it needs either ``sql`` or a well-formed ``python``. An empty list if
    there are none."""
    faults = [] if bool(one.sql) != bool(one.python) else ["give either sql or python"]
    if one.python and not re.fullmatch(r"[^:]+\.py:[A-Za-z_]\w*", one.python):
        faults.append(f"python is file.py:function, not {one.python!r}")
    return faults


def _output(one: DeclaredOutput) -> list[str]:
    """Return the errors of an output, such as more than one destination; an empty list if there are none."""
    faults = []
    if sum(bool(getattr(one, kind)) for kind in DESTINATIONS) != 1:
        faults.append(f"give exactly one of {', '.join(DESTINATIONS)}")
    if one.catalog and not one.iceberg:
        faults.append("catalog goes with iceberg")
    if one.upsert_by and (one.partition_by or not (one.iceberg or one.delta)):
        faults.append("upsert-by goes with iceberg and delta, and without partition-by")
    if one.partition_by and one.topic:
        faults.append(f"partition-by goes with {', '.join(DESTINATIONS[1:])}")
    if one.delivery and not one.topic:
        faults.append("delivery goes with topic")
    if one.key and not one.topic:
        faults.append("key goes with topic")
    if not one.topic and one.mode != "append":
        faults.append(f"mode {one.mode} does not go with {one.destination()[0]}, which is only appended to")
    if one.restart.on_failure:
        faults.append("restart has no on-failure: it goes with [restart] of the pipeline")
    return faults


def _plot(one: Plot) -> list[str]:
    """Return the error of a plot whose file is of another kind than SVG or PNG; an empty list if there is none."""
    if one.file and not one.file.endswith(PICTURES):
        return [f"file ends in {' or '.join(PICTURES)}, not {one.file!r}"]
    return []


CHECKS: Mapping[type, Callable[[Any], list[str]]] = {
    Input: _input,
    Step: _step,
    DeclaredOutput: _output,
    Plot: _plot,
    RestartSettings: RestartSettings.faults,
    Security: Security.faults,
}
"""The function that returns what is wrong with a part of a declaration, by the part's class. A text that begins with
the name of a setting is reported at the line of that setting, any other at the line of the table."""
