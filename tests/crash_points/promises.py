"""Promises of the recorded program, and the check that what a power loss has left keeps them.

A promise is a JSON object. A newer one replaces older ones about the same thing:

    logs      by directory: the settings of the log, its possible ``histories``, and the least and the greatest value
              of the highest committed offset that it remembers. A log matches a history when it begins at one of the
              ``starts``, ends at ``durable`` or later, holds exactly the batches of the history in between, and its
              producers are in the state that these batches lead to
    headers   by digest: the header of a batch
    lives     possible names of lives, clusters, and answers to "did the last life end in order"
    deleted   logs that must be gone
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from support.log_builders import content, open_alone, sound
from tidelog.batch.format import read_header
from tidelog.runtime.disk import Disk, RealDisk
from tidelog.types import TopicConfig
from tidelog_replica.maintenance.log_deletion import DELETING, finish_deletion
from tidelog_replica.registration.incarnations import Incarnations
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage.encryption.files import EncryptedDisk
from tidelog_replica.storage.encryption.keyring import Keyring
from tidelog_replica.storage.log import Log

from crash_points.volume import Tree

KEYS = Keyring({"key": bytes(range(32))}, "key")
BOOT = "before"
"""The boot of the operating system that the power loss ends."""


class Config(NamedTuple):
    """A log's directory and settings."""

    name: str
    flush: str
    cleanup: str
    encrypted: bool = False

    def over(self, disk: Disk) -> Disk:
        """Return the disk that the log uses: with encryption, if the settings ask for it."""
        return EncryptedDisk(disk, KEYS) if self.encrypted else disk

    def of_topic(self) -> TopicConfig:
        """Return settings of a topic with small segments."""
        size = 600 if self.cleanup == "compact" else 500
        return TopicConfig(segment_max_bytes=size, flush=self.flush, cleanup=self.cleanup)  # type: ignore[arg-type]


def digest_of(batch: bytes) -> str:
    """Return a digest of all bytes of a batch."""
    return blake2b(batch, digest_size=8).hexdigest()


class BrokenPromise(AssertionError):
    """A promise was not kept."""


class Promises:
    """Everything that the recorded program has promised before the power loss."""

    def __init__(self) -> None:
        self._logs: dict[str, dict[str, Any]] = {}
        self._headers: dict[str, bytes] = {}
        self._incarnations: dict[str, Any] | None = None
        self._deleted: set[str] = set()
        self._versions: dict[str, int] = {}
        self._seen: set[tuple[str, int, int]] = set()
        self.checked = 0
        """The number of different outcomes that were opened."""

    def take(self, data: bytes) -> None:
        """Take over one line of promises; it replaces earlier promises about the same things."""
        words = json.loads(data)
        for digest, header in words.get("headers", {}).items():
            self._headers[digest] = bytes.fromhex(header)
        for name, promise in words.get("logs", {}).items():
            self._versions[name] = self._versions.get(name, 0) + 1
            if promise is None:
                del self._logs[name]
            else:
                self._logs[name] = promise
        if "lives" in words:
            self._versions[""] = self._versions.get("", 0) + 1
            self._incarnations = words["lives"]
        self._deleted.update(words.get("deleted", ()))

    def check(self, tree: Tree, folder: Path) -> None:
        """Open what a power loss has left, in a directory below ``folder``. Raises ``BrokenPromise``, or the error of
        the opening."""
        for name in self._deleted:
            if name in tree:
                raise BrokenPromise(f"{name} is there again, though it was deleted")
        for name, promise in self._logs.items():
            part = {path: data for path, data in tree.items() if path.startswith(name + "/")}
            if self._is_new(name, part):
                with placed({name: None, **part} if name in tree else {}, folder) as place:
                    self._check_log(place / name, promise)
        part = {path: data for path, data in tree.items() if "/" not in path and data is not None}
        if self._incarnations is not None and self._is_new("", part):
            with placed(part, folder) as place:
                self._check_lives(place, self._incarnations)

    def _is_new(self, name: str, part: Tree) -> bool:
        """Return whether this outcome and this promise were not checked together before."""
        key = name, self._versions[name], hash(frozenset(part.items()))
        if key in self._seen:
            return False
        self._seen.add(key)
        self.checked += 1
        return True

    def _check_log(self, directory: Path, promise: dict[str, Any]) -> None:
        config = Config(**promise["config"])
        disk = config.over(RealDisk())
        if (directory / DELETING).exists():
            finish_deletion(disk, str(directory), disk.listdir(str(directory)))
        log = open_alone(disk, str(directory), config.of_topic())
        try:
            sound(log)
            faults = [self._fault_of(log, history) for history in promise["histories"]]
            if all(faults):
                raise BrokenPromise(f"{directory.name}: {'; or: '.join(filter(None, faults))}")
            least, most = promise["highest_committed"]
            if not least <= log.written_high_watermark <= most:
                found = log.written_high_watermark
                raise BrokenPromise(f"{directory.name}: committed up to {found}, not between {least} and {most}")
        finally:
            log.close(for_good=True)

    def _fault_of(self, log: Log, history: dict[str, Any]) -> str | None:
        """Return why the log does not match this history; "" if it does."""
        if log.start not in history["starts"]:
            return f"it begins at {log.start}, not one of {history['starts']}"
        if log.end < history["durable"]:
            return f"it ends at {log.end}, but {history['durable']} was durable"
        batches = [batch for batch in history["batches"] if log.start <= batch[0] < log.end]
        found = content(log, from_disk=True)
        for batch, (base, _, digests) in zip(found, batches, strict=False):
            if digest_of(batch) not in digests:
                return f"the batch at {base} is {read_header(batch)}, which is none of the promised ones"
        if len(found) != len(batches):
            return f"it has {len(found)} batches, not {len(batches)}"
        past = ProducerState.from_bytes(bytes.fromhex(history["past"])) if history["past"] else ProducerState()
        for base, original, _ in history["batches"]:
            if base < log.end:
                past.record(read_header(self._headers[original]), base)
        if log.producers.snapshot() != past.snapshot():
            return f"its producers are {log.producers.snapshot()}, not {past.snapshot()}"
        return None

    def _check_lives(self, directory: Path, promise: dict[str, Any]) -> None:
        lives = Incarnations(RealDisk(), str(directory), "node", "", BOOT + ", another one")
        lives.begin_incarnation("after")
        found = {"names": list(lives.names[:-1]), "clusters": lives.cluster, "clean": lives.began_clean}
        for word, value in found.items():
            if value not in promise[word]:
                raise BrokenPromise(f"{word} of the data directory: {value}, not one of {promise[word]}")


@contextmanager
def placed(tree: Tree, folder: Path) -> Iterator[Path]:
    """Yield a directory below ``folder`` with these files and directories, and delete it afterwards."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        for path, data in sorted(tree.items()):
            if data is None:
                (Path(place) / path).mkdir()
            else:
                (Path(place) / path).write_bytes(data)
        yield Path(place)
