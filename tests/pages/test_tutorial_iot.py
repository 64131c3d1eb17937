"""The tutorial of the thousand devices: all its files and commands, with the loss of a gateway. The test's own is the
number of readings that each device sends."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from pages.place import Place, started
from pages.tutorial import Tutorial
from real.running import HEAL_S, until
from tidelog.cli.local.local_cluster import LocalCluster

pytestmark = pytest.mark.real
PAGE = Tutorial("tutorials/iot.md")
DEVICES = 1000
FORBIDDEN = "tidelog consume readings --from earliest --to-end --token-file site-3.token"
TRY, WATCH, SEND, COUNT = "python devices.py 3", "python alarms.py", "python devices.py", "python count.py"
TAKE, LAG, KILL = map(PAGE.command, ("python -c ", "tidelog groups ", "tidelog cluster kill "))
REVOKE = PAGE.command("tidelog tokens revoke ")
RESTART = PAGE.command("tidelog cluster restart g1 ")
BEGINNING, CLEAN_UP = PAGE.commands[: PAGE.commands.index(TRY)], PAGE.commands[-3:]
READINGS = 5
"""Of each device, while a gateway is killed."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """The place of the tutorial; the cluster that was started there is ended."""
    place = Place(tmp_path)
    PAGE.save_files(place)
    yield place
    if (tmp_path / "tidelog-iot" / "cluster.json").exists():
        LocalCluster.load(tmp_path / "tidelog-iot").stop()


def test_the_test_knows_every_command_of_the_page() -> None:
    rest = [TRY, TAKE, FORBIDDEN, WATCH, SEND, LAG, KILL, RESTART, COUNT, REVOKE, TRY]
    assert [*BEGINNING, *rest, *CLEAN_UP] == PAGE.commands


def acknowledged(said: str) -> int:
    """Return the number of readings that the devices report at the end."""
    (number,) = re.findall(r"^(\d+) readings are acknowledged, the slowest after ", said, re.M)
    return int(number)


async def wait_caught_up(place: Place) -> None:
    """Wait until the group has committed the position behind every reading."""

    async def is_caught_up() -> bool:
        group = json.loads(await trio.to_thread.run_sync(place.shell, f"{LAG} -o json"))
        return all(part["lag"] == 0 for part in group["partitions"])

    await until(is_caught_up)


def test_a_thousand_devices_lose_nothing_with_a_gateway(place: Place) -> None:
    for command in BEGINNING:
        place.shell(command)
    total = acknowledged(place.shell(TRY))
    place.shell(TAKE)
    refused = place.run("bash", "-c", f"{place.own(FORBIDDEN)} 2>&1", codes=(1,))
    assert "[FORBIDDEN]" in refused and "site-3 may not read topic:readings" in refused
    with (
        started(place, WATCH, b"watching") as first,
        started(place, WATCH, b"watching") as second,
        started(place, f"{SEND} {READINGS}", b" readings are acknowledged") as devices,
    ):
        assert devices.stdout is not None
        while devices.stdout.readline().startswith(b"0 "):
            continue
        assert " lag " in place.shell(LAG)
        place.shell(KILL)
        total += acknowledged(devices.stdout.read().decode())
        assert devices.wait(HEAL_S) == 0
        place.shell(RESTART)
        trio.run(wait_caught_up, place)
        counted = place.shell(COUNT).splitlines()
        for member in (first, second):
            member.send_signal(signal.SIGINT)
            assert member.wait(HEAL_S) == 0
    assert total == DEVICES * (3 + READINGS)
    assert counted[:2] == [
        f"{total} readings, 0 of them twice",
        f"{DEVICES} devices, {DEVICES} with their last state",
    ]
    assert re.fullmatch(r"[1-9]\d* hot readings, 0 of them without an alarm", counted[2])
    place.shell(REVOKE)
    said = place.shell(TRY)
    assert "site-3 ends: [UNAUTHENTICATED]" in said and acknowledged(said) == (DEVICES - 50) * 3
    for command in CLEAN_UP:
        place.shell(command)
    assert not [*place.folder.glob("*.token"), *place.folder.glob("*.json"), *place.folder.glob("tidelog-iot")]
