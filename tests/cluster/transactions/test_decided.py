"""What is decided and what is visible: nobody keeps a commit from its readers; operators find one that hangs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import structlog
import tidelog
import trio
from click.testing import CliRunner
from tidelog.batch.format import NewRecord, encode_batch
from tidelog.cli.explain import doctor
from tidelog.cli.main import main
from tidelog.client.log import Log
from tidelog.errors import TidelogError
from tidelog.types import Acl
from tidelog.wire.messages import Produce, ProducePart
from tidelog_replica.replication.producer_state import ProducerState

from cluster.harness import connected, running


async def command(gateway: str, *words: str) -> str:
    """What it prints; the cluster, in the same process, prints nothing meanwhile."""
    with structlog.testing.capture_logs():
        done = await trio.to_thread.run_sync(lambda: CliRunner().invoke(main, [*words, "--gateway", gateway]))
    return done.output


async def values(log: Log, topic: str = "orders") -> list[bytes | None]:
    return [record.value async for record in log.consume(topic, start="earliest", end="latest")]


async def test_a_commit_is_visible_when_it_returns_though_others_write_under_its_producer_id(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, tidelog.connect(cluster.gateway) as log:
        topic = await log.topics.create("orders", partitions=2, replication_factor=3)
        async with connected(cluster) as foreign, log.transaction("billing") as tx:
            for partition in range(2):
                await tx.send("orders", b"a", partition=partition)
            _, id, epoch = tx.identity
            batch = encode_batch([NewRecord(b"foreign")], producer_id=id, producer_epoch=epoch + 7)
            foreign.link.post(Produce((ProducePart(1, topic.topic_id, 0, 2, 15_000, len(batch)),), batch))
            await foreign.wait_ack(1)  # whether it is taken or refused
        assert tx.pending == ()
        await log.wait_visible("billing")
        assert (await values(log)).count(b"a") == 2, "at once, and to everybody"
        described = await log.topics.describe("orders", offsets=True)
        assert [one.stable for one in described.partitions] == [None, None]


async def test_a_transaction_that_no_coordinator_has_is_found_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier release took its marker for one that the log has already."""
    monkeypatch.setattr(doctor, "LONG_MS", 0)
    async with running(tmp_path) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", partitions=1, replication_factor=3)
        with pytest.MonkeyPatch.context() as earlier:
            earlier.setattr(ProducerState, "needs_marker", lambda *marker: False)
            async with log.transaction("billing") as tx:
                await tx.send("orders", b"a")
                _, id, epoch = tx.identity
                with pytest.raises(TidelogError, match="INVALID_TRANSACTION"):
                    await log.transactions.settle("orders", 0, id, epoch, commit=False)
                told = json.loads(await command(cluster.gateway, "doctor", "--json"))
                found = [one for one in told["findings"] if "have waited" in one["what"]]
                assert [one["level"] for one in found] == ["note"], told["findings"]
                assert "orders/0" in found[0]["what"] and "of billing" in found[0]["what"]
            await log.wait_visible("billing")
        async with log.producer("orders") as producer:
            await producer.send(b"behind")
        assert await values(log) == []

        told = json.loads(await command(cluster.gateway, "doctor", "--json"))
        (problem,) = [one for one in told["findings"] if "no coordinator has" in one["what"]]
        assert problem["level"] == "problem" and not told["healthy"]
        words = f"settle orders/0 --producer {id} --epoch {epoch} --commit"
        assert words in problem["next_step"]
        shown = await command(cluster.gateway, "topics", "describe", "orders")
        assert f"the transaction of producer {id} epoch {epoch} is open" in shown

        with pytest.raises(TidelogError, match="UNKNOWN_TRANSACTION"):
            await log.transactions.settle("orders", 0, id + 1, epoch, commit=True)
        done = await command(cluster.gateway, "transactions", *words.split())
        assert f"the transaction of producer {id} is committed" in done
        assert await values(log) == [b"a", b"behind"]
        told = json.loads(await command(cluster.gateway, "doctor", "--json"))
        assert not [one for one in told["findings"] if "have waited" in one["what"]]


async def test_positions_go_with_a_transaction_only_of_an_application_that_one_has_the_right_to(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, replicas=1) as cluster, tidelog.connect(cluster.gateway) as log:
        cluster.settings["g2"] = {"authentication": True, "authorization": True}
        strict = await cluster.start("g2")
        await log.topics.create("orders")
        token = await log.access.create_token("mallory")
        await log.access.alter_acls(
            [
                Acl("mallory", "read", "topic:orders"),
                Acl("mallory", "group", "group:biller"),
                Acl("mallory", "transact", "app:own"),
            ]
        )
        with trio.fail_after(30):
            while True:
                try:
                    async with tidelog.connect(strict, token=token) as mallory:
                        await mallory.topics.describe("orders")
                        await mallory.transactions.describe("own")
                        await mallory.groups.describe("biller")
                except TidelogError as error:
                    if error.code == "UNKNOWN_GROUP":
                        break
                await trio.lowlevel.checkpoint()
        async with tidelog.connect(strict, token=token) as mallory, log.transaction("billing") as victim:
            await victim.send("orders", b"a")
            await victim.commit_offsets("biller", {("orders", 0): 1})
            async with mallory.transaction("own") as tx:
                own, tx.identity = tx.identity, victim.identity
                with pytest.raises(TidelogError) as refused:
                    await tx.commit_offsets("biller", {("orders", 0): 99})
                assert refused.value.code == "FORBIDDEN" and refused.value.detail["resource"] == "app:billing"
                tx.identity = victim.identity._replace(app="own")
                with pytest.raises(TidelogError, match="UNKNOWN_TRANSACTION"):
                    await tx.commit_offsets("biller", {("orders", 0): 99})
                tx.identity = own
        positions = await log.groups.fetch_offsets("biller", "orders")
        assert positions[0].offset == 1
