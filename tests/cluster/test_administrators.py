"""Clients with a token and few rights attack what administrators do, at real gateways of a whole cluster."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import tidelog
import trio
from tidelog.acl import new_token
from tidelog.client.log import Log
from tidelog.errors import TidelogError
from tidelog.feature_levels import NEWEST, SECURITY
from tidelog.net.link import Link, connect_link
from tidelog.types import AUDIT, Acl, Quota
from tidelog.wire.link_session import PROTOCOL_VERSION
from tidelog.wire.messages import (
    AccessAnswer,
    AlterAcls,
    AlterQuotas,
    AlterTopic,
    CreateTopic,
    DescribeAccess,
    Done,
    DrainServer,
    Hello,
    JoinGroup,
    JoinGroupAnswer,
    LeaveGroup,
    Message,
    PutToken,
    RevokeTokens,
    RotateTicketKeys,
    TopicCreated,
)

from cluster.backup.test_backup import command
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
            await self.log.access.alter_acls(add=rules)
        self.tokens[principal] = await self.log.access.create_token(principal)  # later than the rules
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
        return {token.principal for token in (await self.log.access.describe()).tokens}

    async def audited(self, count: int) -> list[dict[str, Any]]:
        """The first records of the audit."""

        async def exists() -> bool:
            return AUDIT in {topic.name for topic in (await self.log.cluster.status()).topics}

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
        await log.topics.create("mallorys")
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
            assert denied in (await cluster.log.access.describe()).acls, "the rule is said to be there, and is not"


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
        assert rule in (await cluster.log.access.describe()).acls


async def test_the_same_number_with_another_request_is_refused_and_breaks_no_link(tmp_path: Path) -> None:
    """The answer to a change of a topic is none to a creation. Before, the gateway took the controller for broken and
    dropped its link, with everything that waited there."""
    async with guarded(tmp_path) as cluster, cluster.link_of("mallory") as mallory:
        first = AlterTopic("mallorys", {"retention_ms": "86400000"}, client="app", sequence=1)
        assert await cluster.ask(mallory, first) == Done()
        assert await cluster.ask(mallory, CreateTopic("mallorys2", client="app", sequence=1)) == "REQUEST_CONFLICT"
        other = AlterTopic("mallorys", {"retention_ms": "1"}, client="app", sequence=1)
        assert await cluster.ask(mallory, other) == "REQUEST_CONFLICT"
        topics = {topic.name: topic for topic in (await cluster.log.cluster.status()).topics}
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


# --- who decides about rights --------------------------------------------------------------------------------

OPERATE, DECIDE = Acl("olga", "cluster", "cluster"), Acl("sam", "security", "cluster")


def token_of(principal: str, replaces: str = "") -> PutToken:
    """A wish for a token that there never was."""
    made = new_token()
    return PutToken(made.token_id, made.digest, principal, replaces=replaces)


async def test_an_operator_of_the_cluster_cannot_change_rights(tmp_path: Path) -> None:
    async with guarded(tmp_path) as cluster:
        await cluster.make("olga", OPERATE)
        token_id = (await cluster.log.access.describe()).tokens[0].token_id
        before = await cluster.log.access.describe()
        async with cluster.link_of("olga") as olga:
            for attack in (
                token_of("admin"),
                token_of("bob"),
                token_of("", replaces=token_id),
                RevokeTokens(token_id),
                RevokeTokens("", "admin"),
                AlterAcls((Acl("olga", "*", "topic:*"),)),
                AlterAcls((Acl("olga", "security", "cluster"),)),
                AlterAcls(drop_inherited=True),
                RotateTicketKeys(),
            ):
                assert await cluster.ask(olga, attack) == "FORBIDDEN", attack
            assert await cluster.log.access.describe() == before
            assert isinstance(await cluster.ask(olga, DescribeAccess()), AccessAnswer)
            assert await cluster.ask(olga, AlterQuotas((Quota("bob", requests_s=5),))) == Done()


async def test_tokens_and_quotas_of_superusers_are_for_superusers(tmp_path: Path) -> None:
    async with guarded(tmp_path) as cluster:
        await cluster.make("sam", DECIDE)
        await cluster.make("olga", OPERATE)
        tokens = {token.principal: token.token_id for token in (await cluster.log.access.describe()).tokens}
        before = await cluster.log.access.describe()
        async with cluster.link_of("sam") as sam, cluster.link_of("olga") as olga:
            for attack in (
                token_of("admin"),
                token_of("bob", replaces=tokens["admin"]),
                RevokeTokens(tokens["admin"]),
                RevokeTokens("", "admin"),
                replace(token_of("admin"), spared=("mallory",)),
            ):
                assert await cluster.ask(sam, attack) == "FORBIDDEN", attack
            assert await cluster.ask(olga, AlterQuotas((Quota("admin", requests_s=1),))) == "FORBIDDEN"
            assert await cluster.log.access.describe() == before

            assert await cluster.ask(sam, token_of("bob")) == Done()
            assert await cluster.ask(sam, token_of("", replaces=tokens["mallory"])) == Done()
            assert await cluster.ask(sam, AlterAcls((Acl("bob", "read", "topic:a"),))) == Done()
            assert await cluster.ask(sam, DrainServer("r1")) == "FORBIDDEN", "that is to operate the cluster"
        async with cluster.link_of("admin") as admin:
            rotation = replace(token_of("", replaces=tokens["admin"]), grace_ms=60_000)
            assert await cluster.ask(admin, rotation) == Done()


async def test_operators_keep_the_right_to_change_rights_after_an_upgrade_until_it_is_ended(tmp_path: Path) -> None:
    """The cluster is of a release without the operation. Who may administer it keeps what that included; who gets
    that right later does not. ``doctor`` names who does, and one command ends it."""
    below = {"feature_level_max": SECURITY - 1}
    settings = {node: below for node in ("c1", "r1", "g1")}
    async with running(tmp_path, replicas=1, settings=settings) as cluster:
        async with tidelog.connect(cluster.gateway) as log:
            await log.access.alter_acls(add=[OPERATE])
        for node in settings:
            await cluster.stop(node)
        cluster.settings = {"g2": STRICT, "g3": STRICT}
        for node in ("c1", "r1"):
            await cluster.start(node)
        cluster.gateway = await cluster.start("g1")
        strict = {name: await cluster.start(name) for name in ("g2", "g3")}
        async with tidelog.connect(cluster.gateway) as log:
            made = Guarded(cluster, log, strict, {})
            await made.make("olga")
            async with made.link_of("olga") as olga:
                assert await made.ask(olga, token_of("bob")) == Done(), "the level is not raised yet"
                with pytest.raises(TidelogError, match="UNSUPPORTED_LEVEL"):
                    await log.access.drop_inherited_security()
                await log.cluster.raise_level(NEWEST)
                await made.make("otto", replace(OPERATE, principal="otto"))
                assert await made.ask(olga, token_of("carol")) == Done()
                async with made.link_of("otto") as otto:
                    assert await made.ask(otto, token_of("dave")) == "FORBIDDEN"

                shown = await command("doctor", "--gateway", cluster.gateway)
                assert "olga" in shown.stdout and "otto" not in shown.stdout
                assert "tidelog acls drop-inherited" in shown.stdout
                checked = await command("acls", "check", "olga", "security", "cluster", "--gateway", cluster.gateway)
                assert checked.exit_code == 0

                ended = await command("acls", "drop-inherited", "--gateway", cluster.gateway)
                assert (ended.exit_code, "olga" in ended.stdout) == (0, True), ended.stderr
                await made.make("later")  # of which the strict gateways hear after it
                assert await made.ask(olga, token_of("erin")) == "FORBIDDEN"
                assert "drop-inherited" not in (await command("doctor", "--gateway", cluster.gateway)).stdout


async def test_the_audit_names_the_principal_that_removes_the_group_member_of_another(tmp_path: Path) -> None:
    async with guarded(tmp_path) as cluster:
        await cluster.log.topics.create("orders")
        for principal in ("alice", "bob"):
            await cluster.make(principal, Acl(principal, "group", "group:billing"), Acl(principal, "read", "topic:*"))
        async with cluster.link_of("alice") as alice, cluster.link_of("bob", "g3") as bob:
            joined = await cluster.ask(alice, JoinGroup("billing", "alices", ("orders",)))
            assert isinstance(joined, JoinGroupAnswer)
            assert await cluster.ask(bob, LeaveGroup("billing", "alices")) == Done()
        (event,) = await cluster.audited(1)
        assert (event["event"], event["principal"], event["gateway"]) == ("left_group", "bob", "g3")
        assert event["request"]["member"] == "alices"
