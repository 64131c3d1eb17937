"""Backup, restore and mirror where gateways want TLS and tokens and heed rules: what each needs is what the page
names, and whoever lacks any of it is told what."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import tidelog
from tidelog.backup.restore import MEANWHILE
from tidelog.client.log import Log
from tidelog.errors import TidelogError
from tidelog.net.dev_certificates import open_authority
from tidelog.types import Acl

from cluster.harness import running
from cluster.operating import wait

from .test_backup import Result, command, fill, seen

LASTS = timedelta(days=1)
RESTORES = ("create", "write", "read", "alter")
"""What is needed on the topic that is restored."""
MIRRORS = ("create", "write", "read", "alter")
"""The same for the target of a mirror that is to grow."""


@dataclass
class Guarded:
    """A cluster that is closed but for ``log``, which may do everything."""

    log: Log
    gateway: str
    ca: str
    folder: Path

    async def make(self, principal: str, *rights: str) -> str:
        """Somebody with these rights (``read topic:orders``) and no other; the file with the token."""
        file = self.folder / principal
        file.write_text(await self.log.access.create_token(principal))
        if rights:
            await self.log.access.alter_acls([Acl(principal, *right.split(" ")) for right in rights])
        return str(file)

    async def until_known(self) -> None:
        """Until the gateway has heard of all that was made."""
        token = await self.log.access.create_token("admin")  # later than all of it

        async def known() -> bool:
            try:
                async with tidelog.connect(self.gateway, tls=tidelog.TlsOptions(self.ca), token=token):
                    return True
            except TidelogError:
                return False

        await wait(known)

    async def run(self, token: str, *words: str) -> Result:
        """``tidelog …`` as the owner of that token."""
        return await command(*words, "--gateway", self.gateway, "--ca", self.ca, "--token-file", token)


@asynccontextmanager
async def guarded(folder: Path) -> AsyncIterator[Guarded]:
    files = open_authority(folder / "ca", datetime.now(UTC), LASTS).issue(
        "g2", [], ["127.0.0.1"], datetime.now(UTC), LASTS
    )
    strict = {"authentication": True, "authorization": True, "superusers": ("admin",)}
    async with running(folder, replicas=1) as cluster, tidelog.connect(cluster.gateway) as log:
        cluster.settings["g2"] = strict | {"tls_cert": files.cert, "tls_key": files.key}
        yield Guarded(log, await cluster.start("g2"), files.ca, folder)


def refused(done: Result, rule: str) -> None:
    """It ended because that rule is missing, and said so."""
    assert done.exit_code == 1, done.stdout
    assert f"'tidelog acls add {rule}' would allow it" in done.stderr, done.stderr


def on(topic: str, operations: Sequence[str], but: str = "") -> list[str]:
    """Rights to all of these but one."""
    return [f"{operation} topic:{topic}" for operation in operations if operation != but]


async def test_backup_needs_the_rights_to_read_the_topic_and_describe_the_groups(tmp_path: Path) -> None:
    async with guarded(tmp_path) as cluster:
        await cluster.log.topics.create("orders", partitions=2)
        await fill(cluster.log, "orders")
        await cluster.log.groups.reset("billing", "orders", {0: 3, 1: 1})
        nobody = await cluster.make("nobody")
        looker = await cluster.make("looker", "describe topic:orders")
        reader = await cluster.make("reader", "read topic:orders")
        lister = await cluster.make("lister", "read topic:orders", "describe cluster")
        saver = await cluster.make("saver", "read topic:orders", "describe cluster", "describe group:*")
        await cluster.until_known()

        words = ["backup", "orders", str(tmp_path / "orders")]
        assert "there is no topic orders" in (await cluster.run(nobody, *words)).stderr
        refused(await cluster.run(looker, *words), "looker read topic:orders")
        done = await cluster.run(reader, *words)
        assert (done.exit_code, "saved 70 offsets" in done.stdout) == (0, True), done.stderr
        refused(await cluster.run(reader, *words, "--groups"), "reader describe cluster")
        refused(await cluster.run(lister, *words, "--groups"), "lister describe group:billing")
        done = await cluster.run(saver, *words, "--groups")
        assert done.exit_code == 0, done.stderr
        assert "group billing: 0:3 1:1" in (await command("backup", "--list", str(tmp_path / "orders"))).stdout

        (tmp_path / "wrong").write_text("tide_0123456789abcdef_nothing")
        assert "UNAUTHENTICATED" in (await cluster.run(str(tmp_path / "wrong"), *words)).stderr
        done = await command(*words, "--gateway", cluster.gateway, "--token-file", saver)
        assert "the certificate shown is not accepted" in done.stderr


async def test_restore_checks_every_right_before_it_writes_anything(tmp_path: Path) -> None:
    async with guarded(tmp_path) as cluster:
        await cluster.log.topics.create("orders", partitions=2)
        await fill(cluster.log, "orders")
        await cluster.log.groups.reset("billing", "orders", {0: 3, 1: 1})
        folder = str(tmp_path / "orders")
        saver = await cluster.make("saver", "read topic:orders", "describe cluster", "describe group:*")
        without = {
            each: await cluster.make(f"no-{each}", *on(f"less-{each}", RESTORES, but=each)) for each in RESTORES
        }
        ungrouped = await cluster.make("ungrouped", *on("some", RESTORES))
        restorer = await cluster.make("restorer", *on("all", RESTORES), "group group:billing")
        await cluster.until_known()
        assert (await cluster.run(saver, "backup", "orders", folder, "--groups")).exit_code == 0

        for each, token in without.items():
            done = await cluster.run(token, "restore", folder, f"less-{each}")
            refused(done, f"no-{each} {each} topic:less-{each}")
            if each != "create":
                ends = await cluster.log.partitions.find_positions(f"less-{each}", "latest")
                assert [at.offset for at in ends.values()] == [0, 0]
        assert (await cluster.log.topics.describe("less-alter")).config.items() >= MEANWHILE.items()

        done = await cluster.run(ungrouped, "restore", folder, "some", "--groups")
        refused(done, "ungrouped describe group:billing")
        done = await cluster.run(restorer, "restore", folder, "all", "--groups")
        assert (done.exit_code, "group billing goes on where it was" in done.stdout) == (0, True), done.stderr
        for name in ("some", "all"):
            assert await seen(cluster.log, name) == await seen(cluster.log, "orders")


async def test_a_mirror_has_credentials_of_its_own_for_each_cluster(tmp_path: Path) -> None:
    """Authorities, principals and tokens of their own; and it says which of the two refuses it."""
    async with guarded(tmp_path / "old") as old, guarded(tmp_path / "new") as new:
        await old.log.topics.create("orders", partitions=2)
        await fill(old.log, "orders")
        await old.log.groups.reset("billing", "orders", {0: 3, 1: 1})
        await new.log.topics.create("less-alter", partitions=1)
        looker = await old.make("copier", "describe topic:orders")
        source = await old.make("source", "read topic:orders", "describe cluster", "describe group:*")
        less = {each: await new.make(f"no-{each}", *on("*", MIRRORS, but=each)) for each in MIRRORS}
        target = await new.make("target", *on("orders", MIRRORS), "group group:billing")
        await old.until_known()
        await new.until_known()

        async def mirror(reading: str, writing: str, *words: str) -> Result:
            sides = ["--from", old.gateway, "--from-ca", old.ca, "--from-token-file", reading]
            sides += ["--to", new.gateway, "--to-ca", new.ca, "--to-token-file", writing]
            return await command("mirror", "orders", *sides, "--to-end", *words)

        done = await mirror(looker, target)
        refused(done, "copier read topic:orders")
        assert "the source" in done.stderr
        done = await mirror(source, source)
        assert (done.exit_code, "[UNAUTHENTICATED] the target: " in done.stderr) == (1, True), done.stderr
        for each in MIRRORS:
            name = f"less-{each}"
            done = await mirror(source, less[each], "--as", name)
            refused(done, f"no-{each} {each} topic:{name}")
            assert "the target" in done.stderr
        done = await mirror(source, target, "--groups")
        assert (done.exit_code, "orders: 70 offsets copied" in done.stdout) == (0, True), done.stderr
        assert await seen(new.log, "orders") == await seen(old.log, "orders")
        assert (await new.log.groups.fetch_offsets("billing", "orders"))[0].offset == 3
