"""Topics as tables of DuckDB, for ``tidelog sql``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click
import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from tidelog.cli.progress import Bar
from tidelog.cli.records.consume import place
from tidelog.cli.sql_bounds import Bounds
from tidelog.client.arrow_reader import layout_of
from tidelog.client.lookups import Where
from tidelog.errors import ConfigError, TidelogError
from tidelog.sync import Log

COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers", "leader_epoch", "topic")
"""The columns of a table. DuckDB reads the first one to count rows, and no body is decoded for that."""
USAGE = "topic('NAME'), topic('NAME', 'FROM') or topic('NAME', 'FROM', 'TO')"


@dataclass(frozen=True)
class Source:
    """The records that a table has: those of a topic from ``start`` up to, not including, ``end``."""

    topic: str
    start: Where = "earliest"
    end: Where = "latest"


@dataclass(frozen=True)
class Form:
    """The form in which keys and values are read: the arguments of those names of ``Log.read_arrow``."""

    values: str
    keys: str
    on_invalid: str


class TopicTable(ds.Dataset):  # type: ignore[misc]
    """A topic as a data set of pyarrow, which DuckDB reads as a table: once for each place in the query where the
    table is used, and each time only the columns that it needs."""

    def __init__(self, log: Log, source: Source, form: Form, bar: Bar) -> None:
        """``bar`` shows how many offsets of all tables were read."""
        self._log = log
        self._source = source
        self._form = form
        self._bar = bar
        self.failure: TidelogError | None = None
        """The error with which reading has failed; DuckDB keeps only its text."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of all columns. DuckDB asks for it when it prepares a query. Asks the cluster nothing."""
        form = self._form
        return layout_of(self._source.topic, COLUMNS, form.values, form.keys, None, form.on_invalid).result()

    def scanner(self, columns: list[str] | None = None, filter: ds.Expression | None = None, **_: Any) -> ds.Scanner:
        """Return a scanner over the records, with these columns (None: all), that leaves out what does not match the
        filter. Records that cannot match because of their partition, offset or time are not read. DuckDB calls this
        once for each use of the table."""
        chosen = [*COLUMNS] if columns is None else columns
        named = str(filter)
        extra = [name for name in COLUMNS if filter is not None and name not in chosen and name in named]
        reader = self._read([*chosen, *extra], filter)
        schema = pa.schema([reader.schema.field(name) for name in chosen])
        matching = self._matching(reader, filter, chosen)
        return ds.Scanner.from_batches(pa.RecordBatchReader.from_batches(schema, matching))

    def _read(self, columns: list[str], filter: ds.Expression | None) -> pa.RecordBatchReader:
        try:
            starts, ends = self._range(filter)
            self._bar.update(total=(self._bar.total or 0) + sum(max(0, ends[p] - starts[p]) for p in starts))
            form = self._form
            return self._log.read_arrow(
                self._source.topic,
                start=starts,
                end=ends,
                partitions=list(starts),
                columns=columns,
                values=form.values,
                keys=form.keys,
                on_invalid=form.on_invalid,
            )
        except TidelogError as error:
            self.failure = error
            raise

    def _range(self, filter: ds.Expression | None) -> tuple[dict[int, int], dict[int, int]]:
        """Return the offsets to start at and to stop before, by partition. Partitions without a record that can match
        the filter are missing."""
        topic = self._source.topic

        def offsets(where: Where, partitions: list[int] | None = None) -> dict[int, int]:
            return {p: at.offset for p, at in self._log.partitions.find_positions(topic, where, partitions).items()}

        starts, ends = offsets(self._source.start), offsets(self._source.end)
        if filter is None:
            return starts, ends
        bounds = Bounds(filter, self.schema)
        partitions = bounds.partitions(starts)
        (first, end), time = bounds.offsets(), bounds.start()
        later = {} if time is None else offsets(time, partitions)
        return (
            {p: max(starts[p], first, later.get(p, 0)) for p in partitions},
            {p: min(ends[p], end) for p in partitions},
        )

    def _matching(
        self, reader: pa.RecordBatchReader, filter: ds.Expression | None, columns: list[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of a reader, with only the rows that match the filter, and only these columns."""
        try:
            for batch in reader:
                self._bar.advance(batch.num_rows)
                yield (batch if filter is None else batch.filter(filter)).select(columns)
        except TidelogError as error:
            self.failure = error
            raise


def name_calls(query: str) -> tuple[str, dict[str, Source]]:
    """Find calls ``topic('NAME'[, FROM[, TO]])`` in a query. Return the query with a name of a table in place of each
    call, and the source of each table by its name. Raises ``click.BadParameter`` for a malformed call."""
    text = query.encode()
    sources: dict[str, Source] = {}
    tokens = _tokens(text)
    parts, at, index = [], 0, 0
    while index < len(tokens):
        begin, word = tokens[index]
        if word.lower() == b"topic" and index + 1 < len(tokens) and tokens[index + 1][1] == b"(":
            source, index = _call(tokens, index + 2)
            after, last = tokens[index]
            name = f"topic {len(sources) + 1}: {source.topic}"
            sources[name] = source
            parts += [text[at:begin], b'"%b"' % name.replace('"', '""').encode()]
            at = after + len(last)
        index += 1
    return b"".join([*parts, text[at:]]).decode(), sources


def topics_in(query: str, connection: duckdb.DuckDBPyConnection) -> set[str]:
    """Return the names of the tables that the statements of a query read and do not define themselves. An empty set
    if DuckDB cannot tell, as for ``PIVOT``, whose topics have to be given as ``topic('NAME')``. Raises
    ``ConfigError`` if two names differ in case only, and the errors of DuckDB for a query that is not SQL."""
    by_case: dict[str, str] = {}
    names = _tables_in(query, connection)
    for name in sorted(names):
        if by_case.setdefault(name.lower(), name) != name:
            raise ConfigError(f"SQL takes {name} for the same in any case: write topic('{name}') for that topic")
    return names


def lists_topics(statement: str) -> bool:
    """Return whether a statement is ``SHOW TABLES``, or another that lists all tables."""
    words = [word.lower() for _, word in _tokens(statement.encode()) if word != b";"]
    return words in ([b"show", b"tables"], [b"show", b"all", b"tables"], [b"describe"])


def _tables_in(query: str, connection: duckdb.DuckDBPyConnection) -> set[str]:
    """Return the names of the tables that a query reads and does not define itself. An empty set if DuckDB cannot
    tell, as for ``PIVOT``, whose topics have to be given as ``topic('NAME')``."""
    ((tree,),) = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchall()
    nodes = list(_nodes(json.loads(tree)))
    tables = {node["table_name"] for node in nodes if node.get("type") == "BASE_TABLE" or _shows_a_table(node)}
    return tables - {entry["key"] for node in nodes if "cte_map" in node for entry in node["cte_map"]["map"]}


def _shows_a_table(node: dict[str, Any]) -> bool:
    return node.get("show_type") == "SHOW" and bool(node["table_name"])


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects of a JSON document."""
    if isinstance(tree, dict):
        yield tree
    for part in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _nodes(part)


def _tokens(text: bytes) -> list[tuple[int, bytes]]:
    """Return the tokens of a query without comments: (position, bytes)."""
    found = duckdb.tokenize(text.decode())
    ends = [*(at for at, _ in found[1:]), len(text)][: len(found)]
    return [
        (at, text[at:end].rstrip())
        for (at, kind), end in zip(found, ends, strict=True)
        if kind != duckdb.token_type.comment
    ]


def _call(tokens: list[tuple[int, bytes]], index: int) -> tuple[Source, int]:
    """Parse the arguments of a call of ``topic``, from token ``index`` on. Return the source, and the index of the
    closing bracket."""
    arguments: list[str] = []
    while index + 1 < len(tokens) and tokens[index + 1][1] in (b",", b")"):
        word = tokens[index][1].decode()
        quoted = len(word) > 1 and word[0] == word[-1] == "'"
        if not quoted and not word.isdigit():
            break
        arguments.append(word[1:-1].replace("''", "'") if quoted else word)
        if tokens[index + 1][1] == b")":
            if len(arguments) > 3:
                break
            places = [place(text, "topic(…)") for text in arguments[1:]]
            return Source(arguments[0], *places), index + 1
        index += 2
    raise click.BadParameter(f"a topic is a table as {USAGE}", param_hint="topic(…)")
