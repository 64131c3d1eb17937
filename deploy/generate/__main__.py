"""Writes the pages of ``docs/``, and other files, that are generated from the code: ``python deploy/generate``
(``make pages``)."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Iterable
from pathlib import Path

from tidelog.acl import OPERATIONS
from tidelog.errors import CODES
from tidelog.quantities import MILLISECONDS, in_words, unit_of
from tidelog.runtime.config import settings_of
from tidelog.runtime.log_events import ANY, BY_SERVICE, PIPELINE
from tidelog.runtime.metrics import COMMON
from tidelog.spark.pipelines.status import status_pages
from tidelog.types import TopicConfig
from tidelog.wire.bounds import BOUNDS, most_parts
from tidelog.wire.codec import OPS, SERVICE, STRANGER
from tidelog.wire.operation_errors import DETAILS, ERRORS, REACTIONS, reaction
from tidelog_controller import server as controller_server
from tidelog_controller.config import ControllerConfig
from tidelog_controller.metadata.rules.topics import CHOICES, FIXED, GROUPS_SETTING, MAX_AWAITED, RANGES
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
CONSOLE_ALERTS = runpy.run_path(str(Path(__file__).resolve().parent / "console_alerts.py"))
"""The program that writes the alerts that the console looks for."""
INCIDENTS = runpy.run_path(str(Path(__file__).resolve().parent / "incidents_page.py"))
"""The program that writes the page of planted incidents."""
INVARIANTS = runpy.run_path(str(Path(__file__).resolve().parent / "invariants.py"))
"""The program that writes the index of invariants and rules."""
STUBS = runpy.run_path(str(Path(__file__).resolve().parent / "stubs.py"))
"""The program that writes the stubs of the blocking client, for type checkers."""
ADVICE = runpy.run_path(str(Path(__file__).resolve().parent / "error_advice.py"))["ADVICE"]
ALERTS = runpy.run_path(str(Path(__file__).resolve().parent / "alerts.py"))
BOARD = runpy.run_path(str(Path(__file__).resolve().parent / "grafana_board.py"))
"""The programs that write the alerts of Prometheus and the board of Grafana."""
REFERENCE = runpy.run_path(str(Path(__file__).resolve().parent / "message_reference.py"))
"""The program that writes the reference of the messages of clients."""
MESSAGES = runpy.run_path(str(Path(__file__).resolve().parent / "js_messages.py"))
"""The program that writes the messages that the JavaScript client reads."""
PIPELINE_SCHEMA = runpy.run_path(str(Path(__file__).resolve().parent / "pipeline_schema.py"))
"""The program that writes the JSON schema of the files of pipelines."""
VECTORS = runpy.run_path(str(Path(__file__).resolve().parent / "vectors.py"))["FILES"]
"""The files of ``docs/vectors`` by name, each with the function that returns its text."""
BOUNDS_BEGIN, BOUNDS_END = "<!-- generated: bounds of requests -->", "<!-- end of what is generated -->"
LINES_BEGIN, LINES_END = "<!-- generated: lines of the logs -->", "<!-- end of what is generated -->"
METRICS_HEAD = Path(__file__).resolve().parent / "metrics.md"
SERVICES = (("Controller", ControllerConfig), ("Replica server", ReplicaConfig), ("Gateway", GatewayConfig))

DEFAULTS = TopicConfig().texts()
TOPICS = (
    "Given when a topic is created: `--config KEY=VALUE`, such as `retention_ms=7d`. All but "
    f"{' and '.join(f'`{name}`' for name in FIXED)} can be changed later: `tidelog topics configure TOPIC KEY=VALUE`."
)
TOPIC_TEXTS = (
    "In the protocol (`config` of `create_topic` and `alter_topic`) every value is a text: a word, `true` or "
    "`false`, or a whole number. In requests the number may have a unit, in upper or lower case, behind a space or "
    "not; answers have plain numbers. "
    f"*ms*: {', '.join(f'`{unit}`' for unit in MILLISECONDS.factors)} (`m` is minutes). "
    "*bytes*: `B`; `KiB` to `PiB`, or `K` to `P` (powers of 1,024); `kB` to `PB` (powers of 1,000). "
    "*count*: `k`, `M`, `G` (powers of 1,000). "
    "So `7d`, `1.5h`, `64MiB` and `10k` are taken, if they are whole in the setting's own unit."
)
"""How the settings of topics are written."""
TOPIC_RULES = (
    "A setting that is not in this table, and a value that is out of range, is refused with `INVALID_CONFIG`. So is "
    "`commit_rule=quorum` without `flush=fsync`, a `min_insync_replicas` above the replication factor, and a "
    "`max_compaction_lag_ms` that is above 0 and below `compaction_min_lag_ms`."
)
"""What is refused."""
CLIENT_ERRORS = """
## What an operation may return

Every operation but `hello` and `produce` may return OF_ANY; they are left out of the table.
A code that a client does not know is not retriable. The errors of `produce` stand in its acks, those of `subscribe`
in its answer or in the last delivery. `credit` has no answer.

| operation | codes |
|---|---|"""
CLIENT_DETAILS = """
After an error with `unknown_outcome` a client repeats the request only if it
[may be repeated](protocol.md#repeating-a-request). Otherwise the reaction is `look`.

## What `detail` holds

All values are texts, numbers in decimal digits. Any key may be absent. These are the keys that
gateways send, where nothing else is said. Client libraries give numbers to the program as integers.
To every error that ends the reading of a partition, such as `OFFSET_OUT_OF_RANGE`, `LOG_TRUNCATED`
and `CORRUPT_BATCH`, they add three keys: `topic`, `partition`, and `offset`, the position at which
they read (of `CORRUPT_BATCH` the first offset of the batch).
"""
"""The words around the tables of errors for authors of clients."""


def _accepted(setting: str) -> str:
    """Return the values that a setting of a topic may have, in words."""
    if setting == GROUPS_SETTING:
        return f"at most {MAX_AWAITED} names, commas between"
    return " or ".join(CHOICES[setting]) if setting in CHOICES else " … ".join(map(str, RANGES[setting]))


TOPIC_SETTINGS = {
    name: (_accepted(name), help)
    for name, help in {
        "commit_rule": "What is committed: `isr`: durable on every in-sync replica; `quorum`: durable on a majority "
        "of the replicas; `leader`: durable on the leader, copies follow (a failover may lose records).",
        "unclean_election": "`true`: where no replica is left that holds everything committed, another one may lead; "
        "records may be lost.",
        "min_insync_replicas": "A produce with acks `all` is refused, and nothing commits, while fewer replicas are "
        "in sync.",
        "flush": "`fsync`: durable before it counts; `interval`: at intervals; `os`: when the system likes.",
        "flush_interval_ms": "The time between two fsyncs with `flush=interval`.",
        "segment_max_bytes": "A segment file is closed at this size.",
        "segment_max_age_ms": "A segment file is closed when its first record is this old.",
        "max_batch_bytes": "A larger batch is refused.",
        "replica_max_lag_ms": "A follower that was not caught up for this long leaves the in-sync set.",
        "replica_max_lag_records": "A follower that is further behind, though it could have fetched, leaves the "
        "in-sync set; 0: not judged.",
        "cleanup": "`delete`: retention; `compact`: the last record of each key stays, and all records without one.",
        "retention_ms": "Closed segments whose newest record is older are deleted; -1: never.",
        "retention_bytes": "The oldest closed segments are deleted while the rest holds this much; -1: no bound.",
        "retention_records": "The oldest closed segments are deleted while the rest holds this many records; -1: no "
        "bound.",
        "retention_waits_for": "Consumer groups (since feature level 7): retention deletes no segment with records "
        "that one of them has not read. Empty: retention waits for nobody.",
        "retention_waits_max_ms": "The bound of that wait in time: it ends when a segment was last written this "
        "long, plus `retention_ms`, ago (since feature level 7). 0: no bound.",
        "retention_waits_max_bytes": "The bound of that wait in bytes of a partition that are kept only for it "
        "(since feature level 7). 0: no bound.",
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
    lines += ["", "## Topics", "", TOPICS, "", TOPIC_TEXTS, ""]
    lines += ["| setting | type | default | range | meaning |", "|---|---|---|---|---|"]
    for name, (bounds, help) in TOPIC_SETTINGS.items():
        least = "2 with 3 replicas or more, else 1; 1 with commit_rule=leader"
        default = least if name == "min_insync_replicas" else DEFAULTS[name] or "empty"
        if name in RANGES and (words := in_words(int(DEFAULTS[name]), unit_of(name))):
            default += f" ({words})"
        lines.append(f"| `{name}` | {_type_of(name)} | {default} | {bounds} | {help} |")
    lines += ["", TOPIC_RULES]
    return "\n".join(lines) + "\n"


def _type_of(setting: str) -> str:
    """Return what the text of a topic's setting is: names, a word, true or false, or a number and what it counts."""
    if setting == GROUPS_SETTING:
        return "names"
    if setting not in CHOICES:
        return {"milliseconds": "ms", "bytes": "bytes"}.get(unit_of(setting).noun, "count")
    return "true or false" if set(CHOICES[setting]) == {"true", "false"} else "word"


def errors() -> str:
    """Return the page with the table of errors. Fails if an error has no advice."""
    lines = [
        "# Errors",
        "",
        "Generated from the code by `make pages`. *Retriable*: the same request may succeed later. *Refresh*: the "
        "sender's picture of the cluster is out of date, ask for metadata. An error whose `unknown_outcome` is set "
        "may have changed something all the same; without it nothing was changed. *Unknown*: errors of that code "
        "always have `unknown_outcome`. *What to do* is for operators; what a client library does is in the [tables "
        "below](#what-an-operation-may-return), and all of it in [errors.json](errors.json) for programs.",
        "",
        "| code | meaning | retriable | refresh | unknown | what to do |",
        "|---|---|---|---|---|---|",
    ]
    assert CODES.keys() <= ADVICE.keys(), f"error_advice.py has no advice for {CODES.keys() - ADVICE.keys()}"
    for code, meaning in CODES.items():
        flags = (meaning.retriable, meaning.refresh_metadata, meaning.unknown_outcome)
        marks = " | ".join("yes" if flag else "" for flag in flags)
        lines.append(f"| `{code}` | {meaning.text} | {marks} | {ADVICE[code]} |")
    return "\n".join([*lines, *_errors_for_clients()]) + "\n"


def _errors_for_clients() -> list[str]:
    """Return the tables for authors of clients: the codes of each operation, what a client does, and the details."""
    of_any = frozenset.intersection(*(codes for op, codes in ERRORS.items() if op not in ("hello", "produce")))
    lines = [CLIENT_ERRORS.replace("OF_ANY", _codes(of_any))]
    for op, codes in ERRORS.items():
        shown = codes if op in ("hello", "produce") else codes - of_any
        lines.append(f"| `{op}` | {_codes(shown)} |")
    lines += ["", "## What a client does", "", "| reaction | what the client does | after |", "|---|---|---|"]
    for word, text in REACTIONS.items():
        lines.append(f"| `{word}` | {text} | {_after(word)} |")
    lines.append(CLIENT_DETAILS)
    lines += ["| code | key | meaning |", "|---|---|---|"]
    for code, keys in DETAILS.items():
        lines += [f"| `{code}` | `{key}` | {meaning} |" for key, meaning in keys.items()]
    return lines


def _codes(codes: Iterable[str]) -> str:
    """Return error codes as a text, in the order of their table."""
    return ", ".join(f"`{code}`" for code in CODES if code in codes) or "no others"


def _after(word: str) -> str:
    """Return the errors after which a client reacts by ``word``: codes, with the operation where others differ."""
    by_code: dict[str, list[str]] = {}
    for op, codes in ERRORS.items():
        for code in codes:
            if reaction(op, code) == word:
                by_code.setdefault(code, []).append(op)
    named = []
    for code in filter(by_code.__contains__, CODES):
        everywhere = all(op in by_code[code] for op, codes in ERRORS.items() if code in codes)
        only_one = len(by_code[code]) == 1 and not everywhere
        named.append(f"`{code}`" + (f" to `{by_code[code][0]}`" if only_one else ""))
    return ", ".join(named)


def errors_json() -> str:
    """Return the tables of errors for programs: codes, reactions, and the errors of each operation."""
    codes = {
        code: {
            "meaning": meaning.text,
            "retriable": meaning.retriable,
            "refresh_metadata": meaning.refresh_metadata,
            "unknown_outcome": meaning.unknown_outcome,
            "detail": DETAILS.get(code, {}),
        }
        for code, meaning in CODES.items()
    }
    operations = {op: {code: reaction(op, code) for code in CODES if code in codes} for op, codes in ERRORS.items()}
    tables = {"codes": codes, "reactions": REACTIONS, "operations": operations}
    return json.dumps(tables, indent=1, ensure_ascii=False) + "\n"


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


def topic_settings_module() -> str:
    """Return the module with the settings of topics, for the forms of the console."""
    lines = [
        "/**",
        " * The settings of a topic, for forms: `help`; `choices`, or `names`: what it names, or a number's `least`,",
        " * `most` and `noun` (what it counts, such as milliseconds; it may be given with a unit); `text`: the",
        " * default; `fixed`: chosen when the topic is created. Generated from the code by `make pages`.",
        " */",
        "export const TOPIC_SETTINGS = [",
    ]
    for name, (_, help) in TOPIC_SETTINGS.items():
        setting: dict[str, object] = {"name": name, "help": help.replace("`", "")}
        if name in CHOICES:
            setting["choices"] = CHOICES[name]
        elif name == GROUPS_SETTING:
            setting["names"] = "groups"
        else:
            least, most = RANGES[name]
            setting |= {"least": least, "most": most, "noun": unit_of(name).noun}
        setting |= {"text": "" if name == "min_insync_replicas" else DEFAULTS[name], "fixed": name in FIXED}
        lines.append(f"  {json.dumps(setting)},")
    return "\n".join([*lines, "];", ""])


def advice_module() -> str:
    """Return the module with the advice about each error, for the forms of the console. Links to pages become the
    names of the pages."""
    lines = ["/** What to do about each error, for operators. Generated from the code by `make pages`. */"]
    lines += ["export const ADVICE = {"]
    for code in CODES:
        linked = re.sub(r"\[more\]\(([^)#]*)[^)]*\)", r"docs/\1", ADVICE[code])
        named = re.sub(r"\[([^]]*)\]\(([^)#]*)[^)]*\)", r"\1 (docs/\2)", linked).replace("`", "")
        lines.append(f"  {code}: {json.dumps(named)},")
    return "\n".join([*lines, "};", ""])


def operations_module() -> str:
    """Return the module with the operations that rules are about, for the console."""
    lines = ["/** The operations on each kind of resource. Generated from the code by `make pages`. */"]
    lines += ["export const OPERATIONS = {"]
    lines += [f"  {kind}: {json.dumps(operations)}," for kind, operations in OPERATIONS.items()]
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
    tables = {titles[service]: table for service, table in BY_SERVICE.items()}
    tables |= {"Every service": ANY, "Pipelines of Spark": PIPELINE}
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
    ("Pipeline of Spark", status_pages.METRICS),
)
PAGES = {
    "api.md": API["page"],
    "cli.md": COMMANDS["page"],
    "configuration.md": configuration,
    "errors.json": errors_json,
    "errors.md": errors,
    "incidents.md": INCIDENTS["page"],
    "invariants.md": INVARIANTS["page"],
    "messages.md": REFERENCE["page"],
    "metrics.md": metrics,
    "operations.md": operations,
    "pipeline.schema.json": PIPELINE_SCHEMA["page"],
    "security.md": security,
    "../shared/js/src/wire/error-codes.js": codes_module,
    "../shared/js/src/wire/messages.js": MESSAGES["page"],
    "../services/gateway/tidelog_gateway/console/static/cluster/topic-settings.js": topic_settings_module,
    "../services/gateway/tidelog_gateway/console/static/cluster/operations.js": operations_module,
    "../services/gateway/tidelog_gateway/console/static/page/error-advice.js": advice_module,
    "../services/gateway/tidelog_gateway/console/static/cluster/alert-rules.js": CONSOLE_ALERTS["page"],
    "../shared/tidelog/sync/faces.pyi": STUBS["stub"],
    "../deploy/prometheus/alerts.yml": ALERTS["page"],
    "../deploy/grafana/tidelog.json": BOARD["page"],
    **{f"vectors/{name}": text for name, text in VECTORS.items()},
}


def _js(flag: bool) -> str:
    return str(flag).lower()


def _number(value: float | None) -> str:
    return "" if value is None else str(int(value)) if value == int(value) else str(value)


if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page())
