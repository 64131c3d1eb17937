"""Reads the history file of a ``Recorder``, also of a recorder that was killed."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidelog.errors import ConfigError
from tidelog.verify.history import (
    UNKNOWN,
    CommitCall,
    Differing,
    Latest,
    Loss,
    OperationHistory,
    ReadCall,
    Row,
    SendCall,
    TransactionCall,
)
from tidelog.verify.history_writer import VERSION

Entry = dict[str, Any]
"""One line of the file: a JSON object."""
Drain = tuple[str, str]
"""Names of the process that drains and of the partition."""


@dataclass(slots=True)
class Recording:
    """The contents of a history file: the history that the checker checks, and settings, notes and comparisons of
    replicas that are only shown to users."""

    history: OperationHistory
    complete: bool = False
    """Whether the recorder has closed the file, so that nothing is missing at its end."""
    about: dict[str, Any] = field(default_factory=dict)
    wall_ms: int = -1
    """Wall clock when the recording began, in milliseconds since 1970."""
    seconds: float = 0.0
    """Time of the last entry, in seconds since the recording began."""
    notes: list[tuple[float, str]] = field(default_factory=list)
    """Notes with their times."""
    compared: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Partition -> (number of replicas that were compared, offset up to which they were)."""


def load(path: Path | str) -> Recording:
    """Read a history file and return its contents. An incomplete last line is left out; an operation without a result
    is ``unknown``. Raises ``ConfigError``, which names the line, if the file cannot be read, is no history file, or
    is damaged."""
    loader, decode = _Loader(), json.JSONDecoder().raw_decode
    number = 0
    try:
        with Path(path).open(encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            for line in file:
                number += 1
                if line.endswith("\n"):
                    loader.add_line(decode(line)[0])
    except OSError as error:
        raise ConfigError(f"{path}: it cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, LookupError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{path}, line {number}: this is no line of a history file ({what})") from error
    if not loader.versioned:
        raise ConfigError(f"{path}: it is empty, no history file")
    return loader.finish()


class _Loader:
    """Builds a ``Recording`` from the lines of one file: the caller calls ``add_line`` for each line, then ``finish``
    once. The operations are put in the order in which they ended."""

    def __init__(self) -> None:
        self.versioned = False
        self.history = OperationHistory()
        self.recording = Recording(self.history)
        self._open: dict[int, Entry] = {}
        self._values: dict[str, bytes] = {}
        self._asked: dict[int, int] = {}
        """Id of a transaction whose commit was requested -> the position from which it moves its group."""
        self._last = 0.0
        self._partitions: dict[str, int] = {}
        self._drains: dict[Drain, list[Row]] = {}
        self._control: dict[str, set[int]] = {}
        self._committed: dict[str, str] = {}
        """Partition -> the process that was the last to read its committed records to the end."""
        self._everything: dict[str, str] = {}
        """Partition -> the process that was the last to read everything that takes offsets to the end."""
        self.readers: dict[str, Callable[[Entry], None]] = {
            "send": self._begin, "commit": self._begin, "transaction": self._begin, "asks": self._asks,
            "end": self._end, "read": self._read, "latest": self._latest, "control": self._on_control,
            "partition": self._partition, "healthy": self._healthy, "note": self._note, "deleted": self._deleted,
            "loss": self._loss, "drain": self._drain, "drained": self._drained, "dump": self._dump,
            "replicas": self._replicas, "group_at": self._group_at, "moved": self._moved, "closed": self._closed,
        }  # fmt: skip

    def add_line(self, entry: Entry) -> None:
        """Add the contents of one line to the recording. The first line must be the header. Raises ``ValueError`` or
        ``KeyError`` if it is not a line of this version of the format."""
        if not self.versioned:
            self._header(entry)
            return
        op = entry["op"]
        if op not in self.readers:
            raise ValueError(f"unknown op {op!r}")
        self.readers[op](entry)

    def _header(self, entry: Entry) -> None:
        """Read the first line: version, settings and wall clock of the recording. Raises ``ValueError`` for another
        version."""
        if entry["op"] != "history" or entry["version"] != VERSION:
            raise ValueError(f"the first line must be a history of version {VERSION}")
        self.versioned = True
        self.history.patience = float(entry["patience_s"])
        self.recording.about, self.recording.wall_ms = entry["about"], entry["wall_ms"]

    # --- operations ---------------------------------------------------------------------------------------------

    def _begin(self, entry: Entry) -> None:
        self._open[entry["id"]] = entry
        self._last = entry["start"]

    def _asks(self, entry: Entry) -> None:
        self._asked[entry["id"]] = entry["position"]

    def _end(self, entry: Entry) -> None:
        """Add the operation whose result this line has to the history."""
        begun = self._open.pop(entry["id"])
        self._last = entry["at"]
        self._ended(begun, entry, f".{entry['life']}" if "life" in entry else "")

    def _ended(self, begun: Entry, entry: Entry, life: str) -> None:
        """Add an operation that has ended to the history. ``begun`` is its first line, ``entry`` the line with its
        result. ``life`` is appended to the name of a send's process: the sends before and after one that was not
        acknowledged count as those of different processes, so that no order is checked between them."""
        end, result = entry["at"], entry["result"]
        match begun["op"]:
            case "send":
                self.history.operations.append(
                    SendCall(
                        begun["process"] + life, begun["partition"], begun["number"],
                        tuple(map(self._bytes, begun["values"])), begun["start"], end, result,
                        entry.get("offset", -1), begun.get("level", "all"), begun.get("idempotent", True),
                        begun.get("expected_offset", -1), entry.get("epoch", -1), begun.get("transaction", ""),
                    )
                )  # fmt: skip
            case "commit":
                for partition, offset in begun["positions"].items():
                    whom = begun["process"], begun["group"], begun["generation"]
                    self.history.operations.append(CommitCall(*whom, partition, offset, begun["start"], end, result))
            case _:
                asked = begun["id"] in self._asked
                position = self._asked.get(begun["id"], -1)
                self.history.transactions.append(
                    TransactionCall(begun["label"], begun["app"], begun["start"], end, result, asked, position)
                )

    def _read(self, entry: Entry) -> None:
        """Add a consumer's answer to the history."""
        rows = entry["rows"]
        self._last = entry["end"]
        self.history.operations.append(
            ReadCall(
                entry["process"], entry["partition"], entry["position"],
                tuple([(row[0], self._bytes(row[1])) for row in rows]), entry["start"], entry["end"],
                tuple([row[2] for row in rows]), entry.get("start_over", False), entry.get("group", ""),
            )
        )  # fmt: skip

    def _latest(self, entry: Entry) -> None:
        """Add an answer with the end of the committed records to the history."""
        at = entry["start"], entry["end"]
        self._last = entry["end"]
        latest = Latest(entry["process"], entry["partition"], entry["offset"], *at, linearizable=entry["fresh"])
        self.history.operations.append(latest)

    # --- the cluster, and the end -------------------------------------------------------------------------------

    def _on_control(self, entry: Entry) -> None:
        self._control.setdefault(entry["partition"], set()).update(entry["offsets"])

    def _partition(self, entry: Entry) -> None:
        self._partitions[entry["partition"]] = entry["start"]

    def _healthy(self, entry: Entry) -> None:
        self.history.healthy.append((entry["start"], entry["end"]))

    def _note(self, entry: Entry) -> None:
        self.recording.notes.append((entry["at"], entry["text"]))

    def _deleted(self, entry: Entry) -> None:
        self.history.deleted.add(entry["partition"])

    def _loss(self, entry: Entry) -> None:
        self.history.losses.append(Loss(entry["partition"], entry["before_epoch"], entry["start"]))

    def _drain(self, entry: Entry) -> None:
        """Add a part of what a fresh consumer read at the end, and the offsets of control batches in it."""
        rows = self._drains.setdefault((entry["process"], entry["partition"]), [])
        rows += [(row[0], self._bytes(row[1])) for row in entry["rows"]]
        if "control" in entry:
            self._control.setdefault(entry["partition"], set()).update(entry["control"])

    def _drained(self, entry: Entry) -> None:
        """Note that a fresh consumer has read a partition from its start to its end."""
        partition = entry["partition"]
        self._partitions[partition] = max(self._partitions.get(partition, 0), entry["start"])
        known = self._committed if entry["isolation"] == "committed" else self._everything
        known[partition] = entry["process"]

    def _dump(self, entry: Entry) -> None:
        rows = self.history.dumps.setdefault(entry["node"], {}).setdefault(entry["partition"], [])
        rows += [(row[0], self._bytes(row[1])) for row in entry["rows"]]

    def _replicas(self, entry: Entry) -> None:
        """Note how far the replicas of a partition were compared, and add the difference if there is one."""
        self.recording.compared[entry["partition"]] = len(entry["compared"]), entry["end"]
        if entry["differ_from"] >= 0:
            self.history.differing.append(Differing(entry["partition"], entry["differ_from"], entry["text"]))

    def _group_at(self, entry: Entry) -> None:
        self.history.committed[entry["group"], entry["partition"]] = entry["offset"]

    def _moved(self, entry: Entry) -> None:
        self.history.moved[entry["app"]] = entry["position"]

    def _closed(self, entry: Entry) -> None:
        self.recording.complete = True
        self._last = entry["at"]

    def _bytes(self, text: Any) -> bytes:
        """Return the value of a record, written as text or base64, as bytes. Equal texts give one object, which saves
        memory."""
        if not isinstance(text, str):
            return b64decode(text["b64"])
        known = self._values.get(text)
        if known is None:
            known = self._values[text] = text.encode()
        return known

    def finish(self) -> Recording:
        """Complete the recording after the last line, and return it. Operations without a result become ``unknown``.
        The last read of the committed records of a partition becomes its final log; other reads become dumps."""
        for number, begun in self._open.items():
            self._ended(begun, {"at": self._last, "result": UNKNOWN}, f".open{number}")
        history = self.history
        history.retained_from = self._partitions
        history.control = self._control
        named = {op.partition: None for op in history.operations} | dict.fromkeys(self._partitions)
        history.undrained = {name for name in named if name not in self._committed} - history.deleted
        for (process, partition), rows in self._drains.items():
            if self._committed.get(partition) == process:
                history.final[partition] = [row for row in rows if row[0] >= self._partitions[partition]]
            else:
                history.dumps.setdefault(f"what {process} read", {})[partition] = rows
        for partition in self._committed:
            history.final.setdefault(partition, [])
        self._hide()
        self.recording.seconds = self._last
        return self.recording

    def _hide(self) -> None:
        """Find the records of aborted transactions: those that were read with everything that takes offsets, but not
        with the committed records. Add their offsets to the offsets without a record."""
        transacted = {
            value
            for op in self.history.operations
            if isinstance(op, SendCall) and op.transaction
            for value in op.values
        }
        for partition, process in self._everything.items():
            shown = dict(self.history.final.get(partition, ()))
            hidden = self._control.setdefault(partition, set())
            for offset, value in self._drains.get((process, partition), ()):
                if value in transacted and shown.get(offset) != value:
                    hidden.add(offset)


LINES = tuple(_Loader().readers)
"""The values of ``op`` that a line after the first may have."""
