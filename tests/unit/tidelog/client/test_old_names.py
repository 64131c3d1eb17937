"""The names that methods of ``Log`` had before administration stood behind attributes: they warn, and work. Tests
``client/log.py``."""

from __future__ import annotations

from operator import attrgetter
from typing import Any
from unittest.mock import MagicMock

import pytest
import tidelog
import tidelog.sync
from support.fake_gateway import FakeCluster
from support.gateway_thread import served
from tidelog.client.admin.old_names import CALLED, OLD_NAMES

FACES: tuple[Any, ...] = (tidelog.Log, tidelog.sync.Log)
LOGS: tuple[Any, ...] = (tidelog.Log(MagicMock(), MagicMock()), tidelog.sync.Log(MagicMock()))
"""One of each, without a connection."""


@pytest.mark.parametrize("log", LOGS, ids=["asynchronous", "blocking"])
def test_the_replacement_of_every_old_name_exists(log: Any) -> None:
    for new in (*OLD_NAMES.values(), *(f"{part}.{method}" for part, method in CALLED.items())):
        assert callable(attrgetter(new)(log)), new


@pytest.mark.parametrize("face", FACES, ids=["asynchronous", "blocking"])
def test_every_old_name_says_where_its_method_is_now(face: Any) -> None:
    for old, new in OLD_NAMES.items():
        assert f"``log.{new}``" in getattr(face, old).__doc__


def test_an_old_name_of_the_blocking_client_warns_and_works() -> None:
    with served() as (_, url), tidelog.sync.connect(url) as log:
        old: Any = log
        with pytest.warns(
            DeprecationWarning, match=r"log\.create_topic\(\) is now log\.topics\.create\(\)"
        ) as caught:
            topic = old.create_topic("new", partitions=2)
        assert caught[0].filename == __file__, "the warning names the line of the caller"
        assert topic == log.topics.describe("new")
        with pytest.warns(DeprecationWarning, match=r"log\.topics\(\) is now log\.topics\.list\(\)"):
            assert old.topics() == log.topics.list()


async def test_an_old_name_of_the_asynchronous_client_warns_and_works() -> None:
    cluster = FakeCluster()
    cluster.add_topic("orders", 1)
    async with cluster.gateways() as [url], tidelog.connect(url) as log:
        old: Any = log
        with pytest.warns(DeprecationWarning, match=r"log\.describe\(\) is now log\.topics\.describe\(\)"):
            assert await old.describe("orders") == await log.topics.describe("orders")
        with pytest.warns(DeprecationWarning, match=r"log\.topics\(\) is now log\.topics\.list\(\)"):
            assert await old.topics() == await log.topics.list()
