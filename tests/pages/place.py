"""A place where the commands and programs of a page run as they stand: a folder that looks like the repository, and
ports of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidelog.cli.local.local_cluster import free_base_port

ROOT = Path(__file__).resolve().parents[2]
CLUSTER, DEV = "tidelog cluster up ", "tidelog dev "
HANGING_S = 600.0
"""Time after which a command is given up."""
FINDINGS = ("tidelog doctor",)
"""Commands whose exit code is 1 if they find something, such as a replica that is not in sync yet."""


def blocks(text: str, language: str) -> list[str]:
    """Return the code blocks of a page that are in this language, in their order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def commands_of(block: str) -> list[str]:
    """Return the commands of a block of shell commands, without comments."""
    return [line.split("  #")[0].strip() for line in block.splitlines()]


class Place:
    """A folder that looks like the repository, with a port of its own for what the pages start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("docs", "shared"):
            (folder / name).symlink_to(ROOT / name)
        (folder / "node_modules").mkdir()
        (folder / "node_modules" / "tidelog").symlink_to(ROOT / "shared" / "js")
        self.port = free_base_port(10)
        self.url = f"ws://127.0.0.1:{self.port}"
        self.environ = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"} | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "TIDELOG_GATEWAY": self.url,
        }

    def own(self, text: str) -> str:
        """Return code of a page with this place's folder and ports."""
        text = text.replace("/tmp/", f"{self.folder}/")
        for number, port in enumerate(("9292", "9293", "8000")):
            text = text.replace(port, str(self.port + number))
        text = text.replace(CLUSTER, f"{CLUSTER}--base-port {self.port} ")
        return text.replace(DEV, f"{DEV}--port {self.port} ")

    def run(self, *command: str | Path, codes: tuple[int, ...] = (0,)) -> str:
        """Run a command here and return what it prints. It must end with one of these codes."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=HANGING_S,
            check=False,
        )
        assert done.returncode in codes, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def shell(self, command: str) -> str:
        """Run a line of a page as a shell does, and return what it prints."""
        codes = (0, 1) if command in FINDINGS else (0,)
        return self.run("bash", "-euo", "pipefail", "-c", self.own(command), codes=codes)


@contextmanager
def started(place: Place, command: str, ready: bytes) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command of a page in the background, from when it has printed a line with ``ready``."""
    process = subprocess.Popen(
        place.own(command).split(),
        cwd=place.folder,
        env=place.environ | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        assert process.stdout is not None
        said = b""
        while ready not in said:
            line = process.stdout.readline()
            assert line, said.decode()
            said += line
        yield process
    finally:
        process.kill()
        process.communicate()


def promise(condition: str) -> str:
    """Return a promise that is fulfilled when the condition holds, which is checked whenever the page changes."""
    return f"""new Promise((resolve) => {{
        const find = (id) => document.getElementById(id).textContent;
        const look = () => ({condition}) && resolve(true);
        new MutationObserver(look).observe(document.body, {{subtree: true, childList: true, characterData: true}});
        look();
    }})"""
