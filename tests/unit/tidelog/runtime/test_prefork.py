"""The starter: processes that are forked from one which has loaded what they run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tidelog.runtime.operating_system import process_state
from tidelog.runtime.prefork import ProcessSpec, fork_all

TELLS = """
import gc, json, os, random, sys
loaded_by = os.getpid()
def run():
    told = {
        "loaded_by": loaded_by, "pid": os.getpid(), "session": os.getsid(0), "arguments": sys.argv[1:],
        "random": random.random(), "read": sys.stdin.read(), "name": open("/proc/self/comm").read().strip(),
        "frozen": gc.get_freeze_count(), "collects": gc.isenabled(), "handles": os.listdir("/proc/self/fd"),
    }
    print(json.dumps(told))
    sys.exit("that was all")
"""
INTERRUPTED = """
import os, sys
from tidelog.runtime.prefork import ProcessSpec, fork_all
orders = [ProcessSpec(name, name, [], f"{sys.argv[1]}/{name}.log") for name in ("tells", "interrupts")]
os.environ["CALLER"] = str(os.getpid())
try:
    fork_all(orders, print)
except KeyboardInterrupt:
    print("interrupted")
    os.wait()
"""
INTERRUPTS = """
import os, signal
os.kill(int(os.environ["CALLER"]), signal.SIGINT)
signal.pause()
"""


class Services:
    """Services of a few lines, and where they log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: dict[int, tuple[int, int]] = {}

    def write(self, module: str, text: str) -> None:
        (self.folder / module).mkdir()
        (self.folder / module / "__main__.py").write_text(text)

    def order(self, name: str, module: str) -> ProcessSpec:
        return ProcessSpec(name, module, ["--config", name], str(self.folder / f"{name}.log"))

    def start(self, *orders: ProcessSpec) -> None:
        fork_all(list(orders), lambda number, pid, started: self.told.update({number: (pid, started)}))

    def said(self, name: str) -> list[str]:
        return (self.folder / f"{name}.log").read_text().splitlines()


@pytest.fixture
def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Services:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    made = Services(tmp_path)
    made.write("tells", TELLS)
    return made


def test_each_process_is_as_if_its_own_command_had_started_it(services: Services) -> None:
    services.start(services.order("one", "tells"), services.order("two", "tells"))
    assert sorted(services.told) == [0, 1]
    told: dict[str, Any] = {}
    for number, name in enumerate(("one", "two")):
        pid, started = services.told[number]
        assert process_state(pid)[1] == started
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
        line, ending = services.said(name)
        told[name] = json.loads(line)
        assert ending == "that was all"
        assert told[name]["pid"] == told[name]["session"] == pid
        assert told[name]["arguments"] == ["--config", name]
        assert (told[name]["name"], told[name]["read"]) == (name, "")
        assert told[name]["handles"] == ["0", "1", "2", "3"], "and the listing itself"
    assert told["one"]["random"] != told["two"]["random"]


def test_modules_of_a_service_are_loaded_once_and_kept_out_of_collections(services: Services) -> None:
    services.start(services.order("one", "tells"), services.order("two", "tells"))
    told = []
    for number, name in enumerate(("one", "two")):
        os.waitpid(services.told[number][0], 0)
        told.append(json.loads(services.said(name)[0]))
    assert told[0]["loaded_by"] == told[1]["loaded_by"]
    assert told[0]["loaded_by"] not in (told[0]["pid"], told[1]["pid"], os.getpid())
    assert all(each["frozen"] > 1000 and each["collects"] for each in told)


def test_one_that_cannot_be_loaded_says_why_in_its_log(services: Services) -> None:
    services.write("broken", "import nosuch\n")
    services.start(*(services.order(name, name) for name in ("tells", "broken")), services.order("late", "tells"))
    assert list(services.told) == [0]
    os.waitpid(services.told[0][0], 0)
    assert services.said("broken")[-1] == "ModuleNotFoundError: No module named 'nosuch'"
    assert not (services.folder / "late.log").exists()
    assert services.said("tells")[-1] == "that was all"


def test_a_log_is_added_to(services: Services) -> None:
    (services.folder / "one.log").write_text("earlier\n")
    services.start(services.order("one", "tells"))
    os.waitpid(services.told[0][0], 0)
    assert services.said("one")[0] == "earlier"


def test_nothing_to_start_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nosuch")
    fork_all([], print)


def test_an_interrupted_start_knows_all_processes_that_were_started(services: Services) -> None:
    services.write("interrupts", INTERRUPTS)
    command = [sys.executable, "-c", INTERRUPTED, str(services.folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    started, interrupted = done.stdout.splitlines()
    assert interrupted == "interrupted"
    assert json.loads(services.said("tells")[0])["pid"] == int(started.split()[1])
