"""Random calls of a ``Disk``, the same on every implementation: ``python -m crash_points.calls FOLDER RESULTS SEED``
makes them on the real disk and writes the result of each to the file RESULTS, one JSON value a line."""

from __future__ import annotations

import json
import os
import sys
from random import Random

from tidelog.runtime.disk import Disk, File, RealDisk

CALLS = 400


class Caller:
    """Makes random calls of a disk. Which ones depends on the seed only, as long as the disk answers correctly."""

    def __init__(self, disk: Disk, root: str, seed: int) -> None:
        self._disk = disk
        self._root = root
        self._random = Random(seed)
        self._files: list[File] = []
        self._directories = [root]

    def step(self) -> object:
        """Make one call and return its result, or the number of its error."""
        try:
            return self._call(self._random.randrange(16))
        except OSError as error:
            return f"error {error.errno}"

    def _call(self, kind: int) -> object:
        random, disk = self._random, self._disk
        directory = random.choice(self._directories)
        path, other = (f"{directory}/{random.randrange(4)}" for _ in range(2))
        file = random.choice(self._files) if self._files else None
        position, data = random.randrange(1500), bytes([random.randrange(1, 256)]) * random.randrange(1, 900)
        match kind:
            case 0 | 1:
                self._files.append(disk.open(path, create=kind == 0))
            case 2:
                disk.rename(path, other)
            case 3:
                disk.unlink(path)
            case 4:
                disk.write_atomic(path, data)
            case 5 | 6:
                disk.sync_dir(directory)
            case 7:
                return disk.listdir(f"{self._root}/d{random.randrange(3)}")
            case 8:
                return disk.read(path).hex()
            case 9:
                self._change_directories()
            case _ if file is None:
                return None
            case 10 | 11 | 12:
                file.pwritev([data, data[:7]], position)
            case 13:
                file.truncate(position)
            case 14:
                file.sync()
            case 15:
                return [file.size(), file.pread(position, position).hex()]
        return None

    def _change_directories(self) -> None:
        """Make or remove a directory and sync its parent. The real disk syncs the parent by itself, with all other
        names in it; callers may not rely on that."""
        above = f"{self._root}/d{self._random.randrange(3)}"
        directory = f"{above}/e"
        if directory not in self._directories:
            self._disk.mkdir(directory)
            self._directories.append(directory)
            self._disk.sync_dir(self._root)
        elif self._random.random() < 0.4:
            self._disk.rmtree(directory)
            self._directories.remove(directory)
            self._disk.sync_dir(above)


def main() -> None:
    """Make random calls on the real disk and write their results to a file."""
    root, results, seed = sys.argv[1:]
    caller = Caller(RealDisk(), root, int(seed))
    told = os.open(results, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(CALLS):
        os.write(told, json.dumps(caller.step()).encode())


if __name__ == "__main__":
    main()
