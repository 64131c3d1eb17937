"""A tenant with a token and few rights, beside another one on the same cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import tidelog
import trio
from tidelog.errors import TidelogError
from tidelog.link import PROTOCOL_VERSION, Link, connect_link
from tidelog.types import Acl
from tidelog.wire.messages import (
    CommitOffsets,
    DescribeGroup,
    DescribeGroupAnswer,
    FetchOffsets,
    FetchOffsetsAnswer,
    GroupPosition,
    Hello,
    JoinGroup,
    JoinGroupAnswer,
    TopicShare,
)

from .harness import Cluster, connected, running
from .operating import wait

OPEN_TO_RULES = {"g1": {"authorization": True, "superusers": ("anonymous",)}}
"""Who shows no token may do everything."""


@asynccontextmanager
async def tenants(
    folder: Path, rights: dict[str, tuple[str, ...]], settings: dict[str, dict[str, object]] | None = None
) -> AsyncIterator[tuple[Cluster, dict[str, Link]]]:
    """A cluster of one replica server, and a link of each principal, who has these rights (``read topic:orders``)."""
    async with running(folder, replicas=1, settings=OPEN_TO_RULES | (settings or {})) as cluster:
        tokens = {}
        async with tidelog.connect(cluster.gateway) as log:
            for name, allowed in rights.items():
                await log.alter_acls([Acl(name, *right.split(" ")) for right in allowed])
                tokens[name] = await log.create_token(name)
        links: dict[str, Link] = {}
        async with trio.open_nursery() as nursery:
            for name, token in tokens.items():
                await wait(lambda token=token: _is_known(cluster, token))  # type: ignore[misc]
                links[name] = await nursery.start(_link, cluster, name, token)
            yield cluster, links
            nursery.cancel_scope.cancel()


async def _is_known(cluster: Cluster, token: str) -> bool:
    """The gateway has heard of the token."""
    try:
        async with tidelog.connect(cluster.gateway, token=token):
            return True
    except TidelogError:
        return False


async def _link(cluster: Cluster, name: str, token: str, task_status: trio.TaskStatus[Link]) -> None:
    hello = Hello(PROTOCOL_VERSION, "client", name, token=token)
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
