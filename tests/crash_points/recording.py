"""The system calls of a program that open, change, sync and name files, as ``strace`` records them.

``strace`` sees what reaches the kernel, whatever library made the call. Debian has it (``apt-get install strace``).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CALLS = (
    *("open", "openat", "openat2", "creat", "close", "dup", "dup2", "dup3", "fcntl"),
    *("write", "writev", "pwrite64", "pwritev", "pwritev2", "truncate", "ftruncate", "fallocate"),
    *("fsync", "fdatasync", "sync", "syncfs", "sync_file_range", "msync"),
    *("rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat", "unlink", "unlinkat"),
    *("mkdir", "mkdirat", "rmdir", "sendfile", "copy_file_range", "splice"),
)
"""The system calls that can change a file or a name, make it durable, or give it another descriptor."""
LONGEST_STRING = 1 << 24
"""The longest argument in bytes; ``strace`` cuts longer ones."""
_LINE = re.compile(r"(\w+)\((.*)\) += (-?\d+)")
_PIECE = re.compile(r'"(?:\\x[0-9a-f]{2})*"(\.\.\.)?')


@dataclass(frozen=True, slots=True)
class Call:
    """A system call that succeeded."""

    name: str
    arguments: tuple[str, ...]
    """The arguments as ``strace -xx`` writes them."""
    result: int

    def number(self, place: int) -> int:
        """Return an argument as a number."""
        return int(self.arguments[place], 0)

    def data(self, place: int) -> bytes:
        """Return the bytes of an argument: of a string, or of all strings in a vector."""
        pieces = _PIECE.finditer(self.arguments[place])
        return b"".join(bytes.fromhex(piece[0].strip('"').replace("\\x", "")) for piece in pieces)

    def path(self, place: int) -> str:
        """Return an argument as a path."""
        return self.data(place).decode()


def missing() -> str:
    """Return why no calls can be recorded on this machine; "" if they can."""
    if sys.platform != "linux":
        return "Linux only: the system calls are recorded with strace"
    if shutil.which("strace") is None:
        return "no strace (apt-get install strace)"
    done = subprocess.run(["strace", "-qq", "-e", "trace=none", "true"], capture_output=True, check=False)
    return "" if done.returncode == 0 else f"strace may not trace processes here: {done.stderr.decode().strip()}"


def record(command: Sequence[str], folder: Path, output: Path) -> list[Call]:
    """Run a program in ``folder`` to its end and return its calls in order. ``output`` is the file for ``strace``.
    The program must have one thread; programs that it starts are not recorded. Raises ``RuntimeError`` if it
    fails."""
    options = [
        "-qq",
        "-v",
        "-xx",
        "-s",
        str(LONGEST_STRING),
        "-e",
        f"trace={','.join(CALLS)}",
        "-e",
        "signal=none",
    ]
    traced = ["strace", *options, "-o", str(output), *command]
    done = subprocess.run(traced, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the recorded program ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    with output.open() as lines:
        return list(_parse(lines))


def _parse(lines: Iterator[str] | Sequence[str]) -> Iterator[Call]:
    for line in lines:
        found = _LINE.match(line)
        if found is None:
            raise ValueError(f"strace wrote a line that is no finished call: {line[:200]}")
        name, arguments, result = found.groups()
        if any(piece[1] for piece in _PIECE.finditer(arguments)):
            raise ValueError(f"strace has shortened an argument: {line[:200]}")
        if int(result) >= 0:
            yield Call(name, tuple(_split(arguments)), int(result))


def _split(arguments: str) -> Iterator[str]:
    """Return the arguments, which are separated by commas outside of brackets. Strings are hexadecimal and contain
    neither."""
    begin = depth = 0
    for place, character in enumerate(arguments):
        if character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        elif character == "," and not depth:
            yield arguments[begin:place].strip()
            begin = place + 1
    yield arguments[begin:].strip()
