"""From nothing to a record: how long a new user waits, download included.

    make dist
    .venv/bin/python deploy/bench/first_record.py dist/*.whl [--python python3.12 …] [--uv uv] [--json FILE]

For each Python: a new virtual environment, the wheel with its dependencies from PyPI and no cache, ``tidelog dev``,
then the commands that create a topic, send a record and read it. With ``--uv`` besides: ``uvx --from WHEEL tidelog``
with an empty cache. Every program starts when the one before has ended; ``dev`` counts until it accepts writes. The
network has a part in these figures: those of one run are to be compared with each other.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from tidelog.cli.local.local_cluster import free_base_port

RECORD = b"hello\n"
READY = b"Ctrl-C ends it"
"""What ``tidelog dev`` prints last when the cluster accepts writes."""


@dataclass(frozen=True, slots=True)
class Waits:
    """What one way of installing took, in seconds, each from the end of the one before."""

    way: str
    environment: float
    """A new virtual environment."""
    installation: float
    ready: float
    """Until ``tidelog dev`` accepts writes; with uvx the installation is in it."""
    record: float
    """A topic is created, a record is sent, and it is read."""

    @property
    def total(self) -> float:
        """All of it."""
        return self.environment + self.installation + self.ready + self.record


class Clock:
    """Takes the times between steps."""

    def __init__(self) -> None:
        self._at = time.perf_counter()

    def lap(self) -> float:
        """Return the seconds since the last call, or since the start."""
        now = time.perf_counter()
        took, self._at = now - self._at, now
        return took


def with_pip(python: str, wheel: Path, folder: Path) -> Waits:
    """Measure a virtual environment of that Python with the wheel."""
    clock = Clock()
    run([python, "-m", "venv", "env"], folder)
    environment = clock.lap()
    run(["env/bin/pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check", wheel], folder)
    installation = clock.lap()
    version = run(["env/bin/python", "-c", "import platform; print(platform.python_version())"], folder).decode()
    clock.lap()
    ready, record = first_record(["env/bin/tidelog"], folder, clock)
    return Waits(f"pip, Python {version.strip()}", environment, installation, ready, record)


def with_uvx(uv: str, wheel: Path, folder: Path) -> Waits:
    """Measure ``uvx`` with an empty cache: the first command installs what the others find."""
    uvx = [uv, "tool", "run", "--quiet", "--cache-dir", "cache", "--from", str(wheel), "tidelog"]
    ready, record = first_record(uvx, folder, Clock())
    return Waits("uvx", 0.0, 0.0, ready, record)


def first_record(tidelog: list[str], folder: Path, clock: Clock) -> tuple[float, float]:
    """Start ``tidelog dev``, and send and read a record by command. Return the seconds until the cluster accepts
    writes, and those from then until the record is seen."""
    port = free_base_port(1)
    gateway = ["--gateway", f"ws://127.0.0.1:{port}"]
    command = [*tidelog, "dev", "--data", "data", "--port", str(port)]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, env=environment()) as dev:
        try:
            assert dev.stdout is not None
            if not any(READY in line for line in dev.stdout):
                raise click.ClickException(f"{' '.join(command)} ended with code {dev.wait()}")
            ready = clock.lap()
            run([*tidelog, "topics", "create", "hello", *gateway], folder)
            run([*tidelog, "produce", "hello", "--file", "-", *gateway], folder, RECORD)
            seen = run([*tidelog, "consume", "hello", "--from", "earliest", "--max", "1", *gateway], folder)
            record = clock.lap()
        finally:
            dev.terminate()
    if seen != RECORD:
        raise click.ClickException(f"consume printed {seen!r}, not {RECORD!r}")
    return ready, record


def run(command: list[str | Path], folder: Path, stdin: bytes = b"") -> bytes:
    """Run a command in that folder, and return what it prints. Raises ``click.ClickException`` if it fails."""
    done = subprocess.run(command, cwd=folder, input=stdin, capture_output=True, env=environment(), check=False)
    if done.returncode:
        raise click.ClickException(f"{' '.join(map(str, command))}: {done.stderr.decode()}")
    return done.stdout


def environment() -> dict[str, str]:
    """Return this process's environment without what would lead a program to another installation."""
    return {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


@click.command(help=__doc__)
@click.argument("wheel", type=click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path))
@click.option("--python", "pythons", multiple=True, default=("python3",), help="An interpreter; repeatable.")
@click.option("--uv", default="", help="The program uv; without it uvx is left out.")
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures there, too.")
def main(wheel: Path, pythons: tuple[str, ...], uv: str, file: Path | None) -> None:
    found = []
    for python in (*pythons, *([""] if uv else [])):
        with tempfile.TemporaryDirectory() as folder:
            waits = with_pip(python, wheel, Path(folder)) if python else with_uvx(uv, wheel, Path(folder))
        found.append(waits)
        click.echo(
            f"{waits.way}: {waits.total:.1f} s (environment {waits.environment:.1f}, installation"
            f" {waits.installation:.1f}, until dev is ready {waits.ready:.1f}, until the record is seen"
            f" {waits.record:.1f})"
        )
    if file:
        file.write_text(json.dumps([asdict(waits) for waits in found], indent=2) + "\n")


if __name__ == "__main__":
    main()
