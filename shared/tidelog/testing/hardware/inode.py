"""One file of the simulated disk: the content that programs read, the stable content, and the changes between."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random


@dataclass(slots=True)
class Write:
    """A change of a file that was not synced yet: bytes written at a position."""

    position: int
    data: bytes

    def covers(self, position: int) -> bool:
        """Return whether the write replaces the byte at a position."""
        return self.position <= position < self.position + len(self.data)

    def apply(self, content: bytearray) -> None:
        """Write the bytes into a content, which grows with zeros up to the position if it is shorter."""
        end = self.position + len(self.data)
        if len(content) < end:
            content.extend(bytes(end - len(content)))
        content[self.position : end] = self.data


@dataclass(slots=True)
class Resize:
    """A change of a file that was not synced yet: truncation or extension to a size in bytes."""

    size: int

    def covers(self, position: int) -> bool:
        """Return whether the resize removes the byte at a position."""
        return position >= self.size

    def apply(self, content: bytearray) -> None:
        """Cut a content to the size, or extend it with zeros."""
        del content[self.size :]
        content.extend(bytes(self.size - len(content)))


@dataclass(slots=True)
class Inode:
    """One file. ``content`` is what programs read (the page cache), ``stable`` what a power loss leaves at least, and
    ``pending`` the changes that were applied to the first and not yet to the second."""

    content: bytearray = field(default_factory=bytearray)
    stable: bytearray = field(default_factory=bytearray)
    pending: list[Write | Resize] = field(default_factory=list)
    flips: list[tuple[int, int]] = field(default_factory=list)
    """Bits (position, bit) that have rotted and were not overwritten since."""

    def clone(self) -> Inode:
        """Return an independent copy, with its pending changes and flipped bits."""
        pending = [replace(change) for change in self.pending]
        return Inode(bytearray(self.content), bytearray(self.stable), pending, list(self.flips))

    def flip(self, position: int, bit: int) -> None:
        """Invert one bit of the content and of the stable content, as bit rot does."""
        self.flips.append((position, bit))
        self.turn()

    def turn(self, places: int = -1) -> None:
        """Invert the bits of the newest flips again, from index ``places`` on; by default that of the last one."""
        for position, bit in self.flips[places:]:
            self.content[position] ^= 1 << bit
            if position < len(self.stable):
                self.stable[position] ^= 1 << bit

    def change(self, change: Write | Resize) -> None:
        """Apply a write or resize to the content and keep it pending until ``sync``. Flipped bits that it overwrites
        are forgotten."""
        change.apply(self.content)
        self.pending.append(change)
        if self.flips:
            self.flips = [flip for flip in self.flips if not change.covers(flip[0])]

    def sync(self) -> None:
        """Apply all pending changes to the stable content."""
        for change in self.pending:
            change.apply(self.stable)
        self.pending.clear()

    def crash(self, rng: Random, kept: float) -> None:
        """Lose power: each pending change is kept with probability ``kept``, otherwise it is lost or applied damaged,
        independently of the others. The content becomes the stable content."""
        for change in self.pending:
            if rng.random() < kept:
                change.apply(self.stable)
            elif isinstance(change, Write) and change.data and not self._holds(change):
                for piece in _damage(change, rng):
                    piece.apply(self.stable)
        self.pending.clear()
        self.content = bytearray(self.stable)

    def _holds(self, write: Write) -> bool:
        """Return whether the stable content already has the bytes of this write at its position. A sector that is
        written again with the same bytes is never torn."""
        return self.stable[write.position : write.position + len(write.data)] == write.data


SECTOR_BYTES = 512
"""The size of a sector: a disk writes a sector whole or not at all, and sectors in any order."""


def _damage(write: Write, rng: Random) -> list[Write]:
    """Return the writes that a power loss leaves of an unsynced one, at random: none, its beginning, its beginning
    with a flipped bit, zeros of its length, or some of its sectors."""
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
    """Return a random subset of the sectors that a write covers. Half of the time the file also gets its full length;
    then missing sectors are zeros where nothing was written before."""
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
