"""Faults of processes that die, hang, are starved of resources, or get more requests than they can serve."""

from __future__ import annotations

import resource
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import trio
from chaos.cluster import capabilities, clocks
from chaos.cluster.cluster import SESSION_S
from chaos.cluster.supervisor import Stage, Unfit
from chaos.faults.registry import Begin, fault

HOUR_S = 3600
OOM_ROOM = 1 << 20
"""Bytes that a process may still allocate before the kernel kills it."""
FLUSHES = "fsync,fdatasync"
"""The system calls that sync a file, as strace names them."""


async def _killed(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    await stage.kill(target)
    yield
    await stage.start(target)


async def _paused(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    stage.cluster.pause(target)
    yield
    stage.cluster.resume(target)


for _name, _strikes, _who in (
    ("kill-leader", "leader", "the server that leads a partition"),
    ("kill-follower", "follower", "a server that leads least"),
    ("kill-active", "active", "the active controller"),
    ("kill-controller", "controller", "one of the controllers"),
    ("kill-gateway", "gateway", "a gateway, its clients' connections with it"),
):
    fault(_name, f"kill -9 of {_who}", _strikes)(_killed)

for _times in (0.5, 1.5, 10):
    for _strikes in ("leader", "follower", "active", "gateway"):
        fault(
            f"pause-{_strikes}-{_times:g}",
            f"SIGSTOP of the {_strikes} for {_times:g} times the session time-out of {SESSION_S:g} s: "
            "its connections stay, nothing answers, and then it goes on as if nothing had been",
            _strikes,
            hold=(_times * SESSION_S, _times * SESSION_S),
        )(_paused)


@fault("kill-all", "kill -9 of every process of the cluster at once", "all")
async def _kill_all(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    await stage.kill(*stage.everyone())
    yield
    await stage.start(*stage.everyone())


@fault("kill-majority", "kill -9 of two replica servers and two controllers at once", "all")
async def _kill_majority(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    gone = [*random.sample(stage.nodes("replica"), 2), *random.sample(stage.nodes("controller"), 2)]
    await stage.kill(*gone)
    yield
    await stage.start(*gone)


def _without_controllers(beside: str) -> Begin:
    async def begin(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
        gone = random.sample(stage.nodes("controller"), 2)
        await stage.kill(*gone)
        if beside == "follower":
            await _restarted(stage, await stage.follower(random))
        elif beside == "gateway":
            await _restarted(stage, random.choice(stage.nodes("gateway")))
        yield
        await stage.start(*gone)

    return begin


async def _restarted(stage: Stage, node: str) -> None:
    """Kill and start a process after every session has expired. It serves no requests before the controllers are
    back."""
    await trio.sleep(SESSION_S + 1.0)
    await stage.kill(node)
    await stage.start(node)


for _beside, _words in (
    ("", "leaders go on while their voters confirm them"),
    ("follower", "and a follower is killed and started again meanwhile: what it follows stops until they are back"),
    ("gateway", "and a gateway is killed and started again meanwhile: its clients go to the other one"),
):
    fault(
        f"controllers-majority-{_beside}".removesuffix("-"),
        f"kill -9 of two of three controllers, for longer than a session lasts; {_words}",
        "all",
        hold=(10.0, 20.0),
    )(_without_controllers(_beside))


@fault("rolling-restart", "every process is stopped in order (SIGTERM) and started again, one after the other", "all")
async def _rolling(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    for node in stage.everyone():
        stage.down[node] += 1
        await stage.do(stage.cluster.terminate, node)
        await stage.start(node)
        await stage.wait_whole()
    yield


def _killed_at(calls: str) -> Begin:
    async def begin(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
        async with stage.traced(target, f"{calls}:signal=KILL:when={random.randint(1, 20)}"):
            yield

    return begin


for _name, _calls in (("flush", FLUSHES), ("write", "pwrite64,write"), ("rename", "rename,unlink")):
    for _strikes in ("leader", "active"):
        fault(
            f"crash-{_strikes}-{_name}",
            f"the process of the {_strikes} is killed exactly when it enters {_calls.replace(',', ' or ')}, the "
            "first to the twentieth time from now (strace)",
            _strikes,
            needs=(capabilities.STRACE,),
        )(_killed_at(_calls))


@fault(
    "flush-fails",
    "a flush of the leader's server fails with EIO (strace); it may not acknowledge, and has to restart",
    "leader",
    needs=(capabilities.STRACE,),
)
async def _flush_fails(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    async with stage.traced(target, f"{FLUSHES}:error=EIO:when={random.randint(1, 10)}"):
        yield


@fault(
    "flush-slow",
    "every flush of a follower's server takes 0.3 s longer (strace)",
    "follower",
    needs=(capabilities.STRACE,),
    hold=(3.0, 8.0),
)
async def _flush_slow(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    async with stage.traced(target, f"{FLUSHES}:delay_enter=300000"):
        yield


@fault(
    "flush-stalls",
    "every flush of the leader's server takes 6 s longer (strace): longer than it may go on leading",
    "leader",
    needs=(capabilities.STRACE,),
    hold=(6.0, 10.0),
)
async def _flush_stalls(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    async with stage.traced(target, f"{FLUSHES}:delay_enter=6000000"):
        yield


@fault(
    "clock-jumps",
    "the wall clock of a replica server jumps an hour ahead or back, and later home again",
    "replica",
    needs=(capabilities.CLOCK,),
    part="clock",
)
async def _clock_jumps(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    file = stage.cluster.clock_file(target)
    clocks.set_clock(file, random.choice((-HOUR_S, HOUR_S)))
    yield
    clocks.set_clock(file, 0)


def _descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@fault(
    "no-descriptors",
    "a replica server may open no further file and no further connection (prlimit)",
    "replica",
)
async def _no_descriptors(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    pid = stage.cluster.get(target).pid
    try:
        used = _descriptors(pid)
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, before[1]))
    except (FileNotFoundError, ProcessLookupError) as error:
        raise Unfit(f"{target} is not there") from error
    yield
    if stage.cluster.get(target).pid == pid and stage.cluster.get(target).is_alive():
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@fault(
    "out-of-memory",
    "the kernel grants a replica server no further memory (cgroup), and ends it when it needs some",
    "replica",
    needs=(capabilities.MEMORY,),
    hold=(2.0, 6.0),
)
async def _out_of_memory(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    group = capabilities.MEMORY_GROUPS / f"tidelog-chaos-{stage.cluster.cluster}-{target}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(OOM_ROOM))
        stage.down[target] += 1
        (group / "cgroup.procs").write_text(str(stage.cluster.get(target).pid))
        yield
        await stage.do(stage.cluster.kill, target)
    finally:
        with trio.CancelScope(shield=True):
            await stage.do(stage.cluster.kill, target)
            group.rmdir()
    await stage.start(target)


@fault(
    "overload",
    "the producers send as fast as they can; when they stop, everything is to be as before",
    "gateway",
    hold=(4.0, 8.0),
    part="load",
)
async def _overload(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    stage.overload(True)
    yield
    stage.overload(False)


@fault("hang-and-kill", "the leader's server hangs for 2 s and is killed then: nothing of it is answered", "leader")
async def _hang_and_kill(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    stage.cluster.pause(target)
    await trio.sleep(2.0)
    await stage.kill(target)
    yield
    await stage.start(target)
