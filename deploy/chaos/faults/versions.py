"""Faults in which a process changes to another version of the program, and back, as in an unfinished upgrade."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

from chaos.cluster import capabilities
from chaos.cluster.supervisor import Stage
from chaos.faults.registry import fault


async def _other_version(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    stage.down[target] += 1
    await stage.do(stage.cluster.terminate, target)
    stage.cluster.change_version(target)
    await stage.start(target)
    yield


for _role in ("controller", "replica", "gateway"):
    fault(
        f"other-version-{_role}",
        f"a {_role} is stopped in order (SIGTERM), and started in the other of the two versions",
        _role,
        needs=(capabilities.VERSIONS,),
    )(_other_version)
