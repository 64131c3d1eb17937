"""Faults of disks that lose power, get full, or damage their data."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random

from chaos.cluster import capabilities
from chaos.cluster.supervisor import Stage, Unfit
from chaos.faults.registry import Begin, fault
from tidelog_replica.storage.checkpoints import EPOCHS, HIGH_WATERMARK

DISKS = (capabilities.DISKS,)
TAIL_BYTES = 64 << 10
"""A bit that flips in the end of a log flips within this many bytes of it."""
Repaired = Callable[[], bool]
"""A function that returns whether a damage is repaired."""
Damage = Callable[[Path, Random], Repaired]
"""A function that damages a partition's folder and returns the function that tells whether the damage is repaired.
Raises ``Unfit`` if there is nothing to damage."""


async def _power(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    await stage.lose_power(target)
    yield
    await stage.regain_power(target)


for _strikes in ("leader", "follower", "active"):
    fault(
        f"power-{_strikes}",
        f"the host of the {_strikes} loses power: what its disk was not made to keep is gone",
        _strikes,
        needs=DISKS,
    )(_power)


@fault("power-all", "every host with a disk loses power at the same moment", "all", needs=DISKS)
async def _power_all(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    nodes = list(stage.cluster.disks)
    await stage.lose_power(*nodes)
    yield
    await stage.regain_power(*nodes)


@fault(
    "power-all-bit-flip",
    "every host with a disk loses power at the same moment, and one bit of the newest bytes of one log has flipped",
    "all",
    needs=DISKS,
    hold=(0.0, 0.0),
    spoils=True,
)
async def _power_all_flip(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    nodes = list(stage.cluster.disks)
    await stage.lose_power(*nodes)
    await stage.boot(*nodes)
    server = random.choice(stage.nodes("replica"))
    logs = [path for path in sorted(stage.cluster.data(server).glob("*-*/*.log")) if path.stat().st_size]
    newest = list({path.parent: path for path in logs}.values())
    if newest:
        path = random.choice(newest)
        size = path.stat().st_size
        flip_bit(path, random.randrange(max(0, size - TAIL_BYTES), size), random)
    await stage.start(*nodes)
    yield


@fault(
    "power-one-two-paused",
    "two replica servers hang, the third loses power and comes back alone, then the two go on",
    "all",
    needs=DISKS,
    hold=(2.0, 6.0),
)
async def _power_one(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    struck, *paused = random.sample(stage.nodes("replica"), 3)
    for node in paused:
        stage.cluster.pause(node)
    await stage.lose_power(struck)
    await stage.regain_power(struck)
    yield
    for node in paused:
        stage.cluster.resume(node)


@fault(
    "disk-full",
    "others fill the disk of the leader's server to the last byte, and remove what they wrote",
    "leader",
    needs=DISKS,
    hold=(3.0, 8.0),
)
async def _full(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    await stage.do(stage.cluster.disks[target].fill)
    yield
    await stage.do(stage.cluster.disks[target].make_room)


# --- damage, one disk at a time -------------------------------------------------------------------------------


async def folder(stage: Stage, target: str, random: Random) -> Path:
    """Return the folder of a random partition of the topic on a replica server. Raises ``Unfit`` if the server has
    none."""
    found = sorted(stage.cluster.data(target).glob(f"{await stage.topic_id()}-*"))
    if not found:
        raise Unfit(f"{target} holds no partition of {stage.topic}")
    return random.choice(found)


def segments(at: Path, least: int) -> list[Path]:
    """Return the segment files of a partition's folder in order. Raises ``Unfit`` if there are fewer than
    ``least``."""
    found = sorted(at.glob("*.log"))
    if len(found) < least:
        raise Unfit(f"{at.name} has {len(found)} segments")
    return found


def _restored(path: Path) -> Repaired:
    """Return a function that returns whether the segment has again the bytes that it has now, or retention has
    removed it."""
    whole = hashlib.sha256(path.read_bytes()).digest()

    def look() -> bool:
        try:
            return hashlib.sha256(path.read_bytes()).digest() == whole
        except FileNotFoundError:
            left = sorted(path.parent.glob("*.log"))
            return bool(left) and left[0].name > path.name

    return look


def _at_once() -> bool:
    """Return True: damage that a start repairs counts as repaired when the replica is in sync again."""
    return True


def flip(at: Path, random: Random) -> Repaired:
    """Flip one random bit of a random closed segment, and return how to see that it is repaired. Raises ``Unfit`` if
    no segment is closed."""
    path = random.choice(segments(at, 2)[:-1])
    repaired = _restored(path)
    flip_bit(path, random.randrange(path.stat().st_size), random)
    return repaired


def flip_bit(path: Path, place: int, random: Random) -> None:
    """Flip one random bit of the byte at offset ``place`` of a file."""
    with path.open("r+b") as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 1 << random.randrange(8)]))


def cut_closed(at: Path, random: Random) -> Repaired:
    """Remove the second half of a random closed segment, and return how to see that it is repaired. Raises ``Unfit``
    if no segment is closed."""
    path = random.choice(segments(at, 2)[:-1])
    repaired = _restored(path)
    _truncate(path, path.stat().st_size // 2)
    return repaired


def cut_last(at: Path, random: Random) -> Repaired:
    """Remove up to 4,000 bytes from the end of the last segment. Raises ``Unfit`` if there is no segment."""
    path = segments(at, 1)[-1]
    size = path.stat().st_size
    _truncate(path, max(0, size - random.randint(1, 4000)))
    return _at_once


def _truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def _garbage(name: str) -> Damage:
    def damage(at: Path, random: Random) -> Repaired:
        found = sorted(at.glob(name))
        if not found:
            raise Unfit(f"{at.name} has no {name}")
        path = random.choice(found)
        path.write_bytes(random.choice((b"", random.randbytes(max(16, path.stat().st_size)))))
        return _at_once

    return damage


def _damaged(damage: Damage, *, running: bool) -> Begin:
    """Return the function that does a fault of this damage: to a running server, or (``running`` False) to one that
    is killed first and started after it. Its end waits until the damage is repaired."""

    async def begin(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
        at = await folder(stage, target, random)
        if not running:
            await stage.kill(target)
        try:
            repaired = damage(at, random)
        finally:
            if not running:
                await stage.start(target)
        yield
        await stage.until(repaired)

    return begin


for _name, _words, _damage, _running in (
    ("bit-flip", "one bit of a closed segment flips under the running server", flip, True),
    (
        "cut-closed",
        "a closed segment loses its second half; the server was killed and starts on it",
        cut_closed,
        False,
    ),
    ("cut-last", "the last segment loses up to 4,000 bytes; the server was killed and starts on it", cut_last, False),
    ("bad-index", "an index file is emptied or overwritten; the server was killed", _garbage("*.index"), False),
    (
        "bad-epochs",
        "the file of leader epochs is emptied or overwritten; the server was killed",
        _garbage(EPOCHS),
        False,
    ),
    (
        "bad-watermark",
        "the file of the high watermark is emptied or overwritten; the server was killed",
        _garbage(HIGH_WATERMARK),
        False,
    ),
):
    for _strikes in ("leader", "follower"):
        fault(f"{_name}-{_strikes}", f"at the {_strikes}: {_words}", _strikes, hold=(0.0, 0.0), spoils=True)(
            _damaged(_damage, running=_running)
        )


def wipe(at: Path) -> None:
    """Delete everything on a disk but ``lost+found``."""
    for path in at.iterdir():
        if path.name != "lost+found":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


async def _wiped(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    await stage.kill(target)
    wipe(stage.cluster.data(target))
    await stage.start(target)
    yield


for _strikes in ("leader", "follower"):
    fault(
        f"wiped-{_strikes}",
        f"the {_strikes}'s server is killed, and comes back with an empty disk",
        _strikes,
        hold=(0.0, 0.0),
        spoils=True,
    )(_wiped)


@fault(
    "bad-raft-store",
    "a controller is killed, its database is overwritten from the middle on, it starts on that and is added again",
    "controller",
    hold=(0.0, 0.0),
    spoils=True,
)
async def _bad_store(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    await stage.kill(target)
    path = stage.cluster.data(target) / "raft.db"
    for beside in path.parent.glob("raft.db-*"):
        if beside.name != "raft.db-commits":
            beside.unlink()  # the newest pages are there
    middle = path.stat().st_size // 2
    with path.open("r+b") as file:
        file.seek(middle)
        file.write(random.randbytes(middle))
    await stage.start(target)
    yield
    await stage.vote_again(target)


@fault(
    "wiped-controller",
    "a controller is killed, and comes back with an empty disk; it is added again",
    "controller",
    hold=(0.0, 0.0),
    spoils=True,
)
async def _wiped_controller(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    await stage.kill(target)
    wipe(stage.cluster.data(target))
    await stage.start(target)
    yield
    await stage.vote_again(target)
