"""The file of losses that the controllers do not know of yet."""

from __future__ import annotations

from functools import partial

from support.log_builders import PATH, after_power_losses, build
from tidelog.testing.hardware.disk import SimDisk
from tidelog_replica.storage.checkpoints import PENDING_LOSSES
from tidelog_replica.storage.recovery.damage import StartOver
from tidelog_replica.storage.recovery.pending_losses import LostRange, PendingLosses

FILE = f"{PATH}/{PENDING_LOSSES}"
KNOWN, POSSIBLE = LostRange(3, 10, 13, False), LostRange(3, 13, 20, True)


def load(disk: SimDisk) -> PendingLosses:
    return PendingLosses(disk, PATH, disk.listdir(PATH))


def test_losses_are_there_again_after_a_restart_until_each_is_removed() -> None:
    disk = build()
    pending = load(disk)
    assert pending.ranges == ()
    pending.add([KNOWN])
    pending.add([KNOWN, POSSIBLE])
    assert load(disk).ranges == (KNOWN, POSSIBLE)
    pending.remove(KNOWN)
    pending.remove(KNOWN)
    assert load(disk).ranges == pending.ranges == (POSSIBLE,)
    pending.remove(POSSIBLE)
    assert PENDING_LOSSES not in disk.listdir(PATH)


def test_a_power_loss_takes_no_loss_that_was_added() -> None:
    def act(disk: SimDisk) -> partial[None]:
        pending = load(disk)
        pending.add([KNOWN])
        return partial(pending.add, [POSSIBLE])

    for after in after_power_losses(build, act, seeds=10, changes=5):
        assert load(after).ranges in ((KNOWN,), (KNOWN, POSSIBLE))


def test_a_file_with_any_flipped_bit_counts_as_missing() -> None:
    disk = build()
    load(disk).add([KNOWN, POSSIBLE])
    whole = disk.read(FILE)
    for position in range(len(whole)):
        data = bytearray(whole)
        data[position] ^= 1
        disk.replace(FILE, bytes(data))
        assert load(disk).ranges == ()
    for size in range(len(whole)):
        disk.replace(FILE, whole[:size])
        assert load(disk).ranges == ()


def test_a_copy_that_starts_over_after_damage_keeps_its_reports() -> None:
    disk = build()
    load(disk).add([POSSIBLE])
    StartOver(disk, PATH).run()
    assert load(disk).ranges == (POSSIBLE,)
