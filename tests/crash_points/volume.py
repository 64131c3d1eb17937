"""A file system as recorded system calls leave it: its content, what is durable, and what a power loss may leave.

The rules are those that POSIX and Linux promise, and no others. ``fsync`` or ``fdatasync`` of a file makes its bytes
and its size durable, not its name. ``fsync`` of a directory makes the creations, renames and removals in it durable.
Any subset of all other changes may survive: a later change without an earlier one. A write is torn at the borders of
sectors of 512 bytes. A rename within a directory is one change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from crash_points.recording import Call

SECTOR = 512
Tree = dict[str, bytes | None]
"""The outcome of a power loss: the bytes of each file by its path below the root; None for a directory."""


@dataclass(frozen=True, slots=True)
class Fate:
    """The fate of the unsynced changes: each is kept with probability ``kept``. With a probability between 0 and 1
    half of the writes that are not kept are torn."""

    kept: float
    random: Random

    def keeps(self) -> bool:
        """Return whether the next change is kept as a whole."""
        return self.random.random() < self.kept

    def tears(self) -> bool:
        """Return whether parts are left of a write that is not kept."""
        return 0 < self.kept < 1 and self.random.random() < 0.5


@dataclass(frozen=True, slots=True)
class _Write:
    """An unsynced write of bytes at a position."""

    position: int
    data: bytes

    def apply(self, content: bytearray) -> None:
        end = self.position + len(self.data)
        content.extend(bytes(max(0, end - len(content))))
        content[self.position : end] = self.data

    def tear(self, content: bytearray, random: Random) -> None:
        """Apply some sectors of the write to a content; the size may arrive without them."""
        if random.random() < 0.5:
            content.extend(bytes(max(0, self.position + len(self.data) - len(content))))
        begin = self.position
        while begin < self.position + len(self.data):
            end = begin - begin % SECTOR + SECTOR
            if random.random() < 0.5:
                _Write(begin, self.data[begin - self.position : end - self.position]).apply(content)
            begin = end


@dataclass(frozen=True, slots=True)
class _Resize:
    """An unsynced change of a file's size."""

    size: int

    def apply(self, content: bytearray) -> None:
        del content[self.size :]
        content.extend(bytes(self.size - len(content)))


@dataclass(slots=True, eq=False)
class _File:
    """A file: its size, its stable content, and the unsynced changes since its last sync."""

    size: int = 0
    stable: bytearray = field(default_factory=bytearray)
    pending: list[_Write | _Resize] = field(default_factory=list)

    def change(self, change: _Write | _Resize) -> None:
        self.pending.append(change)
        self.size = change.size if isinstance(change, _Resize) else max(self.size, change.position + len(change.data))

    def sync(self) -> None:
        for change in self.pending:
            change.apply(self.stable)
        self.pending.clear()

    def survivor(self, fate: Fate) -> bytes:
        content = bytearray(self.stable)
        for change in self.pending:
            if fate.keeps():
                change.apply(content)
            elif isinstance(change, _Write) and fate.tears():
                change.tear(content, fate.random)
        return bytes(content)


@dataclass(slots=True, eq=False)
class _Directory:
    """A directory: its names, and the unsynced changes since its last sync."""

    names: dict[str, _Node] = field(default_factory=dict)
    stable: dict[str, _Node] = field(default_factory=dict)
    pending: list[dict[str, _Node | None]] = field(default_factory=list)

    def change(self, change: dict[str, _Node | None]) -> None:
        _rename(self.names, change)
        self.pending.append(change)

    def sync(self) -> None:
        for change in self.pending:
            _rename(self.stable, change)
        self.pending.clear()


_Node = _File | _Directory


def _rename(names: dict[str, _Node], change: dict[str, _Node | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


@dataclass(slots=True)
class _Open:
    """An open file descriptor."""

    path: str
    node: _Node | None
    """The open file or directory; None if it is outside of the volume."""
    position: int = 0


class Volume:
    """Everything below the directory ``root``, which is empty and durable before the first call. ``listen`` is called
    with the data of each write to the file ``beside``, which is outside of it."""

    def __init__(self, root: str, beside: str, listen: Callable[[bytes], None]) -> None:
        self._root = root
        self._tree = _Directory()
        self._beside = beside
        self._listen = listen
        self._open: dict[int, _Open] = {}

    def apply(self, call: Call) -> bool:
        """Apply one call; returns whether it changed what a power loss may leave. Raises ``ValueError`` for a call on
        this volume that is not supported."""
        if call.name == "close":
            self._open.pop(call.number(0), None)
            return False
        if call.name in ("dup", "dup2", "dup3") or (call.name == "fcntl" and "F_DUPFD" in call.arguments[1]):
            if call.number(0) in self._open:
                self._open[call.result] = self._open[call.number(0)]
            return False
        if call.name in ("open", "openat"):
            return self._on_open(call)
        if call.name in _OF_DESCRIPTORS:
            handle = self._open.get(call.number(0))
            if handle is not None and handle.path == self._beside:
                self._listen(call.data(1)[: call.result])
                return True
            return handle is not None and handle.node is not None and self._on_descriptor(call, handle)
        return call.name != "fcntl" and self._on_names(call)

    def survivors(self, fate: Fate) -> Tree:
        """Return the outcome of a power loss now, with this fate."""
        tree: Tree = {}
        self._survive(self._tree, "", fate, tree)
        return tree

    def _survive(self, directory: _Directory, path: str, fate: Fate, tree: Tree) -> None:
        names = dict(directory.stable)
        for change in directory.pending:
            if fate.keeps():
                _rename(names, change)
        for name, node in sorted(names.items()):
            if isinstance(node, _File):
                tree[path + name] = node.survivor(fate)
            else:
                tree[path + name] = None
                self._survive(node, f"{path}{name}/", fate, tree)

    # --- calls -------------------------------------------------------------------------------------------

    def _on_open(self, call: Call) -> bool:
        first = 0 if call.name == "open" else 1
        path, flags = self._path(call, first), call.arguments[first + 1]
        handle = self._open[call.result] = _Open(path, None)
        if not self._is_inside(path):
            return False
        if "O_APPEND" in flags or "O_TMPFILE" in flags:
            raise ValueError(f"not understood: {call}")
        parent, name = self._place(path)
        node = parent.names.get(name) if name else self._tree
        handle.node = node
        if node is None:
            if "O_CREAT" not in flags:
                raise ValueError(f"{path} was opened, but nothing made it")
            handle.node = _File()
            parent.change({name: handle.node})
            return True
        if "O_TRUNC" in flags and isinstance(node, _File):
            node.change(_Resize(0))
            return True
        return False

    def _on_descriptor(self, call: Call, handle: _Open) -> bool:
        node = handle.node
        match call.name, node:
            case (("fsync" | "fdatasync"), (_File() | _Directory())):
                node.sync()
            case (("write" | "writev"), _File()):
                node.change(_Write(handle.position, call.data(1)[: call.result]))
                handle.position += call.result
            case (("pwrite64" | "pwritev" | "pwritev2"), _File()):
                node.change(_Write(call.number(3), call.data(1)[: call.result]))
            case "ftruncate", _File():
                node.change(_Resize(call.number(1)))
            case "fallocate", _File() if call.number(1) == 0:
                node.change(_Resize(max(node.size, call.number(2) + call.number(3))))
            case "sync_file_range", _File():
                return False  # it promises nothing
            case _:
                raise ValueError(f"not understood: {call}")
        return True

    def _on_names(self, call: Call) -> bool:
        match call.name:
            case "rename":
                paths = [self._path(call, 0), self._path(call, 1)]
            case "renameat" | "renameat2":
                paths = [self._path(call, 1), self._path(call, 3)]
            case "mkdir" | "rmdir" | "unlink":
                paths = [self._path(call, 0)]
            case "mkdirat" | "unlinkat":
                paths = [self._path(call, 1)]
            case _:
                raise ValueError(f"not understood: {call}")
        if not any(map(self._is_inside, paths)):
            return False
        parent, name = self._place(paths[0])
        if call.name.startswith("mkdir"):
            parent.change({name: _Directory()})
        elif len(paths) == 1:
            parent.change({name: None})
        else:
            other, target = self._place(paths[1])
            if other is not parent or call.arguments[4:] not in ((), ("0",)):
                raise ValueError(f"not understood: {call}")
            parent.change({name: None, target: parent.names[name]})
        return True

    def _path(self, call: Call, place: int) -> str:
        """Return the path in an argument, made absolute by the descriptor before it."""
        path = call.path(place)
        if path.startswith("/") or place == 0 or call.arguments[place - 1] == "AT_FDCWD":
            return path
        folder = self._open.get(call.number(place - 1))
        return path if folder is None else f"{folder.path}/{path}"

    def _is_inside(self, path: str) -> bool:
        return path == self._root or path.startswith(self._root + "/")

    def _place(self, path: str) -> tuple[_Directory, str]:
        """Return the directory and the name that a path stands for."""
        if not self._is_inside(path):
            raise ValueError(f"{path} is not on the volume")
        *folders, name = path[len(self._root) :].strip("/").split("/")
        directory = self._tree
        for folder in folders:
            found = directory.names[folder]
            assert isinstance(found, _Directory), path
            directory = found
        return directory, name


_OF_DESCRIPTORS = (
    *("write", "writev", "pwrite64", "pwritev", "pwritev2", "ftruncate", "fallocate", "fsync", "fdatasync"),
    *("sync_file_range",),
)
