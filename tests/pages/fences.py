"""The fenced programs and commands of the pages: which there are, and how a block of shell commands is divided."""

from __future__ import annotations

import re
import subprocess
import textwrap
from dataclasses import dataclass
from functools import cache

from pages.place import ROOT

PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    if not path.is_relative_to(ROOT / "docs" / "lab") and not path.is_relative_to(ROOT / "docs" / "decisions")
)
"""The pages whose fences are run."""
TEXT = ("", "text")
"""Languages of fences that are no program: output, pictures, formats."""
OPENING = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.M | re.S)


@dataclass(frozen=True)
class Fence:
    """A fenced program or block of commands: the ``number``-th of its page, counted from 1."""

    page: str
    number: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}, fence {self.number} ({self.language}): {self.code.splitlines()[0]}"


@cache
def fences(page: str) -> tuple[Fence, ...]:
    """Return the programs and blocks of commands of a page, in their order."""
    found = OPENING.findall((ROOT / page).read_text())
    programs = [(language, textwrap.dedent(code)) for _, language, code in found if language not in TEXT]
    return tuple(Fence(page, number, *program) for number, program in enumerate(programs, 1))


@cache
def statements(block: str) -> tuple[str, ...]:
    """Return the statements of a block of shell commands: each command line with the lines that continue it, without
    lines that are comments."""
    found, begun = [], ""
    for line in block.splitlines():
        begun += f"{line}\n"
        if not begun.strip() or (begun == f"{line}\n" and line.lstrip().startswith("#")):
            begun = ""
        elif not line.endswith("\\") and _is_complete(begun):
            found.append(begun.strip())
            begun = ""
    assert not begun, f"the block ends within a command: {begun}"
    return tuple(found)


def _is_complete(text: str) -> bool:
    """Whether bash finds no open quote, loop or condition."""
    return subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False).returncode == 0
