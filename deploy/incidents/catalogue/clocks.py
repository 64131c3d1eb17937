"""Incidents of clocks: that of one server is off by minutes; its twin is the clock of the user's own machine."""

from __future__ import annotations

from incidents import hardware
from incidents.incident import ClusterPlan, Incident
from incidents.stage import Stage


def _minutes_off(stage: Stage) -> int:
    """Draw by how many seconds a clock is off: three to fifteen minutes, to either side."""
    return stage.random.choice((-1, 1)) * stage.random.randrange(180, 900)


async def shift_server(stage: Stage) -> None:
    """Set the clock of a replica server."""
    server = stage.facts["clock.server"] = stage.random.choice(stage.servers())
    hardware.set_clock(stage.folder(server), _minutes_off(stage))


async def set_server(stage: Stage) -> None:
    """Set it right again."""
    hardware.set_clock(stage.folder(stage.facts["clock.server"]), 0)


async def shift_user(stage: Stage) -> None:
    """Set the clock of the machine at which the user works."""
    folder = stage.facts["clock.user"] = stage.cluster.folder / "user"
    folder.mkdir()
    hardware.prepare(folder)
    hardware.set_clock(folder, _minutes_off(stage))
    stage.environment.update(hardware.variables(stage.cluster.libraries, folder))


async def set_user(stage: Stage) -> None:
    """Set it right again."""
    hardware.set_clock(stage.facts["clock.user"], 0)


SYMPTOM = "Times that Tidelog shows are minutes away from the clock on the wall."
PLAN = ClusterPlan(controllers=1, hardware=True)
INCIDENTS = (
    Incident(
        name="clock-off",
        symptom=SYMPTOM,
        cause="clock-off",
        plant=shift_server,
        mend=set_server,
        twin="clock-of-user-off",
        plan=PLAN,
        strikes=frozenset({"clocks"}),
        alert="TidelogClockOff",
    ),
    Incident(
        name="clock-of-user-off",
        symptom=SYMPTOM,
        cause="client-clock-off",
        plant=shift_user,
        mend=set_user,
        plan=PLAN,
        strikes=frozenset({"clocks"}),
    ),
)
