"""Set the thermostats of rooms to what a topic says: each room gets "night" and later "morning".

Symptom: some mornings a room stays cold, after an instance hung for a while.
Bug: a write has no version. An instance that was paused for longer than its session, and whose partition another one
has taken over, wakes up and overwrites a later value with its own.
Report: "Lease-Based Distributed Locks Without Illusions: Fencing Token Playbook",
https://velobot-wiki.pages.dev/article/software/lease-locks-fencing-token-playbook/ (the failure mode, and the token)
"""

import tidelog
import trio
from tidelog.testing import World

from buggy.shop import ORDERS, place_orders

ROOMS = ORDERS // 2
OPTIONS = tidelog.GroupOptions(session_timeout_s=10)
thermostats: dict[int, tuple[int, str]] = {}
"""By room: the offset of the record that has set it, and the value."""


async def set_rooms(address: str, versions: bool) -> None:
    """Set the rooms. ``versions``: whether a room refuses a value from an earlier record than its own."""
    async with (
        tidelog.connect(address) as log,
        log.consume("orders", group="heating", group_options=OPTIONS) as settings,
    ):
        async for setting in settings:
            room, value = int(setting.value) % ROOMS, "night" if int(setting.value) < ROOMS else "morning"
            await trio.sleep(0.2)  # the radio is slow
            if not versions or setting.offset >= thermostats.get(room, (-1, ""))[0]:
                thermostats[room] = setting.offset, value


async def buggy(address: str) -> None:
    await set_rooms(address, versions=False)


async def mended(address: str) -> None:
    await set_rooms(address, versions=True)


def cold_room() -> str | None:
    """Return the first room that is not set to "morning"; None if there is none."""
    found = ((room, thermostats.get(room, (-1, "nothing"))[1]) for room in range(ROOMS))
    return next((f"room {room} is set to {value}" for room, value in found if value != "morning"), None)


def check(world: World, program) -> None:
    thermostats.clear()
    world.topic("orders", partitions=2)
    world.program(place_orders)
    world.program(program, copies=2, ends=False)
    world.invariant(lambda outcome: cold_room())
    world.run()
