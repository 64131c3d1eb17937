"""Clients with a token and few rights attack what administrators do, at real gateways of a whole cluster."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tidelog
import trio
from tidelog.client.log import Log
from tidelog.errors import TidelogError
from tidelog.link import Link, connect_link
from tidelog.types import AUDIT, Acl
from tidelog.wire.messages import (
    AlterAcls,
    AlterTopic,
    CreateTopic,
    Done,
    Hello,
    Message,
    RevokeTokens,
    TopicCreated,
)
from tidelog.wire.session import PROTOCOL_VERSION

from cluster.harness import Cluster, running
from cluster.operating import wait

WAIT_S = 15.0
STRICT: dict[str, object] = {
    "authentication": True,
    "authorization": True,
    "audit": True,
    "superusers": ("admin",),
}
MALLORYS_RIGHTS = (
    Acl("mallory", "create", "topic:mallorys*"),
    Acl("mallory", "alter", "topic:mallorys*"),
)


@dataclass
class Guarded:
    """A cluster whose gateway g1 is open, for ``log``; g2 and g3 take tokens, heed rules and write the audit."""

    cluster: Cluster
    log: Log
    strict: dict[str, str]
    """URLs of the gateways that heed rules, by name."""
    tokens: dict[str, str]

    async def ask(self, link: Link, request: Message) -> Message | str:
        """The answer, or the code of the error."""
        try:
            return await link.call(request, WAIT_S)
        except TidelogError as error:
            return error.code

    @asynccontextmanager
    async def link_of(self, principal: str, gateway: str = "g2") -> AsyncIterator[Link]:
        """A link of this principal, without a library."""

        def ignore(_link: Link, _id: int | None, _message: Message) -> None:
            pass

        hello = Hello(PROTOCOL_VERSION, "client", "test", token=self.tokens[principal])
        async with connect_link(self.cluster.transport, self.strict[gateway], hello, ignore) as link:
            yield link

    async def make(self, principal: str, *rules: Acl) -> None:
        """Somebody with a token and these rights, of which the strict gateways have heard."""
        if rules:
            await self.log.alter_acls(add=rules)
        self.tokens[principal] = await self.log.create_token(principal)  # later than the rules
        with trio.fail_after(WAIT_S):
            for gateway in self.strict:
                while not await self._is_known(principal, gateway):
                    pass

    async def _is_known(self, principal: str, gateway: str) -> bool:
        try:
            async with self.link_of(principal, gateway):
                return True
        except TidelogError as error:
            assert error.code == "UNAUTHENTICATED", error
            return False

    async def principals(self) -> set[str]:
        """Those that have a token, as the controllers know it."""
        return {token.principal for token in (await self.log.access()).tokens}

    async def audited(self, count: int) -> list[dict[str, Any]]:
        """The first records of the audit."""

        async def exists() -> bool:
            return AUDIT in {topic.name for topic in (await self.log.status()).topics}

        await wait(exists)
        found: list[dict[str, Any]] = []
        with trio.fail_after(WAIT_S):
            async with self.log.consume(AUDIT, start="earliest") as consumer:
                while len(found) < count:
                    record = await anext(consumer)
                    assert record.value is not None
                    found.append(json.loads(record.value))
        return found


@asynccontextmanager
async def guarded(folder: Path) -> AsyncIterator[Guarded]:
    async with running(folder, replicas=1) as cluster, tidelog.connect(cluster.gateway) as log:
        cluster.settings |= {"g2": STRICT, "g3": STRICT}
        made = Guarded(cluster, log, {name: await cluster.start(name) for name in ("g2", "g3")}, {})
        await made.make("admin")
        await made.make("mallory", *MALLORYS_RIGHTS)
        await log.create_topic("mallorys")
        yield made


# --- requests that were answered before -------------------------------------------------------------------


async def test_a_command_of_an_administrator_is_done_whatever_others_have_asked(tmp_path: Path) -> None:
    """The attacker sends requests that it may send under the name that the audit shows of the gateway, with the
    numbers that the gateway will use next. The administrator's own requests must not get those answers."""
    async with guarded(tmp_path) as cluster:
        await cluster.make("victim")
        async with cluster.link_of("admin") as admin, cluster.link_of("mallory") as mallory:
            assert await cluster.ask(admin, AlterAcls()) == Done()
            name, _, _ = str((await cluster.audited(1))[0]["id"]).rpartition("/")
            for sequence in range(1, 40):
                planted = AlterTopic("mallorys", {"retention_ms": "86400000"}, client=name, sequence=sequence)
                assert await cluster.ask(mallory, planted) == Done()

            assert await cluster.ask(admin, RevokeTokens("", "victim")) == Done()
            assert "victim" not in await cluster.principals(), "the token is said to be revoked, and is not"
            denied = Acl("mallory", "*", "topic:*", deny=True)
            assert await cluster.ask(admin, AlterAcls((denied,))) == Done()
            assert denied in (await cluster.log.access()).acls, "the rule is said to be there, and is not"


async def test_requests_under_the_same_name_are_each_principals_own(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path) as cluster,
        cluster.link_of("admin") as admin,
        cluster.link_of("mallory") as mallory,
    ):
        planted = AlterTopic("mallorys", {"retention_ms": "86400000"}, client="ops", sequence=1)
        assert await cluster.ask(mallory, planted) == Done()
        rule = Acl("carol", "read", "topic:orders")
        assert await cluster.ask(admin, AlterAcls((rule,), client="ops", sequence=1)) == Done()
        assert rule in (await cluster.log.access()).acls


async def test_the_same_number_with_another_request_is_refused_and_breaks_no_link(tmp_path: Path) -> None:
    """The answer to a change of a topic is none to a creation. Before, the gateway took the controller for broken and
    dropped its link, with everything that waited there."""
    async with guarded(tmp_path) as cluster, cluster.link_of("mallory") as mallory:
        first = AlterTopic("mallorys", {"retention_ms": "86400000"}, client="app", sequence=1)
        assert await cluster.ask(mallory, first) == Done()
        assert await cluster.ask(mallory, CreateTopic("mallorys2", client="app", sequence=1)) == "REQUEST_CONFLICT"
        other = AlterTopic("mallorys", {"retention_ms": "1"}, client="app", sequence=1)
        assert await cluster.ask(mallory, other) == "REQUEST_CONFLICT"
        topics = {topic.name: topic for topic in (await cluster.log.status()).topics}
        assert topics["mallorys"].config["retention_ms"] == "86400000" and "mallorys2" not in topics
        assert await cluster.ask(mallory, first) == Done()


async def test_a_retry_through_another_gateway_is_the_same_request(tmp_path: Path) -> None:
    async with guarded(tmp_path) as cluster:
        request = CreateTopic("mallorys2", client="app", sequence=1)
        async with cluster.link_of("mallory") as link:
            created = await cluster.ask(link, request)
        assert isinstance(created, TopicCreated)
        async with cluster.link_of("mallory", "g3") as link:
            assert await cluster.ask(link, request) == created
            assert await cluster.ask(link, replace(request, sequence=2)) == "TOPIC_EXISTS"


async def test_a_name_of_more_than_64_bytes_is_refused(tmp_path: Path) -> None:
    async with guarded(tmp_path) as cluster, cluster.link_of("mallory") as mallory:
        request = AlterTopic("mallorys", {"retention_ms": "86400000"}, sequence=1)
        for name in ("x" * 65, "ä" * 33, "x" * 200_000):
            assert await cluster.ask(mallory, replace(request, client=name)) == "MALFORMED"
        assert await cluster.ask(mallory, replace(request, client="ä" * 32)) == Done()
