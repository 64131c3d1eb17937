"""The options of the source, named as in Spark's Kafka connector. Pure: parses the texts of a read's options into a
``ReadOptions``.

Every error is reported, not only the first, each with the option's name and its valid values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidelog.spark import option_parsers as texts
from tidelog.spark.errors import SourceError
from tidelog.spark.option_parsers import AtTime, Parsers, Place

if TYPE_CHECKING:
    from tidelog.tables.tables import TableAddress

DEFAULT_GATEWAY = "ws://127.0.0.1:9292"
HISTORY = "history."
"""Options of the table that ``history`` names begin with this."""


@dataclass(frozen=True, slots=True)
class HowToConnect:
    """The options by which source and sink connect to the cluster: URLs of gateways, TLS files, and a bearer
    token."""

    gateways: tuple[str, ...] = (DEFAULT_GATEWAY,)
    ca: str = ""
    """Paths of files for URLs with ``wss:``, as in ``TlsOptions``. Every machine that may run a task needs them."""
    cert: str = ""
    key: str = ""
    token: str = field(default="", repr=False)

    def how_to_connect(self) -> dict[str, Any]:
        """Return these options as keyword arguments of ``tidelog.connect``: ``urls``, ``tls`` and ``token``."""
        from tidelog.net.tls import (
            TlsOptions,  # imported late: it loads every message, which a process that only plans does not need
        )

        return {"urls": self.gateways, "tls": TlsOptions(self.ca, self.cert, self.key), "token": self.token}

    def contradictions(self) -> list[str]:
        """Return a list of errors for connection options that contradict each other; an empty list if there are
        none."""
        return ["give both cert and key, or neither"] if bool(self.cert) != bool(self.key) else []


CONNECTION: Parsers = {
    "gateway": ("gateways", texts.gateways),
    "ca": ("ca", str),
    "cert": ("cert", str),
    "key": ("key", str),
    "token": ("token", str),
}


@dataclass(frozen=True, slots=True)
class ReadOptions(HowToConnect):
    """The checked options of a batch read or a stream. ``parse`` makes one on the driver, and Spark ships it to every
    task."""

    subscribe: tuple[str, ...] = ()
    """Topics of which all partitions are read; or"""
    subscribe_pattern: str = ""
    """a regular expression that the names of topics match as a whole; or"""
    assign: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """topics, and the partitions to read of each. Exactly one of the three is set."""
    starting_offsets: Place = "earliest"
    ending_offsets: Place = "latest"
    beyond_time: str = "error"
    """What a starting time after the last record of a partition means: ``error`` refuses it, ``latest`` begins at the
    end."""
    min_partitions: int = 0
    """Least number of Spark tasks: ranges are cut until there are about this many; 0: one task for each partition."""
    max_per_partition: int = 0
    """Most offsets that one Spark task reads; 0: no bound."""
    fail_on_data_loss: bool = True
    on_unreadable: str = "raise"
    """What to do with a batch that cannot be decoded: ``raise``, or ``skip`` it with a warning."""
    history: TableAddress | None = None
    """The table that has the beginning of the topics; None: everything is read from the log."""
    history_app: str = ""
    """The application that has written the table; "": its only one."""
    include_headers: bool = False
    filter_pushdown: bool = False
    fetch_max_bytes: int = 4 << 20
    """Number of bytes that a task reads ahead."""
    max_offsets: int = 0
    """Most offsets of one micro-batch; 0: no bound."""
    min_offsets: int = 0
    """A micro-batch waits until this many records are available; 0: it does not wait."""
    max_delay_ms: int = 900_000
    """Most milliseconds that a micro-batch waits for ``min_offsets``, counted from the planning of the batch
    before."""
    group: str = ""
    """The consumer group in which a stream commits its positions; "": it commits none."""

    def topics(self) -> tuple[str, ...]:
        """Return the names of the topics that ``subscribe`` or ``assign`` selects; an empty tuple with
        ``subscribePattern``."""
        return self.subscribe or tuple(topic for topic, _ in self.assign)


_EITHER: Parsers = {
    "subscribe": ("subscribe", texts.topics),
    "subscribePattern": ("subscribe_pattern", texts.pattern),
    "assign": ("assign", texts.assign),
    "startingTimestamp": ("starting_timestamp", texts.time),
    "startingOffsetsByTimestamp": ("starting_times", texts.times),
    "startingOffsetsByTimestampStrategy": ("beyond_time", texts.one_of("error", "latest")),
    "minPartitions": ("min_partitions", texts.count(1)),
    "maxRecordsPerPartition": ("max_per_partition", texts.count(1)),
    "failOnDataLoss": ("fail_on_data_loss", texts.flag),
    "onUnreadable": ("on_unreadable", texts.one_of("raise", "skip")),
    "includeHeaders": ("include_headers", texts.flag),
    "fetchMaxBytes": ("fetch_max_bytes", texts.size_bytes(64 << 10)),
    "history": ("history", texts.history),
}
BATCH: Parsers = {
    **CONNECTION,
    **_EITHER,
    "startingOffsets": ("starting_offsets", texts.offsets(("earliest",))),
    "endingOffsets": ("ending_offsets", texts.offsets(("latest",))),
    "endingTimestamp": ("ending_timestamp", texts.time),
    "endingOffsetsByTimestamp": ("ending_times", texts.times),
    "filterPushdown": ("filter_pushdown", texts.flag),
}
STREAM: Parsers = {
    **CONNECTION,
    **_EITHER,
    "startingOffsets": ("starting_offsets", texts.offsets(("earliest", "latest"))),
    "maxOffsetsPerTrigger": ("max_offsets", texts.count(1)),
    "minOffsetsPerTrigger": ("min_offsets", texts.count(1)),
    "maxTriggerDelay": ("max_delay_ms", texts.duration_ms),
    "groupId": ("group", texts.name_of("a consumer group")),
}
_STARTS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_ENDS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_WHICH = ("subscribe", "subscribePattern", "assign")


def parse(options: Mapping[str, str], *, streaming: bool = False) -> ReadOptions:
    """Parse the options of a batch read, or of a stream if ``streaming``, and return them as ``ReadOptions``. Raises
    ``SourceError`` (``TIDELOG_OPTION``), whose text lists every unknown, misplaced, malformed or contradictory
    option."""
    parsers, other = (STREAM, BATCH) if streaming else (BATCH, STREAM)
    what, whose = ("a stream", "batch reads") if streaming else ("a read", "streams")
    misplaced = [name for name in texts.given_of(options, tuple(other)) if name not in parsers]
    known = {
        name: text
        for name, text in options.items()
        if name.lower() not in {n.lower() for n in misplaced} and not name.lower().startswith(HISTORY)
    }
    values, faults = texts.collect(known, parsers, what)
    faults += _with_history(options, values)
    faults += [f"{name} belongs to {whose}; {what} takes {', '.join(parsers)}" for name in misplaced]
    chosen = texts.given_of(options, _WHICH)
    if len(chosen) != 1:
        faults.append(f"give exactly one of {_either(_WHICH)}, not {' and '.join(chosen) or 'none of them'}")
    for names in (_STARTS, _ENDS):
        if len(several := texts.given_of(options, names)) > 1:
            faults.append(f"give at most one of {_either(names)}, not {' and '.join(several)}")
    if texts.given_of(options, ("maxTriggerDelay",)) and not texts.given_of(options, ("minOffsetsPerTrigger",)):
        faults.append("maxTriggerDelay bounds what minOffsetsPerTrigger waits for: give both, or neither")
    from_end = streaming and "history" not in values
    values.setdefault("starting_offsets", "latest" if from_end else "earliest")
    for side in ("starting", "ending"):
        for kind in ("timestamp", "times"):
            if (at := values.pop(f"{side}_{kind}", None)) is not None:
                values[f"{side}_offsets"] = at
    if not faults:
        result = ReadOptions(**values)
        faults = _contradictions(result)
    if faults:
        raise SourceError("TIDELOG_OPTION", "; ".join(faults))
    return result


def _with_history(options: Mapping[str, str], values: dict[str, Any]) -> list[str]:
    """Put the table of ``history``, and what belongs to it, into ``values``. Return the errors of these options."""
    given = {name[len(HISTORY) :]: text for name, text in options.items() if name.lower().startswith(HISTORY)}
    parts: dict[str, dict[str, str]] = {"catalog.": {}, "s3.": {}}
    faults = []
    for name, text in given.items():
        prefix = next((one for one in parts if name.lower().startswith(one)), None)
        if prefix is not None:
            parts[prefix][name[len(prefix) :]] = text
        elif name.lower() == "appid":
            values["history_app"] = text
        else:
            faults.append(f"there is no option {HISTORY}{name}; history takes history.appId, .catalog.… and .s3.…")
    found = values.pop("history", None)
    if found is not None:
        from tidelog.tables.tables import TableAddress

        storage = {f"s3.{name}": text for name, text in parts["s3."].items()}
        values["history"] = TableAddress(found[0], found[1], parts["catalog."], storage)
    elif given and not texts.given_of(options, ("history",)):
        faults.append(f"{', '.join(HISTORY + name for name in given)}: there is no history")
    return faults


def _either(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _contradictions(options: ReadOptions) -> list[str]:
    """Return the errors of options that are each valid but do not fit together; an empty list if there are none."""
    faults = options.contradictions()
    topics = set(options.topics())
    for name, place in (("starting offsets", options.starting_offsets), ("ending offsets", options.ending_offsets)):
        offsets = place.ms if isinstance(place, AtTime) else place
        if isinstance(offsets, dict) and set(offsets) != topics and topics:
            named = ", ".join(sorted(offsets)) or "none"
            faults.append(f"{name} name topics {named}, but {', '.join(sorted(topics))} are read")
    if options.history is not None:
        if isinstance(options.starting_offsets, AtTime) or isinstance(options.ending_offsets, AtTime):
            faults.append("history takes offsets, not times: the log alone is asked for times")
        if options.filter_pushdown:
            faults.append("filterPushdown and history do not go together")
    if options.max_offsets and options.min_offsets > options.max_offsets:
        faults.append(
            f"minOffsetsPerTrigger, {options.min_offsets}, is above maxOffsetsPerTrigger, {options.max_offsets}"
        )
    return faults
