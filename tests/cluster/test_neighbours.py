"""A tenant with a token and few rights, beside another one on the same cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import count, islice
from pathlib import Path

import pytest
import tidelog
import trio
from tidelog.client.core.partitioner import partition_of
from tidelog.errors import TidelogError
from tidelog.net.link import PROTOCOL_VERSION, Link, connect_link
from tidelog.types import GROUPS, TRANSACTIONS, Acl
from tidelog.wire.messages import (
    BeginTransaction,
    CommitOffsets,
    CreateTopic,
    DescribeGroup,
    DescribeGroupAnswer,
    FetchOffsets,
    FetchOffsetsAnswer,
    GroupPosition,
    GrowTopic,
    Hello,
    JoinGroup,
    JoinGroupAnswer,
    Metadata,
    MetadataAnswer,
    Subscribe,
    TopicShare,
)
from tidelog_controller.config import ControllerSettings, OwnerSettings
from tidelog_replica.config import ReplicaSettings, TransactionSettings

from .harness import QUICK_GROUPS, Cluster, connected, running
from .operating import wait

OPEN_TO_RULES = {"authorization": True, "superusers": ("anonymous",)}
"""Who shows no token may do everything."""

TOKENS: dict[str, str] = {}
"""Of the tenants of the present test."""


@asynccontextmanager
async def tenants(
    folder: Path,
    rights: Mapping[str, tuple[str, ...]],
    gateway: Mapping[str, object] | None = None,
    replica: ReplicaSettings | None = None,
    controller: Mapping[str, object] | None = None,
) -> AsyncIterator[tuple[Cluster, dict[str, Link]]]:
    """A cluster of one replica server, and a link of each principal, who has these rights (``read topic:orders``)."""
    settings: dict[str, dict[str, object]] = {
        "g1": {**OPEN_TO_RULES, **(gateway or {})},
        "c1": {**(controller or {})},
    }
    if replica is not None:
        settings["r1"] = {"settings": replica}
    async with running(folder, replicas=1, settings=settings) as cluster:
        TOKENS.clear()
        async with tidelog.connect(cluster.gateway) as log:
            for name, allowed in rights.items():
                await log.access.alter_acls([Acl(name, *right.split(" ")) for right in allowed])
                TOKENS[name] = await log.access.create_token(name)
        links: dict[str, Link] = {}
        async with trio.open_nursery() as nursery:
            for name in rights:
                await wait(partial(_is_known, cluster, name))
                links[name] = await nursery.start(_link, cluster, name)
            yield cluster, links
            nursery.cancel_scope.cancel()


async def _is_known(cluster: Cluster, name: str) -> bool:
    """The gateway has heard of the token."""
    try:
        await _try(cluster, name)
    except TidelogError:
        return False
    return True


async def _try(cluster: Cluster, name: str) -> None:
    """A connection, and no more."""
    hello = Hello(PROTOCOL_VERSION, "client", name, token=TOKENS[name])
    async with connect_link(cluster.transport, cluster.gateway, hello, lambda *_: None):
        pass


async def _link(cluster: Cluster, name: str, task_status: trio.TaskStatus[Link]) -> None:
    hello = Hello(PROTOCOL_VERSION, "client", name, token=TOKENS[name])
    async with connect_link(cluster.transport, cluster.gateway, hello, lambda *_: None) as link:
        task_status.started(link)
        await trio.sleep_forever()


async def code_of(link: Link, message: object) -> str:
    """The code with which it is refused; "": it is not."""
    try:
        await link.call(message, 15)  # type: ignore[arg-type]
    except TidelogError as error:
        return error.code
    return ""


async def test_a_member_learns_nothing_of_a_topic_that_it_may_not_read_and_commits_nothing_for_it(
    tmp_path: Path,
) -> None:
    rights = {"mallory": ("group group:*", "read topic:own")}
    async with tenants(tmp_path, rights) as (cluster, links):
        mallory = links["mallory"]
        async with connected(cluster) as admin:
            await admin.create("own", replication_factor=1)
            secret = await admin.create("secret", 3, replication_factor=1)
            assert await code_of(mallory, JoinGroup("g", "m", ("own", "secret"))) == "FORBIDDEN"
            joined = await mallory.call(JoinGroup("g", "m", ("own",)), 15)
            assert isinstance(joined, JoinGroupAnswer) and [s.topic for s in joined.assignment] == ["own"]
            for topic_id in (secret, "there is none"):  # both alike: nobody learns of a topic that way
                at = (GroupPosition(topic_id, 0, 7),)
                assert await code_of(mallory, CommitOffsets("other", at)) == "UNKNOWN_TOPIC"
                asked = FetchOffsets("other", (TopicShare(topic_id, (0,)),))
                assert await code_of(mallory, asked) == "UNKNOWN_TOPIC"
            await admin.link.call(CommitOffsets("both", (GroupPosition(secret, 0, 7),)), 15)
            await admin.link.call(JoinGroup("theirs", "x", ("secret",)), 15)
            told = await mallory.call(FetchOffsets("both"), 15)
            assert isinstance(told, FetchOffsetsAnswer) and not told.positions
            described = await mallory.call(DescribeGroup("theirs"), 15)
            assert isinstance(described, DescribeGroupAnswer)
            assert [(m.topics, m.assignment, m.target) for m in described.members] == [((), (), ())]
            described = await mallory.call(DescribeGroup("both"), 15)
            assert isinstance(described, DescribeGroupAnswer) and not described.positions


async def test_connections_and_subscriptions_of_a_tenant_are_bounded(tmp_path: Path) -> None:
    rights = {"mallory": ("read topic:*",), "alice": ("read topic:*",)}
    bounds = {"principal_max_connections": 3, "principal_max_subscriptions": 5}
    async with tenants(tmp_path, rights, gateway=bounds) as (cluster, links):
        async with connected(cluster) as admin:
            topic_id = await admin.create("orders", replication_factor=1)
        found = [await code_of(links["mallory"], Subscribe(n, topic_id, 0, 0, 0)) for n in range(6)]
        assert found == [""] * 5 + ["LIMIT_EXCEEDED"]
        assert await code_of(links["alice"], Subscribe(1, topic_id, 0, 0, 0)) == ""
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                await nursery.start(_link, cluster, "mallory")
            with pytest.raises(TidelogError) as refused:
                await _try(cluster, "mallory")
            assert refused.value.code == "QUOTA_EXCEEDED"
            assert refused.value.detail["setting"] == "principal_max_connections"
            await _try(cluster, "alice")
            nursery.cancel_scope.cancel()


async def test_one_tenants_groups_and_transactions_leave_room_for_those_of_another(tmp_path: Path) -> None:
    """All names fall on one partition of the coordinators, and say that they are the other's."""
    settings = ReplicaSettings(
        shutdown_s=0.0,
        groups=replace(QUICK_GROUPS, max_groups=30, principal_max_groups=20, principal_max_members=3),
        transactions=TransactionSettings(max_transactions=30, principal_max_applications=20, principal_max_open=25),
    )
    rights = dict.fromkeys(("mallory", "alice"), ("read topic:*", "group group:*", "transact app:*"))
    async with tenants(tmp_path, rights, replica=settings) as (cluster, links):
        mallory, alice = links["mallory"], links["alice"]
        async with connected(cluster) as admin:
            at = (GroupPosition(await admin.create("orders", replication_factor=1), 0, 7),)
            assert await code_of(alice, CommitOffsets("first", at)) == ""  # the topic of the groups is there
            assert await code_of(alice, BeginTransaction("first", "o")) == ""
            answer = await admin.link.call(Metadata(all_topics=True), 15)
        assert isinstance(answer, MetadataAnswer)
        counts = {topic.name: len(topic.partitions) for topic in answer.topics}
        groups = list(islice(beside("billing", counts[GROUPS]), 40))
        found = [await code_of(mallory, CommitOffsets(group, at, principal="alice")) for group in groups]
        assert found == [""] * 20 + ["LIMIT_EXCEEDED"] * 20
        assert await code_of(alice, CommitOffsets("billing", at)) == ""
        members = [JoinGroup(groups[0], f"m{number}", ("orders",), principal="alice") for number in range(4)]
        assert [await code_of(mallory, member) for member in members] == [""] * 3 + ["LIMIT_EXCEEDED"]
        apps = list(islice(beside("billing", counts[TRANSACTIONS]), 40))
        found = [await code_of(mallory, BeginTransaction(app, "o", principal="alice")) for app in apps]
        assert found == [""] * 20 + ["LIMIT_EXCEEDED"] * 20
        staged = [BeginTransaction(apps[0], "o", f"s{number}", principal="alice") for number in range(6)]
        assert [await code_of(mallory, one) for one in staged] == [""] * 5 + ["LIMIT_EXCEEDED"]
        assert await code_of(alice, BeginTransaction("billing", "o")) == ""


def beside(name: str, partitions: int) -> Iterator[str]:
    """Names that fall on the same partition as this one."""
    wanted = partition_of(name.encode(), partitions)
    names = (f"x{number}" for number in count())
    return (one for one in names if partition_of(one.encode(), partitions) == wanted)


async def test_one_tenants_topics_are_bounded_and_those_of_another_are_not(tmp_path: Path) -> None:
    bounds = ControllerSettings(owners=OwnerSettings(principal_max_topics=5, principal_max_partitions=20))
    rights = {"mallory": ("create topic:m-*", "alter topic:*"), "alice": ("create topic:a-*",)}
    async with tenants(tmp_path, rights, controller={"settings": bounds}) as (_, links):
        found = await all_at_once(links["mallory"], [CreateTopic(f"m-{n}", principal="alice") for n in range(30)])
        assert sorted(found) == [""] * 5 + ["LIMIT_EXCEEDED"] * 25
        (made, *_) = (f"m-{n}" for n, code in enumerate(found) if not code)
        assert await code_of(links["mallory"], GrowTopic(made, 17)) == "LIMIT_EXCEEDED"
        assert await code_of(links["mallory"], GrowTopic(made, 16)) == ""
        assert await code_of(links["alice"], CreateTopic("a-1", 20)) == ""


async def all_at_once(link: Link, asked: Sequence[object]) -> list[str]:
    """The codes of the refusals, in the order of the requests."""
    codes = [""] * len(asked)

    async def one(number: int) -> None:
        codes[number] = await code_of(link, asked[number])

    async with trio.open_nursery() as nursery:
        for number in range(len(asked)):
            nursery.start_soon(one, number)
    return codes
