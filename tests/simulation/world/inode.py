"""One file of the simulated disk: what programs read, what is stable, and the changes in between."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random


@dataclass(slots=True)
class Write:
    position: int
    data: bytes

    def covers(self, position: int) -> bool:
        return self.position <= position < self.position + len(self.data)

    def apply(self, content: bytearray) -> None:
        end = self.position + len(self.data)
        if len(content) < end:
            content.extend(bytes(end - len(content)))
        content[self.position : end] = self.data


@dataclass(slots=True)
class Resize:
    size: int

    def covers(self, position: int) -> bool:
        return position >= self.size

    def apply(self, content: bytearray) -> None:
        del content[self.size :]
        content.extend(bytes(self.size - len(content)))


@dataclass(slots=True)
class Inode:
    content: bytearray = field(default_factory=bytearray)
    stable: bytearray = field(default_factory=bytearray)
    pending: list[Write | Resize] = field(default_factory=list)
    flips: list[tuple[int, int]] = field(default_factory=list)
    """Bits that have rotted, by position, and are not written over yet."""

    def clone(self) -> Inode:
        """An independent copy."""
        pending = [replace(change) for change in self.pending]
        return Inode(bytearray(self.content), bytearray(self.stable), pending, list(self.flips))

    def flip(self, position: int, bit: int) -> None:
        """One bit changes where it lies."""
        self.flips.append((position, bit))
        self.turn()

    def turn(self, places: int = -1) -> None:
        """Turn the newest flips (default: the last one) over."""
        for position, bit in self.flips[places:]:
            self.content[position] ^= 1 << bit
            if position < len(self.stable):
                self.stable[position] ^= 1 << bit

    def change(self, change: Write | Resize) -> None:
        change.apply(self.content)
        self.pending.append(change)
        if self.flips:
            self.flips = [flip for flip in self.flips if not change.covers(flip[0])]

    def sync(self) -> None:
        for change in self.pending:
            change.apply(self.stable)
        self.pending.clear()

    def crash(self, rng: Random, kept: float) -> None:
        """Each change that was not synced meets its own fate, whatever became of those before it."""
        for change in self.pending:
            if rng.random() < kept:
                change.apply(self.stable)
            elif isinstance(change, Write) and change.data and not self._holds(change):
                for piece in _damage(change, rng):
                    piece.apply(self.stable)
        self.pending.clear()
        self.content = bytearray(self.stable)

    def _holds(self, write: Write) -> bool:
        """Whether these bytes are stable there already: a sector that is written again with what it holds is never
        torn."""
        return self.stable[write.position : write.position + len(write.data)] == write.data


SECTOR_BYTES = 512
"""What a disk writes whole or not at all, and in any order."""


def _damage(write: Write, rng: Random) -> list[Write]:
    """What is left of a write that was not synced and not kept: nothing, its beginning, its beginning with a flipped
    bit, its length alone, or any of its sectors, with its length or without."""
    fate = rng.choice(("lost", "torn", "flipped", "zero", "sectors", "sectors"))
    if fate == "sectors":
        return _sectors(write, rng)
    data = write.data
    length = rng.randrange(len(data) + 1)
    if fate == "zero":
        return [Write(write.position, bytes(len(data)))]
    if fate == "lost" or not length:
        return []
    torn = bytearray(data[:length])
    if fate == "flipped":
        torn[rng.randrange(length)] ^= 1 << rng.randrange(8)
    return [Write(write.position, bytes(torn))]


def _sectors(write: Write, rng: Random) -> list[Write]:
    """Any subset of the sectors of the file that the write covers. Where the file's length arrived, those that did
    not are zeros if they were never written before."""
    end = write.position + len(write.data)
    edges = [write.position, *range((write.position // SECTOR_BYTES + 1) * SECTOR_BYTES, end, SECTOR_BYTES), end]
    kept = [
        Write(a, write.data[a - write.position : b - write.position])
        for a, b in pairwise(edges)
        if rng.random() < 0.5
    ]
    if rng.random() < 0.5:
        kept.insert(0, Write(end, b""))  # makes the file so long
    return kept
