"""Tests which ports a local cluster gets; its processes are tested in ``real``."""

from __future__ import annotations

import os
import subprocess
import sys

from tidelog.cli.local.local_cluster import free_base_port

OTHER = """
import os
os.getpid = lambda: {pid}
from tidelog.cli.local.local_cluster import free_base_port
print(free_base_port(3))
"""
"""A process that begins its search for ports where the process ``pid`` does."""


def test_two_processes_never_get_the_same_ports() -> None:
    ours = free_base_port(3)
    other = subprocess.run(
        [sys.executable, "-c", OTHER.format(pid=os.getpid())], capture_output=True, text=True, check=True
    )
    assert int(other.stdout) != ours


def test_a_process_uses_its_ports_again() -> None:
    assert free_base_port(3) == free_base_port(3)
