"""Disks that lose power and get full: each is an ext4 file system in an image of its own, on a loop device.

Power is lost by the shutdown ioctl of the file system: from that moment nothing reaches the image any more, not even
the journal. What was not synced is gone when it is mounted again. That takes some 30 ms and no virtual machine.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path

from chaos.cluster.network_namespaces import run

SIZE = 512 << 20
"""Bytes of a disk image, which is a sparse file."""
FILLER = "of-others"
"""Name of the file with which ``fill`` takes the free space."""
SHUTDOWN = 0x8004587D
"""``EXT4_IOC_SHUTDOWN``: _IOR('X', 125, __u32)."""
NO_LOG_FLUSH = 2


def share_mounts() -> None:
    """Make the mount namespaces that are made from now on follow the mounts and unmounts of this one."""
    run("mount", "--make-rshared", "/")


class PowerDisk:
    """An ext4 file system in an image file, mounted at ``at``, that can lose power and be filled."""

    def __init__(self, at: Path) -> None:
        self.at = at
        self._image = at.with_name(f"{at.name}.img")

    def make(self) -> None:
        """Create the image, format it and mount it. Call ``unmount`` in the end. Raises ``RuntimeError`` if a command
        fails."""
        with self._image.open("wb") as image:
            image.truncate(SIZE)
        run("mkfs.ext4", "-q", "-F", "-m", "0", "-J", "size=4", str(self._image))
        self.at.mkdir(parents=True, exist_ok=True)
        self._device = run("losetup", "--find", "--show", str(self._image)).strip()
        self._mount()

    def _mount(self) -> None:
        run("mount", self._device, str(self.at))

    def lose_power(self) -> None:
        """Drop all further writes, and fail every access.

        Every process that uses the disk must end before ``regain_power``."""
        handle = os.open(self.at, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(handle)

    def regain_power(self) -> None:
        """Mount the file system again, with what had reached the image before the power was lost."""
        run("umount", str(self.at))
        self._mount()

    def unmount(self) -> None:
        """Unmount the file system, release its loop device and delete the image."""
        run("umount", str(self.at))
        run("losetup", "--detach", self._device)
        self._image.unlink()

    def fill(self) -> None:
        """Fill the disk to the last block, with one file that is not a server's."""
        found = os.statvfs(self.at)
        step, size = found.f_bavail * found.f_frsize, 0
        with (self.at / FILLER).open("wb") as others:
            while step >= found.f_frsize:
                try:
                    os.posix_fallocate(others.fileno(), size, step)
                    size += step
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    step //= 2

    def make_room(self) -> None:
        """Delete the file with which ``fill`` took the free space; does nothing if there is none."""
        (self.at / FILLER).unlink(missing_ok=True)
