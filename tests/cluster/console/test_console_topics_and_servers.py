"""Topics, partitions and servers are administered in the console, over a real cluster and in a headless Chromium."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path

import tidelog
import trio
from support.js_tools import needs_chromium
from tidelog.client.log import Log
from tidelog.net.dev_certificates import open_authority
from tidelog.types import Acl
from tidelog_controller.config import ControllerSettings

from cluster.console.reader import Reader, reading
from cluster.harness import Cluster, running

pytestmark = needs_chromium

LASTS = timedelta(days=1)
SERVERS = {"r1", "r2", "r3", "r4"}


def card(server: str) -> str:
    """Return a script that yields what the card of a server says."""
    return f"[...document.querySelectorAll('.node')].find((one) => one.innerText.startsWith('{server}'))?.innerText"


async def a_topic_is_created_changed_and_deleted(reader: Reader, log: Log) -> None:
    await reader.go("topics")
    fields = {"name": "orders", "partitions": "2", "replicas": "3", "retention_ms": "1h", "min_insync_replicas": "1"}
    await reader.fill("Create a topic", **fields)
    await reader.see("text('h1') === 'orders'")
    created = await log.topics.describe("orders")
    assert (created.config["retention_ms"], created.config["min_insync_replicas"]) == ("3600000", "1")
    assert [len(one.replicas) for one in created.partitions] == [3, 3]

    shown = await reader.preview("Settings", retention_ms="", min_insync_replicas="", cleanup="compact")
    assert all(
        words in shown
        for words in ("retention_ms: 1h → -1", "min_insync_replicas: 1 → 2", "delete → compact", "Change 3 settings")
    )
    await reader.carry_out("Settings", "Done")
    changed = (await log.topics.describe("orders")).config
    expected = {"retention_ms": "-1", "min_insync_replicas": "2", "cleanup": "compact"}
    assert changed == created.config | expected
    await reader.see("document.querySelector('.doing [name=retention_ms]').value === '-1'")
    await reader.fill("Settings", "Nothing was changed.")
    await reader.preview("Settings", max_batch_bytes="1")
    await reader.carry_out("Settings", "Not done: max_batch_bytes is '1'")
    await reader.see("text('[data-name=Settings]').includes('(INVALID_CONFIG). What the message says')")

    assert "3 in all" in await reader.preview("Add partitions", partitions="3")
    await reader.carry_out("Add partitions", "Done")
    await reader.see("text('.facts').includes('Partitions\\n3')")
    assert "Partitions 0, 2 of orders are paused" in await reader.preview("Pause", suspension="pause", numbers="0, 2")
    await reader.carry_out("Pause", "Done")
    await reader.see("text('.facts').includes('2 of 3 paused')")
    assert "All partitions" in await reader.preview("Pause", suspension="resume", numbers="")
    await reader.carry_out("Pause", "Done")
    await reader.see("text('.facts').includes('all in sync')")

    confirmed = "document.querySelector('[name=confirmed]')"
    assert await reader.do(f"{confirmed}.value = 'order'; {confirmed}.form.checkValidity()") is False
    await reader.fill("Delete this topic", confirmed="orders")
    await reader.see("text('h1') === 'Topics' && text('main').includes('There are no topics yet')")
    assert "orders" not in [topic.name for topic in await log.topics.list()]


async def a_partition_is_moved(reader: Reader, log: Log) -> None:
    topic = await log.topics.create("moved", partitions=1, replication_factor=3)
    async with log.producer("moved") as producer:
        await producer.send(b"one")
    (before,) = topic.partitions
    heir = next(node for node in before.replicas if node != before.leader)
    await reader.go("partition/moved/0")
    await reader.fill("Transfer", "Done: ", server=heir)
    await reader.see(f"text('.facts').startsWith('Leader\\n{heir}\\nLeader epoch\\n1')")

    (new,) = SERVERS - set(before.replicas)
    target = [new, *(node for node in before.replicas if node != heir)]
    await reader.fill("Reassign", "there is no server r9; there are r1, r2, r3, r4", servers="r9")
    await reader.preview("Reassign", servers=",".join(target))
    await reader.do("document.querySelector('form:has([name=servers])').dispatchEvent(new Event('input'))")
    await reader.see("!document.querySelector('.plan')")
    shown = await reader.preview("Reassign", servers=",".join(target))
    assert f"{new} copies the log (" in shown and f"{heir} then goes" in shown
    assert f"{heir} hands over" in shown and f"{new} becomes the preferred leader" in shown
    assert (await log.topics.describe("moved")).partitions[0].target == ()
    await reader.carry_out("Reassign", "Begun")
    await reader.see(f"text('.facts').includes('Replicas\\n{', '.join(target)}\\nPartition epoch')")


async def a_server_is_drained_and_emptied(reader: Reader, log: Log) -> None:
    (partition,) = (await log.topics.describe("moved")).partitions
    server = partition.leader
    await reader.go("cluster")
    shown = await reader.preview("Drain a server", server=server)
    assert f"{server} leads " in shown and "moved/0\t" in shown
    await reader.carry_out("Drain a server", "Done")
    await reader.see(f"{card(server)}.includes('drained') && {card(server)}.includes('leads 0')")
    shown = await reader.preview("Rebalance", empty="on")
    assert "moved/0\t" in shown and "would move" in shown
    await reader.carry_out("Rebalance", "Begun")
    await reader.see(f"{card(server)}.includes('leads 0, follows 0')")
    assert server not in (await log.topics.describe("moved")).partitions[0].replicas
    assert "may lead and get replicas again" in await reader.preview("Drain a server", server=server)
    await reader.carry_out("Drain a server", "Done")
    await reader.see(f"!{card(server)}.includes('drained')")


async def one_of_many_partitions_is_chosen(reader: Reader, log: Log) -> None:
    await log.topics.create("many", partitions=100, replication_factor=1)
    await reader.go("partition/many/3")
    await reader.see("text('h1') === 'many/3' && text('main').includes('of 100')")
    assert await reader.do("document.querySelectorAll('main option').length") < 50
    await reader.do("""(() => {
        const number = document.querySelector('main [type=number]');
        number.value = 77;
        number.dispatchEvent(new Event('change'));
    })()""")
    await reader.see("text('h1') === 'many/77'")
    await reader.go("partition/many/100")
    await reader.see("text('main').includes('many has partitions 0 to 99')")


async def learners_are_set(reader: Reader, log: Log) -> None:
    (before,) = (await log.topics.describe("moved")).partitions
    (other,) = SERVERS - set(before.replicas)
    await reader.go("partition/moved/0")
    await reader.fill("Set the learners", f"Done: learners {other}.", servers=other)
    await reader.see(f"text('.facts').includes('Learners\\n{other}')")
    assert (await log.topics.describe("moved")).partitions[0].learners == (other,)
    await reader.fill("Set the learners", "Done: learners none.", servers="")
    await reader.see("!text('.facts').includes('Learners')")


async def traffic_is_evened_out(reader: Reader, log: Log) -> None:
    """Of the 100 partitions with one replica those of one server are written to."""
    busy = [one for one in (await log.topics.describe("many")).partitions if one.leader == "r1"]

    async def produce() -> None:
        async with log.producer("many") as producer:
            for number in itertools.count():
                await producer.send(b"=" * 1000, partition=busy[number % len(busy)].partition)

    await reader.go("cluster")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(produce)
        shown = await reader.preview("Rebalance", by="traffic")
        nursery.cancel_scope.cancel()
    assert "B/s" in shown and "r1" in shown
    async with trio.open_nursery() as nursery:
        nursery.start_soon(produce)
        await reader.carry_out("Rebalance", "Begun")
        await reader.see(f"!{card('r1')}.includes('leads {len(busy)},')")
        nursery.cancel_scope.cancel()


async def a_server_that_is_gone_is_forgotten(reader: Reader, cluster: Cluster) -> None:
    await reader.go("cluster")
    await cluster.start("r5")
    await reader.see(f"{card('r5')}.includes('leads 0, follows 0')")
    await cluster.stop("r5")
    await reader.see(f"{card('r5')}.includes('not heard of')")
    assert "removed from the cluster" in await reader.preview("Forget a server", server="r5")
    await reader.carry_out("Forget a server", "Done: the cluster has forgotten r5.")
    await reader.see(f"!{card('r5')}")


async def missing_rights_are_named(reader: Reader, token: str) -> None:
    await reader.see("document.querySelector('[name=token]')")
    await reader.do(f"""(() => {{
        const form = document.querySelector('form');
        form.token.value = {token!r};
        form.querySelector('button').click();
    }})()""")
    await reader.see("text('.phase') === 'live at g2'")
    administer = "alice may not administer cluster; 'tidelog acls add alice cluster cluster' would allow it"
    await reader.fill("Rebalance", administer)
    await reader.go("partition/moved/0")
    await reader.fill("Transfer", administer)
    await reader.see("text('[data-name=Transfer]').includes('(FORBIDDEN). The rule that the message names')")
    await reader.go("topics/moved")
    await reader.preview("Settings", retention_ms="1h")
    await reader.carry_out("Settings", "Not done: alice may not alter topic:moved; 'tidelog acls add")
    await reader.fill("Delete this topic", "alice may not delete topic:moved", confirmed="moved")


async def test_topics_partitions_and_servers_are_administered(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    files = open_authority(tmp_path, now, LASTS).issue("g2", [], ["127.0.0.1"], now, LASTS)
    async with running(tmp_path, replicas=4) as cluster, tidelog.connect(cluster.gateway) as log:
        async with reading(cluster.gateway) as reader:
            await a_topic_is_created_changed_and_deleted(reader, log)
            await a_partition_is_moved(reader, log)
            await a_server_is_drained_and_emptied(reader, log)
            await learners_are_set(reader, log)
            await one_of_many_partitions_is_chosen(reader, log)
            await traffic_is_evened_out(reader, log)
            await a_server_that_is_gone_is_forgotten(reader, cluster)
        token = await log.access.create_token("alice")
        await log.access.alter_acls([Acl("alice", "describe", "topic:moved")])
        strict = {"authentication": True, "authorization": True, "tls_cert": files.cert, "tls_key": files.key}
        cluster.settings["g2"] = strict
        async with reading(await cluster.start("g2")) as reader:
            await missing_rights_are_named(reader, token)


async def test_moves_that_wait_for_their_turn_are_dropped(tmp_path: Path) -> None:
    patient = ControllerSettings(session_timeout_s=600.0, broken_link_grace_s=600.0)
    async with (
        running(tmp_path, settings={"c1": {"settings": patient}}) as cluster,
        tidelog.connect(cluster.gateway) as log,
    ):
        await log.topics.create("many", partitions=60, replication_factor=1)
        await log.cluster.drain_server("r1")
        await cluster.stop("r3")  # which the controllers do not know for long: copies to it never get in sync
        async with reading(cluster.gateway) as reader:
            assert "20 partitions would move" in await reader.preview("Rebalance", empty="on")
            await reader.carry_out("Rebalance", "Begun")
            moves = "text('[aria-labelledby=moves]')"
            await reader.see(f"/4 partitions on the way, [1-9]\\d* reassignments? waiting/.test({moves})")
            await reader.see(f"{moves}.includes('no answer yet') && {moves}.includes('waits for its turn')")
            drop = "[...document.querySelectorAll('button')].find((one) => one.innerText.startsWith('Drop the '))"
            await reader.do(f"{drop}.click()")
            await reader.see(f"{moves}.includes(', 0 reassignments waiting.')")
            assert not await log.partitions.waiting_moves()
