"""Writes the pages of ``docs/``, and other files, that are generated from the code: ``python deploy/generate``
(``make pages``)."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

from tidelog.errors import CODES
from tidelog.quantities import in_words, unit_of
from tidelog.runtime.config import settings_of
from tidelog.runtime.log_events import ANY, BY_SERVICE
from tidelog.runtime.metrics import COMMON
from tidelog.types import TopicConfig
from tidelog.wire.bounds import BOUNDS, most_parts
from tidelog.wire.codec import OPS, SERVICE, STRANGER
from tidelog_controller import server as controller_server
from tidelog_controller.config import ControllerConfig
from tidelog_controller.metadata.rules.topics import CHOICES, FIXED, RANGES
from tidelog_controller.observability import metrics as controller_metrics
from tidelog_gateway import server as gateway_server
from tidelog_gateway.config import GatewayConfig
from tidelog_gateway.observability import metrics as gateway_metrics
from tidelog_replica import server as replica_server
from tidelog_replica.config import ReplicaConfig
from tidelog_replica.observability import metrics as replica_metrics

DOCS = Path(__file__).resolve().parents[2] / "docs"
API = runpy.run_path(str(Path(__file__).resolve().parent / "api_reference.py"))
"""The program that writes the reference of the Python API."""
COMMANDS = runpy.run_path(str(Path(__file__).resolve().parent / "cli_reference.py"))
"""The program that writes the reference of the command line."""
INVARIANTS = runpy.run_path(str(Path(__file__).resolve().parent / "invariants.py"))
"""The program that writes the index of invariants and rules."""
STUBS = runpy.run_path(str(Path(__file__).resolve().parent / "stubs.py"))
"""The program that writes the stubs of the blocking client, for type checkers."""
ADVICE = runpy.run_path(str(Path(__file__).resolve().parent / "error_advice.py"))["ADVICE"]
ALERTS = runpy.run_path(str(Path(__file__).resolve().parent / "alerts.py"))
BOARD = runpy.run_path(str(Path(__file__).resolve().parent / "grafana_board.py"))
"""The programs that write the alerts of Prometheus and the board of Grafana."""
MESSAGES = runpy.run_path(str(Path(__file__).resolve().parent / "js_messages.py"))
"""The program that writes the messages that the JavaScript client reads."""
BOUNDS_BEGIN, BOUNDS_END = "<!-- generated: bounds of requests -->", "<!-- end of what is generated -->"
LINES_BEGIN, LINES_END = "<!-- generated: lines of the logs -->", "<!-- end of what is generated -->"
METRICS_HEAD = Path(__file__).resolve().parent / "metrics.md"
SERVICES = (("Controller", ControllerConfig), ("Replica server", ReplicaConfig), ("Gateway", GatewayConfig))

DEFAULTS = TopicConfig().texts()
TOPICS = (
    "Given when a topic is created: `--config KEY=VALUE`, such as `retention_ms=7d`. All but "
    f"{' and '.join(f'`{name}`' for name in FIXED)} can be changed later: `tidelog topics configure TOPIC KEY=VALUE`."
)
TOPIC_SETTINGS = {
    name: (" or ".join(CHOICES[name]) if name in CHOICES else " … ".join(map(str, RANGES[name])), help)
    for name, help in {
        "commit_rule": "What is committed: `isr`: durable on every in-sync replica; `quorum`: durable on a majority "
        "of the replicas; `leader`: durable on the leader, copies follow (a failover may lose records).",
        "unclean_election": "`true`: where no replica is left that holds everything committed, another one may lead; "
        "records may be lost.",
        "min_insync_replicas": "An `all` produce is refused, and nothing commits, while fewer replicas are in sync.",
        "flush": "`fsync`: durable before it counts; `interval`: at intervals; `os`: when the system likes.",
        "flush_interval_ms": "The interval of `flush=interval`.",
        "segment_max_bytes": "A segment file is closed at this size.",
        "segment_max_age_ms": "And when its first record is this old.",
        "max_batch_bytes": "A larger batch is refused.",
        "replica_max_lag_ms": "A follower that was not caught up for this long leaves the in-sync set.",
        "replica_max_lag_records": "And one that is further behind, though it could have fetched; 0: not judged.",
        "cleanup": "`delete`: retention; `compact`: the last record of each key stays, and all records without one.",
        "retention_ms": "Closed segments whose newest record is older are deleted; -1: never.",
        "retention_bytes": "The oldest closed segments are deleted while the rest holds this much; -1: no bound.",
        "retention_records": "The same in records.",
        "compaction_min_lag_ms": "Records younger than this are not compacted.",
        "max_compaction_lag_ms": "A record is compacted away at most this long after a later record of its key was "
        "appended, plus two retention checks and the time of the pass (since feature level 4). 0: no bound.",
        "tombstone_retention_ms": "A record without a value goes this long after it was first compacted.",
        "validate_batches": "The gateway refuses a batch that readers could not decode. `false` (since feature level "
        "4): producers are trusted, and the gateway reads headers alone.",
    }.items()
}


def configuration() -> str:
    """Return the page with every setting of every service and of topics."""
    lines = [
        "# Configuration",
        "",
        "Generated from the code by `make pages`. A setting is read from TOML (`--config FILE`), the environment and "
        "flags; later ones win. A name with a dot is a table in TOML.",
        "",
        "A number without a unit counts what the name of the setting says: milliseconds (`_ms`), seconds (`_s`), "
        'bytes (`_bytes`). A text may have a unit, in TOML too: `retention_ms = "7d"`, `tail_cache_bytes = '
        '"64MiB"` ([all units](cli.md#durations-sizes-and-counts)).',
    ]
    for title, config in SERVICES:
        lines += ["", f"## {title}", "", "| setting | environment | kind | default | range | meaning |"]
        lines += ["|---|---|---|---|---|---|"]
        for s in settings_of(config):
            bounds = f"{_number(s.minimum)} … {_number(s.maximum)}" if s.minimum is not None else ""
            default = "required" if s.required else f"`{s.default}`"
            if type(s.default) in (int, float) and (words := in_words(s.default, s.unit)):
                default += f" ({words})"
            lines.append(f"| `{s.name}` | `{s.variable}` | {s.kind} | {default} | {bounds} | {s.help} |")
    lines += ["", "## Topics", "", TOPICS, ""]
    lines += ["| setting | default | range | meaning |", "|---|---|---|---|"]
    for name, (bounds, help) in TOPIC_SETTINGS.items():
        least = "2 with 3 replicas or more, else 1; 1 with commit_rule=leader"
        default = least if name == "min_insync_replicas" else DEFAULTS[name]
        if name in RANGES and (words := in_words(int(DEFAULTS[name]), unit_of(name))):
            default += f" ({words})"
        lines.append(f"| `{name}` | {default} | {bounds} | {help} |")
    return "\n".join(lines) + "\n"


def errors() -> str:
    """Return the page with the table of errors. Fails if an error has no advice."""
    lines = [
        "# Errors",
        "",
        "Generated from the code by `make pages`. *Retriable*: the same request may succeed later. *Refresh*: the "
        "sender's picture of the cluster is out of date, ask for metadata. An error whose `unknown_outcome` is set "
        "may have changed something all the same; without it nothing was changed. *Unknown*: errors of that code "
        "always have `unknown_outcome`. *What to do* is for operators.",
        "",
        "| code | meaning | retriable | refresh | unknown | what to do |",
        "|---|---|---|---|---|---|",
    ]
    assert CODES.keys() <= ADVICE.keys(), f"error_advice.py has no advice for {CODES.keys() - ADVICE.keys()}"
    for code, meaning in CODES.items():
        flags = (meaning.retriable, meaning.refresh_metadata, meaning.unknown_outcome)
        marks = " | ".join("yes" if flag else "" for flag in flags)
        lines.append(f"| `{code}` | {meaning.text} | {marks} | {ADVICE[code]} |")
    return "\n".join(lines) + "\n"


def codes_module() -> str:
    """Return the JavaScript module with the table of errors."""
    lines = [
        "/** Every error code and its meaning. Generated from the code by `make pages`. */",
        "export const CODES = {",
    ]
    for code, meaning in CODES.items():
        flags = f"retriable: {_js(meaning.retriable)}, refreshMetadata: {_js(meaning.refresh_metadata)}"
        flags += ", unknownOutcome: true" if meaning.unknown_outcome else ""
        lines.append(f"  {code}: {{ text: {json.dumps(meaning.text)}, {flags} }},")
    return "\n".join([*lines, "};", ""])


def metrics() -> str:
    """Return the page with every metric of every service."""
    lines = [METRICS_HEAD.read_text().rstrip()]
    for title, table in METRICS:
        lines += ["", f"## {title}", "", "| metric | kind | labels | unit | meaning |", "|---|---|---|---|---|"]
        for m in table:
            lines.append(f"| `{m.sample}` | {m.kind} | {', '.join(m.labels)} | {m.unit} | {m.help} |")
    return "\n".join(lines) + "\n"


def operations() -> str:
    """Return ``operations.md`` with its generated part, the tables of log events, renewed."""
    text = (DOCS / "operations.md").read_text()
    begin, end = text.index(LINES_BEGIN) + len(LINES_BEGIN), text.index(LINES_END)
    lines = [""]
    titles = {"controller": "Controllers", "replica": "Replica servers", "gateway": "Gateways"}
    tables = {titles[service]: table for service, table in BY_SERVICE.items()} | {"Every service": ANY}
    for title, table in tables.items():
        lines += ["", f"### {title}", "", "| event | level | meaning | what to do |", "|---|---|---|---|"]
        lines += [f"| `{one.name}` | {one.level} | {one.meaning} | {one.todo} |" for one in table]
    return text[:begin] + "\n".join([*lines, "", ""]) + text[end:]


def security() -> str:
    """Return ``security.md`` with its generated part, the bounds of each request, renewed."""
    text = (DOCS / "security.md").read_text()
    begin, end = text.index(BOUNDS_BEGIN) + len(BOUNDS_BEGIN), text.index(BOUNDS_END)
    lines = ["", "", "| op | from | parts at most | work follows from | memory |", "|---|---|---|---|---|"]
    for bound in BOUNDS:
        senders = {sender for op in bound.ops for sender in _senders(op)}
        limits = SERVICE if senders - {"client"} else STRANGER
        most = max(most_parts(OPS[op], STRANGER if "client" in _senders(op) else limits) for op in bound.ops)
        ops = ", ".join(f"`{op}`" for op in bound.ops)
        parts = f"{most:,}" if most else ""
        lines.append(f"| {ops} | {', '.join(sorted(senders))} | {parts} | {bound.work} | {bound.memory} |")
    return text[:begin] + "\n".join([*lines, "", ""]) + text[end:]


def _senders(op: str) -> set[str]:
    ports = (controller_server.ALLOWED, replica_server.ALLOWED, {"client": gateway_server.CLIENT_OPS})
    return {role for port in ports for role, ops in port.items() if op in ops}


METRICS = (
    ("Controller", controller_metrics.METRICS),
    ("Replica server", replica_metrics.METRICS),
    ("Gateway", gateway_metrics.METRICS),
    ("Every service", COMMON),
)
PAGES = {
    "api.md": API["page"],
    "cli.md": COMMANDS["page"],
    "configuration.md": configuration,
    "errors.md": errors,
    "invariants.md": INVARIANTS["page"],
    "metrics.md": metrics,
    "operations.md": operations,
    "security.md": security,
    "../shared/js/src/wire/error-codes.js": codes_module,
    "../shared/js/src/wire/messages.js": MESSAGES["page"],
    "../shared/tidelog/sync/faces.pyi": STUBS["stub"],
    "../deploy/prometheus/alerts.yml": ALERTS["page"],
    "../deploy/grafana/tidelog.json": BOARD["page"],
}


def _js(flag: bool) -> str:
    return str(flag).lower()


def _number(value: float | None) -> str:
    return "" if value is None else str(int(value)) if value == int(value) else str(value)


if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page())
