"""All client libraries have the same names: who knows one knows all. Where one differs the table says why. Tests
``client``, ``aio``, ``sync`` and ``shared/js/tidelog.d.ts``."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import tidelog
import tidelog.aio
import tidelog.sync
from tidelog.client import backward_consumer as backward
from tidelog.client.admin.old_names import CALLED, OLD_NAMES

DECLARED = (Path(__file__).resolve().parents[4] / "shared" / "js" / "tidelog.d.ts").read_text()
KINDS = ("Log", "Producer", "Pending", "Consumer", "BackwardConsumer", "GroupConsumer", "Transaction")
PARTS = ("topics", "partitions", "groups", "transactions", "access", "cluster")
"""Attributes of ``Log`` that have the methods of administration."""
READERS = ("Consumer", "BackwardConsumer", "GroupConsumer")
NOT_FOR_APPLICATIONS = {
    "Log": {
        "sender",
        "producer_ids",
        "task_producer",
        "use_producer",
        "appender",
        "read_batches",
        "tracing",
        "waits",
    },
    "Producer": {"abandon", "begin", "on_acks", "on_link_down", "on_link_up"},
    "Consumer": {"reached", "current", "last"},
    "BackwardConsumer": {"reached", "current", "last"},
    "GroupConsumer": {
        *("reached", "hold", "current", "last"),
        *("on_assigned", "on_commit_due", "on_lost", "on_over", "on_revoked"),
    },
}
"""Public in ``tidelog`` for other modules of its own."""
SET_BY_CONSTRUCTORS = {"topic", "topics", "group"}
"""Attributes of objects in Python, where the classes do not tell of them."""
TRANSACTIONS = ("transaction", "stage", "commit", "wait_visible")
FLAT = {new: old for old, new in OLD_NAMES.items()} | {f"{part}.{name}": part for part, name in CALLED.items()}
ENDS = "async with"
SYNC_HAS = {
    ("Log", "close"): f"{ENDS} of trio and asyncio; a program that blocks may have no block to end",
    ("Producer", "close"): f"{ENDS} of trio and asyncio; a program that blocks may have no block to end",
}
SYNC_LACKS = {
    ("Producer", "failure"): "close raises it",
    ("Pending", "is_settled"): "wait() with a timeout tells",
    ("Pending", "partition"): "wait() tells: a thread of its own may not have chosen it yet",
    ("Pending", "result"): "wait() is it",
}
SYNC_TAKES = {("read_arrow", "progress"): "a RecordBatchReader has no attributes to ask for it"}
JS_HAS = {
    **{(kind, "close"): "JavaScript has no async with" for kind in ("Log", "Producer")},
    **{(kind, "open"): "JavaScript has no async with" for kind in READERS},
    ("Log", "gateway"): "for pages that show it",
    ("Producer", "abandon"): "ends it without waiting; in Python that is leaving its block by an error",
}
JS_LACKS = {
    **{("Log", name): "JavaScript reads what is committed, and begins no transactions" for name in TRANSACTIONS},
    **{
        (kind, name): "batches as they are stored are for Spark and the like"
        for kind in READERS
        for name in ("next_batch", "next_batches")
    },
    ("GroupConsumer", "topic_id"): "assignment and positions tell",
    **{("Log", name): "for the command" for name in ("features", "raise_level")},
    ("Log", "compare_replicas"): "for the command: pages ask digest",
    **{("Log", name): "for the command" for name in ("read_copy", "compare_copies", "scrub_server")},
    ("Log", "read_arrow"): "pyarrow and its tables are Python's",
    ("Consumer", "remaining"): "for read_arrow",
    ("Log", "find_positions"): "list_offsets tells",
    ("Log", "group_progress"): "describe_group and list_offsets tell",
    **{("Log", f"groups.{name}"): "for the command" for name in ("positions",)},
    **{("Log", f"topics.{name}"): "for the command" for name in ("find",)},
    **{("Log", f"transactions.{name}"): "for the command" for name in ("of_producer",)},
    **{("Log", f"cluster.{name}"): "for the command" for name in ("refusal", "gateways")},
}
"""(class, name in Python) -> why."""


def names(kind: type) -> set[str]:
    """Return the public names of a class; of ``Log`` also those of its administration, such as ``topics.create``, and
    no old ones."""
    found = {name for name in dir(kind) if not name.startswith("_")}
    if kind.__name__ != "Log":
        return found
    return found - OLD_NAMES.keys() - set(PARTS) | {
        f"{part}.{name}" for part in PARTS for name in names(admin(kind, part))
    }


def admin(log: Any, part: str) -> type:
    """Return the class of an attribute of ``Log`` that has the methods of administration."""
    unconnected = log(MagicMock(), MagicMock()) if log is tidelog.Log else log(MagicMock())
    return type(getattr(unconnected, part))


def flat(name: str) -> str:
    """Return the name that JavaScript gives a method of ``Log``, which has all administration itself. These are the
    old names of Python."""
    return FLAT.get(name, name)


def the_class(kind: str) -> type:
    return backward.BackwardConsumer if kind == "BackwardConsumer" else getattr(tidelog, kind)  # type: ignore[no-any-return]


def of_trio(kind: str) -> set[str]:
    found = names(the_class(kind)) - NOT_FOR_APPLICATIONS.get(kind, set())
    return {"close" if name == "aclose" else name for name in found}


def of_javascript(kind: str) -> set[str]:
    """Return the members that ``tidelog.d.ts`` declares, in Python's style."""
    found = re.search(rf"^export class {kind}\b.*?\n(.*?)^}}", DECLARED, re.M | re.S)
    assert found is not None
    members: list[str] = re.findall(r"^  (?:readonly )?([a-z]\w*)[?(:]", found[1], re.M)
    names = {re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", member) for member in members}
    return names if kind == "Log" else names - SET_BY_CONSTRUCTORS


def of(table: dict[tuple[str, str], str], kind: str) -> set[str]:
    return {name for where, name in table if where == kind}


@pytest.mark.parametrize("kind", KINDS)
def test_asyncio_has_the_very_classes_of_trio(kind: str) -> None:
    assert getattr(tidelog.aio, kind) is the_class(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_the_blocking_library_has_the_same_names(kind: str) -> None:
    trio, sync = of_trio(kind), names(getattr(tidelog.sync, kind))
    assert trio - sync == of(SYNC_LACKS, kind)
    assert sync - trio == of(SYNC_HAS, kind)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "Transaction"])
def test_javascript_has_the_same_names_in_its_own_style(kind: str) -> None:
    trio, javascript = {flat(name) for name in of_trio(kind)}, of_javascript(kind)
    assert trio - javascript == of(JS_LACKS, kind)
    assert javascript - trio == of(JS_HAS, kind)


def arguments(call: Any) -> list[tuple[str, object, object]]:
    found = list(inspect.signature(call).parameters.values())
    return [(one.name, one.kind, one.default) for one in found]


def member(log: type, name: str) -> Any:
    part, _, method = name.rpartition(".")
    return getattr(admin(log, part), method) if part else getattr(log, method)


@pytest.mark.parametrize("name", sorted(of_trio("Log") - {"consume"}))
def test_the_methods_of_the_blocking_library_take_the_same_arguments(name: str) -> None:
    blocking = [one for one in arguments(member(tidelog.sync.Log, name)) if (name, one[0]) not in SYNC_TAKES]
    assert blocking == arguments(member(tidelog.Log, name))
