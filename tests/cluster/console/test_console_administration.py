"""The console in a headless Chromium, over a real cluster: what is done to groups, transactions and rights."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import tidelog
from support.js_tools import needs_chromium
from tidelog.errors import TidelogError
from tidelog.net.dev_certificates import open_authority
from tidelog.types import Acl, Quota
from tidelog_replica.replication.producer_state import ProducerState

from cluster.console.reader import Reader, reading
from cluster.harness import running

pytestmark = needs_chromium

LASTS = timedelta(days=1)
DAY_MS = 86_400_000


async def cells(reader: Reader, table: str, column: int) -> list[str]:
    """Return the texts of a column (from 1) of the table of that name, from the first row to the last."""
    path = f"[aria-label={table!r}] tbody td:nth-child({column})"
    found = await reader.do(f"[...document.querySelectorAll({path!r})].map((one) => one.innerText)")
    assert isinstance(found, list)
    return found


async def test_a_group_is_shown_with_its_lag_and_is_reset_and_deleted(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=1) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", partitions=2, replication_factor=1)
        async with log.producer("orders") as producer:
            for number in range(10):
                await producer.send(b"%d" % number, partition=number % 2)
        async with log.consume("orders", group="archive") as done:
            for _ in range(10):
                await anext(done)
            await done.commit()
        member = log.consume("orders", group="billing", instance="desk-1")
        for _ in range(3):
            await anext(member)
        await member.commit()
        async with reading(cluster.gateway) as reader:
            await reader.go("groups")
            await reader.see("text('[aria-label=Groups] tbody tr') === 'billing\\tstable\\t1\\t7\\tr1'")
            await reader.see("text('[aria-label=Groups] tbody tr:nth-child(2)') === 'archive\\tempty\\t0\\t0\\tr1'")
            await reader.do("document.querySelector('[aria-label=Groups] a').click()")
            await reader.see("text('[aria-label=Members] tbody').startsWith('desk-1') && text('h1') === 'billing'")
            await reader.see("text('[aria-label=Members] tbody').includes('orders 0 1')")
            await reader.see("document.querySelector('.plot').ariaLabel.endsWith('now: records behind 7')")
            assert sum(map(int, await cells(reader, "Partitions", 5))) == 7
            async with log.producer("orders") as producer:
                await producer.send(b"more", partition=0)
            await reader.see("document.querySelector('.plot').ariaLabel.endsWith('now: records behind 8')")
            await reader.fill("Reset offsets", "Nothing is changed yet.", topic="orders", partitions="0-1")
            await reader.click("Reset")
            await reader.see("text('.doing').includes('(GROUP_NOT_EMPTY)')")
            await member.aclose()
            await reader.see("text('[aria-label=Members] tbody').startsWith('desk-1 (away)')")

            await reader.go("groups/archive")
            await reader.see("text('[aria-label=Partitions] tbody tr').startsWith('orders/0\\tnone\\t5\\t6\\t1\\t')")
            await reader.fill("Reset offsets", "Nothing is changed yet.", partitions="0")
            effect = "text('[aria-label=\"Preview of the reset\"] tbody')"
            await reader.see(f"{effect} === 'orders/0\\t5\\t0\\t5 records again'")
            assert (await log.groups.fetch_offsets("archive", "orders"))[0].offset == 5
            await reader.click("Reset")
            await reader.see("text('.doing').includes('Done: 1 partition reset.')")
            found = await log.groups.fetch_offsets("archive", "orders")
            assert [found[number].offset for number in (0, 1)] == [0, 5]
            await reader.see("text('[aria-label=Partitions] tbody tr').startsWith('orders/0\\tnone\\t0\\t6\\t6\\t')")
            await reader.fill("Delete the group", confirmed="archive")
            await reader.see("text('h1') === 'Consumer groups' && !text('main').includes('archive')")
            assert [one.group for one in await log.groups.list()] == ["billing"]


async def test_tokens_rules_and_quotas_are_administered_by_those_who_may(tmp_path: Path) -> None:
    authority = open_authority(tmp_path, datetime.now(UTC), LASTS)
    files = authority.issue("g2", [], ["127.0.0.1"], datetime.now(UTC), LASTS)
    strict = {"authentication": True, "authorization": True, "superusers": ["admin"]}
    async with running(tmp_path, replicas=1) as cluster, tidelog.connect(cluster.gateway) as log:
        async with reading(cluster.gateway) as reader:
            await reader.go("security")
            await reader.see("text('main').includes('Security is off') && text('main').includes('docs/security.md')")
        admin, bob = [await log.access.create_token(principal) for principal in ("admin", "bob")]
        await log.access.alter_acls([Acl("bob", "cluster", "cluster")])
        cluster.settings["g2"] = strict | {"tls_cert": files.cert, "tls_key": files.key}
        async with reading(await cluster.start("g2")) as reader:
            await reader.connect_with(admin)
            await reader.go("security")
            await reader.see("text('main').includes('the rules decide what they may do')")
            await reader.fill("Create a token", "Created", principal="carol", lifetime="90d")
            carol = str(await reader.do("document.querySelector('.secret code').textContent"))
            (made,) = [one for one in (await log.access.describe()).tokens if one.principal == "carol"]
            assert carol.startswith(f"tide_{made.token_id}_") and made.expires_ms - made.created_ms == 90 * DAY_MS
            stored = "JSON.stringify([{...localStorage}, {...sessionStorage}, location.href])"
            assert carol not in str(await reader.do(stored))
            await reader.go("topics")
            await reader.see("text('h1') === 'Topics'")
            await reader.go("security")
            await reader.see("text('[aria-label=Tokens]').includes('carol')")
            assert carol not in str(await reader.do("document.documentElement.outerHTML"))

            await reader.fill("Add a rule", "Nothing is changed", principal="carol", name="orders")
            await reader.see("text('.plan').includes('not allowed now, allowed then')")
            await reader.click("Add the rule")
            await reader.see("text('[aria-label=Rules]').includes('carol')")
            assert Acl("carol", "read", "topic:orders") in (await log.access.describe()).acls
            await reader.fill("Ask whether", "carol may read topic:orders.", principal="carol", name="orders")
            await reader.fill("Set a quota", "Nothing is changed", principal="carol", bytesInS="10MiB/s")
            await reader.click("Set the quota")
            await reader.see("text('[aria-label=Quotas]').includes('10MiB/s')")
            assert (await log.access.describe()).quotas == (Quota("carol", bytes_in_s=10 << 20),)
            for button, plan in (
                (f"Revoke token {made.token_id} of carol", "Revoke the token"),
                ("Remove the rule allow carol read topic:orders", "Remove the rule"),
                ("Remove the quota of carol", "Remove the quota"),
            ):
                await reader.do(f"document.querySelector('[aria-label=\"{button}\"]').click()")
                await reader.click(plan)
                await reader.see(f"!document.querySelector('[aria-label=\"{button}\"]')")
            access = await log.access.describe()
            assert [one.principal for one in access.tokens] == ["admin", "bob"]
            assert access.acls == (Acl("bob", "cluster", "cluster"),) and not access.quotas

            await log.access.revoke_tokens_of("admin")
            await reader.connect_with(bob)
            await reader.see("text('[aria-label=Rules]').includes('bob')")
            await reader.fill("Create a token", "(FORBIDDEN)", principal="carol")
            await reader.see("text('main').includes('tidelog acls add bob security cluster')")
            await log.access.alter_acls([Acl("bob", "security", "cluster")])
            for button, words in (
                ("Remove the rule allow bob security cluster", "You are bob: this takes your own right to security"),
                (f"Revoke token {bob.split('_')[1]} of bob", "This page is connected with it"),
            ):
                await reader.see(f"!!document.querySelector('[aria-label=\"{button}\"]')")
                await reader.do(f"document.querySelector('[aria-label=\"{button}\"]').click()")
                await reader.see(
                    f"[...document.querySelectorAll('.plan')].some((one) => one.innerText.includes('{words}'))"
                )
            await log.access.alter_acls(remove=[Acl("bob", "cluster", "cluster"), Acl("bob", "security", "cluster")])
            await reader.go("groups")
            await reader.see("text('main').includes('bob may not describe cluster')")
            await reader.go("security")
            await reader.see("text('main .bad').includes('(FORBIDDEN)') && text('main code') === 'cluster cluster'")


async def test_transactions_are_shown_aborted_and_settled(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=1) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", partitions=2, replication_factor=1)
        async with reading(cluster.gateway) as reader:
            await reader.go("transactions")
            await reader.see("text('main').includes('No transaction is open') && text('main').includes('docs/')")
            with pytest.raises(TidelogError, match="TRANSACTION_ABORTED"):
                async with log.transaction("billing") as tx:
                    await tx.send("orders", b"a", partition=1)
                    row = "text('[aria-label=Transactions] tbody tr')"
                    await reader.see(f"/^billing\\t.\\topen\\t.*\\t1\\t{tx.identity.producer_id}\\t/.test({row})")
                    await reader.do("document.querySelector('[aria-label=Transactions] a').click()")
                    await reader.see("text('main').includes('Has written to orders/1.')")
                    await reader.click("Abort")
                    await reader.click("Abort the transaction")
                    await reader.see("text('main [role=status]') === 'Done: the transaction is aborted.'")
            async with log.stage("etl") as staged:
                await staged.send("orders", b"b", partition=0)
            await reader.go("transactions/etl")
            await reader.click("Abort")
            await reader.click("Abort the transaction")
            await reader.see("text('main').includes('has no transaction')")
            assert not await log.transactions.list()

            with pytest.MonkeyPatch.context() as earlier:
                earlier.setattr(ProducerState, "needs_marker", lambda *marker: False)
                async with log.transaction("shipping") as tx:
                    await tx.send("orders", b"c", partition=0)
                    await reader.go("transactions")
                    await reader.fill("Find and settle", "of shipping. None hangs.", topic="orders")
                await log.wait_visible("shipping")
            await reader.fill("Find and settle", "Nothing is changed", topic="orders", outcome="commit")
            await reader.click("Commit them")
            await reader.see("text('.doing').includes('Done: settled in 1 partition.')")
            records = [record.value async for record in log.consume("orders", start="earliest", end="latest")]
            assert records == [b"c"]
