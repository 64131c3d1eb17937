"""The record in the data directory of its owner, its incarnations, and whether all that was written is left.

    meta             cluster, node, and the names of incarnations: the last one that was registered, then all begun
                     since. Each process start adds a name, durably, before it registers. The controller knows the
                     name of the last registered incarnation: a directory without that name was wiped, or restored
                     from an old copy. Also some incarnations that were registered before, for metadata that have gone
                     back; the newest metadata that were seen; and a bound of the producer ids in the logs
    meta-copy        a second copy of ``meta``. Each has a CRC, and a damaged one is made again from the other
    boot             the run of the operating system since which nothing was lost
    clean-shutdown   the incarnation that ended in order, with everything flushed; deleted, durably, before the next
                     incarnation writes to a log

An incarnation is *clean* when nothing that was written before it can be lost: the incarnation before ended in order,
or the operating system has run on since, and with it the page cache. ``boot`` is written by incarnations that are
clean, and by those that are registered: what was lost before is then known. So an incarnation which begins after a
power loss and ends before it is registered proves nothing, and leaves no marker either.

After a failed flush the page cache is not to be trusted either: ``distrust`` deletes ``boot``. The deletion need not
be durable, because the file counts only as long as the operating system runs. If the deletion fails, the process must
not end: the next incarnation would trust the page cache. A restart of the machine ends that state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from crc32c import crc32c
from tidelog.errors import ConfigError
from tidelog.runtime.disk import Disk
from tidelog.types import NodeId

KEPT = 1000
"""Most names of incarnations that are kept: the last registered one and the newest."""
KEPT_OLDER = 12
"""Most names of incarnations that are kept that were registered before the last one."""
IDS_AHEAD = 1 << 30
"""How far above the highest known producer id the stored bound is set, so that it is rarely written. After a recovery
of the metadata, producer ids follow the clock, 4096 for each ms; this is four minutes of that."""
META, META_COPY = "meta", "meta-copy"


class _Damaged(Exception):
    """An error that says that a copy of ``meta`` is damaged: it cannot be parsed, or its CRC is wrong."""


@dataclass(frozen=True, slots=True)
class _Meta:
    """The content of the file ``meta``. The attributes of ``Incarnations`` with the same names explain the fields;
    ``lives`` is ``names`` there."""

    cluster: str
    node: str
    lives: list[str]
    older: list[str]
    uncertain: list[str]
    seen: tuple[int, int]
    id_bound: int


def _parse(data: bytes, path: str) -> _Meta:
    """Return the content of ``data``, one copy of ``meta``. Files of earlier releases have fewer fields and no CRC,
    which is accepted. Raises ``_Damaged``, which names ``path``."""
    try:
        stored = json.loads(data)
        crc = stored.pop("crc32c", None)
        index, term = map(int, stored.get("seen", (0, 0)))
        meta = _Meta(
            str(stored["cluster"]),
            str(stored["node"]),
            list(map(str, stored.get("lives", [""]))),  # before incarnations had names, the last one's was ""
            list(map(str, stored.get("older", ()))),
            list(map(str, stored.get("uncertain", ()))),
            (index, term),
            int(stored.get("id_bound", 0)),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _Damaged(f"{path} is damaged; it must name cluster, node and lives: {error!r}") from error
    if crc is not None and crc != _crc(stored):
        raise _Damaged(f"{path} is damaged: its CRC is another")
    return meta


def _crc(fields: Mapping[str, object]) -> int:
    """Return the CRC-32C of the fields as sorted JSON."""
    crc: int = crc32c(json.dumps(fields, sort_keys=True).encode())
    return crc


class Incarnations:
    """The record of a server's incarnations in its data directory, as the present process sees it. ``boot`` names the
    present run of the operating system, "" if that is not known. Every method that changes something writes it to the
    disk before it returns."""

    def __init__(self, disk: Disk, directory: str, node: NodeId, cluster: str, boot: str) -> None:
        self.cluster = cluster
        """The cluster that the directory belongs to; "" while that is not known."""
        self.names: tuple[str, ...] = ()
        """The last registered incarnation, then all that began later, the present one last."""
        self.older: tuple[str, ...] = ()
        """Incarnations that were registered earlier, oldest first."""
        self.uncertain: tuple[str, ...] = ()
        """Like ``older``, but data that was not flushed may have been lost since."""
        self.seen = (0, 0)
        """The newest metadata that an earlier incarnation is known to have seen: index and Raft term."""
        self.id_bound = 0
        """No producer id in the logs is higher than this, as of the last heartbeat that checked."""
        self.clean = False
        """Whether nothing that was written before this incarnation can be lost."""
        self.began_clean = False
        """``clean`` at the beginning of the incarnation: all written data can be read, though not all of it is
        flushed."""
        self.directory = directory
        self._disk = disk
        self._node = node
        self._boot = boot
        self._in_order = False
        self.distrusted = False
        """Whether a flush has failed in this incarnation."""

    def begin_incarnation(self, name: str) -> None:
        """Begin an incarnation called ``name``: read what the earlier ones recorded, decide whether this one is
        clean, delete the marker of a clean shutdown, and write the name durably. Raises ``ConfigError`` if the
        directory belongs to another node or cluster, or if no copy of ``meta`` is undamaged; ``OSError`` if the disk
        fails."""
        self._disk.mkdir(self.directory)
        stored = self._read_meta()
        marker = self._read("clean-shutdown")
        self._in_order = bool(stored) and marker == stored[-1].encode()
        self.clean = self._in_order or (bool(self._boot) and self._read("boot") == self._boot.encode())
        self.began_clean = self.clean
        if self.clean:
            self._write_boot()
        else:
            self.uncertain, self.older = (*self.uncertain, *self.older)[-KEPT_OLDER:], ()
        if marker is not None:
            self._disk.unlink(self._path("clean-shutdown"))  # durable with meta, below
        self._add_name(stored, name)

    def rename(self, name: str) -> None:
        """Add another name for this incarnation, durably, because the controller refuses the present one. Raises
        ``OSError``."""
        self._add_name(self.names, name)

    def on_registered(self, cluster: str, index: int = 0, term: int = 0) -> None:
        """Record durably that the controllers have registered this incarnation of ``cluster``, at this index and Raft
        term of the metadata. The names of earlier incarnations are kept only in case the metadata go back. From now
        on this incarnation is clean, since the controllers know what may have been lost before, unless a flush has
        failed. Raises ``OSError``."""
        if self.cluster != cluster or len(self.names) > 1 or index > self.seen[0]:
            if self.began_clean:
                self.older = (*self.older, *self.names[:-1])[-KEPT_OLDER:]
            else:
                self.uncertain = (*self.uncertain, *self.names[:-1])[-KEPT_OLDER:]
            self.cluster, self.names, self.seen = cluster, self.names[-1:], max(self.seen, (index, term))
            self._write_meta()
        if not self.distrusted:
            self.clean = True
            self._write_boot()

    def know_ids(self, highest: int) -> bool:
        """Raise the stored bound of producer ids, durably, if ``highest``, the highest id in the logs, is above it.
        Return whether the bound was raised. Raises ``OSError``."""
        if highest <= self.id_bound:
            return False
        self.id_bound = highest + IDS_AHEAD
        self._write_meta()
        return True

    def end_incarnation(self, all_flushed: bool) -> bool:
        """Write the marker of a clean shutdown, durably, and return True. Return False, and write nothing, if this
        incarnation is not clean, or if data of earlier incarnations may be unflushed: ``all_flushed`` is False, and
        this incarnation did not begin after a clean shutdown. Raises ``OSError``."""
        if not self.clean or not (all_flushed or self._in_order):
            return False
        self._disk.write_atomic(self._path("clean-shutdown"), self.names[-1].encode())
        return True

    def distrust(self) -> None:
        """Make sure that the next incarnation is not clean, because a flush has failed: delete the file ``boot``.
        Raises ``OSError``; the process must then not end before a repeated call succeeds."""
        self.distrusted, self.clean = True, False
        if self._read("boot") is not None:
            self._disk.unlink(self._path("boot"))

    def _read_meta(self) -> list[str]:
        """Read the first undamaged copy of ``meta`` into the attributes, and return the names of incarnations in it;
        an empty list in a new directory. Raises ``ConfigError`` if all copies are damaged, or if the directory
        belongs to another node or cluster."""
        damaged: ConfigError | None = None
        for name in (META, META_COPY):
            data = self._read(name)
            if data is None:
                continue
            try:
                meta = _parse(data, self._path(name))
            except _Damaged as error:
                damaged = damaged or ConfigError(str(error))
            else:
                self._check(meta.cluster, meta.node)
                self.cluster = self.cluster or meta.cluster
                self.older, self.uncertain = tuple(meta.older), tuple(meta.uncertain)
                self.seen, self.id_bound = meta.seen, meta.id_bound
                return meta.lives
        if damaged is not None:
            raise damaged
        return []

    def _check(self, cluster: str, node: str) -> None:
        """Raise ``ConfigError`` unless a directory of cluster ``cluster`` and node ``node`` belongs to this server.
        An unknown cluster ("") fits any."""
        if node != self._node:
            raise ConfigError(
                f"{self.directory} belongs to node {node}, not {self._node}: name the node or the directory rightly"
            )
        if "" not in (self.cluster, cluster) and self.cluster != cluster:
            raise ConfigError(
                f"{self.directory} belongs to cluster {cluster}, not {self.cluster}:"
                " join that cluster, or take an empty directory"
            )

    def _add_name(self, names: Sequence[str], name: str) -> None:
        """Append ``name`` to the names of incarnations, of which the first and the newest are kept, and write both
        copies of ``meta``."""
        self.names = (*names[:1], *names[1:][-(KEPT - 2) :], name)
        self._write_meta()

    def _write_boot(self) -> None:
        """Write the name of the operating system's present run to the file ``boot``, if it is known."""
        if self._boot:
            self._disk.write_atomic(self._path("boot"), self._boot.encode())

    def _write_meta(self) -> None:
        """Write both copies of ``meta``, one after the other."""
        meta = _Meta(
            self.cluster,
            self._node,
            list(self.names),
            list(self.older),
            list(self.uncertain),
            self.seen,
            self.id_bound,
        )
        fields = asdict(meta)
        data = json.dumps({**fields, "crc32c": _crc(fields)}).encode()
        for name in (META, META_COPY):
            self._disk.write_atomic(self._path(name), data)

    def _read(self, name: str) -> bytes | None:
        """Return the content of a file in the data directory; None if it does not exist."""
        try:
            return self._disk.read(self._path(name))
        except FileNotFoundError:
            return None

    def _path(self, name: str) -> str:
        return f"{self.directory}/{name}"
