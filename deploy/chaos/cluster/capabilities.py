"""Finds out which kinds of fault this machine allows. Every fault names the capabilities that it needs; a run leaves
out the faults that lack one, and its report says so."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from chaos.cluster.network_namespaces import INSIDE
from tidelog.extras import install_hint

HOSTS = "hosts"
DISKS = "disks"
STRACE = "strace"
DELAY = "delay"
PROXIES = "proxies"
CLOCK = "clock"
MEMORY = "memory"
SOCKETS = "sockets"
SPARK = "spark"
VERSIONS = "versions"

MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")
TRACING = Path("/proc/sys/kernel/yama/ptrace_scope")


def missing() -> dict[str, str]:
    """Return the capabilities that this machine lacks, each with the reason; empty if all faults can be done. Called
    inside the namespaces of the program's own, if there are any. Tries netem by adding and removing a delay."""
    root = os.geteuid() == 0
    found: dict[str, str] = {}
    if not root:
        found[HOSTS] = found[DISKS] = "network namespaces and mounts need root"
    elif INSIDE not in os.environ:
        found[HOSTS] = found[DISKS] = "network namespaces and mounts were not asked for: --links hosts"
    elif not (shutil.which("mkfs.ext4") and shutil.which("losetup") and Path("/dev/loop-control").exists()):
        found[DISKS] = "no loop devices or no mkfs.ext4 (apt-get install e2fsprogs mount)"
    if not shutil.which("strace"):
        found[STRACE] = "no strace (apt-get install strace)"
    elif not root and TRACING.exists() and TRACING.read_text().strip() != "0":
        found[STRACE] = f"strace may not attach to processes ({TRACING} is not 0)"
    if not shutil.which("gcc"):
        found[CLOCK] = "no gcc to build the clock that can be set (apt-get install gcc libc6-dev)"
    if HOSTS not in found:
        found[PROXIES] = "only proxies do that: --links proxies"
        for ability, command in ((DELAY, "tc"), (SOCKETS, "ss")):
            if not shutil.which(command):
                found[ability] = f"no {command} (apt-get install iproute2)"
        if DELAY not in found and not _netem():
            found[DELAY] = "the kernel has no netem; proxies do that, too: --links proxies"
    if not root or not os.access(MEMORY_GROUPS, os.W_OK):
        found[MEMORY] = "no memory cgroup (v1) that may be written"
    if not find_spec("pyspark"):
        found[SPARK] = f"no PySpark ({install_hint('spark')})"
    elif not (os.environ.get("JAVA_HOME") or shutil.which("java")):
        found[SPARK] = "no Java for Spark (apt-get install openjdk-17-jre-headless)"
    return found


def _netem() -> bool:
    command = ["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        return False
    subprocess.run(["tc", "qdisc", "del", "dev", "lo", "root"], capture_output=True, check=False)
    return True
