"""The console in a headless Chromium, over a real cluster: what its reader sees."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import tidelog
import trio
from support.js_tools import needs_chromium
from tidelog.cli.local.dev import serve as serve_dev
from tidelog.cli.local.local_cluster import free_base_port
from tidelog.cli.local.readiness import wait_ready
from tidelog.errors import TidelogError
from tidelog.net.dev_certificates import open_authority
from tidelog.types import Acl
from tidelog.wire.messages import Metadata, MetadataAnswer, Play

from cluster.console.reader import Reader, reading
from cluster.harness import connected, running

pytestmark = needs_chromium

CHIP = "a.chip[href='#/partition/orders/0']"
FLOWS = "[aria-label^='From leader to follower']"
LINKS = "document.querySelector('.linked')?.ariaLabel"
LASTS = timedelta(days=1)


async def test_the_console_shows_present_and_past_states(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, connected(cluster) as client, reading(cluster.gateway) as reader:
        topic_id = await client.create("orders", 1, 3)
        await reader.see(f"text({CHIP!r}).includes('r1') && text('#notices').startsWith('All partitions')")
        await client.wait_ack(client.send(topic_id, b"one", b"two"))
        await reader.go("partition/orders/0")
        await reader.see("document.querySelectorAll('.track[aria-label*=\"high watermark 2\"]').length === 3")
        leader = (await client.partition("orders")).leader

        await reader.go("replication")
        await reader.see(
            f"text({FLOWS!r}).includes({leader!r}) && !!document.querySelector('.flow.moving, .flow.asking')"
        )

        await reader.go("cluster")
        await reader.see(f"{LINKS} === 'Connections to r1: g1; to r2: g1; to r3: g1; to c1: g1, r1, r2, r3'")
        await reader.see(f"text('.planes').includes({cluster.gateway!r})")
        await cluster.stop(leader)
        await reader.see(f"text('.node.bad').startsWith({leader!r})")
        await reader.see(f"{LINKS}?.includes('to {leader}:') === false")
        await reader.see(f"document.querySelector({CHIP!r}).className === 'chip behind'")
        await reader.see(
            f"/ e[1-9]|\\ne[1-9]/.test(text({CHIP!r})) && text('#notices').includes('{leader} not heard of')"
        )
        await reader.go("timeline")
        await reader.see(f"text('.events').includes('{leader} is gone') && text('.events').includes('1 new leader')")
        await reader.do("document.querySelectorAll('.events details').forEach((one) => (one.open = true))")
        await reader.see(f"text('.events').includes('leads after {leader}, in leader epoch 1')")

        await reader.go("replication")
        await reader.see(f"text('.events').includes('leads after {leader}') && text('main').includes('median')")

        slider = "document.querySelector('#timebar input')"
        await reader.go("cluster")
        await reader.do(f"{slider}.value = 1; {slider}.dispatchEvent(new Event('input'))")
        await reader.see(f"document.body.dataset.time === 'past' && !document.querySelector({CHIP!r})")
        await reader.do("document.querySelector('#timebar button:last-child').click()")
        await reader.see(f"document.body.dataset.time === 'live' && / e[1-9]|\\ne[1-9]/.test(text({CHIP!r}))")


async def test_it_says_that_the_gateway_is_gone_and_finds_it_again(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=1) as cluster, reading(cluster.gateway) as reader:
        await reader.see("text('.phase') === 'live at g1'")
        cluster.settings["g1"] = {"port": int(cluster.gateway.rpartition(":")[2])}
        await cluster.stop("g1")
        await reader.see("text('#notices').includes('does not answer') && text('.phase') === 'no gateway'")
        await cluster.start("g1")
        await reader.see("text('#notices').startsWith('All partitions') && text('.phase') === 'live at g1'")


@pytest.mark.parametrize(
    ("reserved", "seen"),
    [
        (1, "text('.phase') === 'live at g1'"),
        (0, "text('#notices').includes('refuses the connection: client_max_connections = 1 are connected: use')"),
    ],
)
async def test_it_opens_at_a_gateway_that_is_full_or_says_so(tmp_path: Path, reserved: int, seen: str) -> None:
    full = {"g1": {"client_max_connections": 1, "operator_reserved_connections": reserved}}
    async with running(tmp_path, replicas=1, settings=full) as cluster, tidelog.connect(cluster.gateway):
        with pytest.raises(TidelogError, match="client_max_connections = 1 are connected"):
            await tidelog.connect(cluster.gateway).__aenter__()
        async with reading(cluster.gateway) as reader:
            await reader.see(seen)


async def test_the_console_asks_for_a_token_and_shows_refusals(tmp_path: Path) -> None:
    files = open_authority(tmp_path, datetime.now(UTC), LASTS).issue(
        "g2", [], ["127.0.0.1"], datetime.now(UTC), LASTS
    )
    strict = {"authentication": True, "authorization": True, "tls_cert": files.cert, "tls_key": files.key}
    async with running(tmp_path, replicas=1) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", replication_factor=1)
        await log.topics.create("secrets", replication_factor=1)
        token = await log.access.create_token("alice")
        await log.access.alter_acls([Acl("alice", "read", "topic:orders")])
        cluster.settings["g2"] = strict
        gateway = await cluster.start("g2")
        async with reading(gateway) as reader:
            await reader.see("text('h1') === 'Who are you?' && document.activeElement.name === 'token'")
            for said, then in (
                ("wrong", "text('form').includes('is not known here')"),
                (token, "text('.phase') === 'live at g2'"),
            ):
                await reader.do(f"""(() => {{
                    const form = document.querySelector('form');
                    form.token.value = {said!r};
                    form.querySelector('button').click();
                }})()""")
                await reader.see(then)
            await reader.see("text('main').includes('orders') && !text('main').includes('secrets')")
            await reader.see("text('.planes').includes('Not told to these rights')")
            await reader.see("text('#timebar').includes('these rights do not reach it')")
            await reader.go("topics/orders")
            await reader.fill("Send a record", "write topic:orders", value="hello")
            await reader.go("groups")
            await reader.see("text('main').includes('Not known') && text('main code') === 'describe cluster'")
            await log.access.revoke_tokens_of("alice")
            await reader.see("text('h1') === 'Who are you?'")


async def test_topics_are_made_written_to_followed_and_searched(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=1) as cluster, reading(cluster.gateway) as reader:
        await reader.go("topics")
        await reader.see("text('.doing').includes('Create a topic')")
        await reader.fill("Create a topic", name="orders", partitions="4", replicas="1", retention_ms="1h")
        await reader.see("text('h1') === 'orders' && text('.doing').includes('Send a record')")
        await reader.see("!!document.querySelector('#timebar input')")

        await reader.show("follow")
        await reader.see("text('section [role=status]').startsWith('Following')")
        for value in ("first", '{"n": 2}', "0xa1616e03"):
            await reader.fill("Send a record", key="ada", value=value, headers="trace: 7")
            await reader.see("text('.doing [role=status]').startsWith('Acknowledged')")
        await reader.see("document.querySelectorAll('.records tbody tr').length === 3")
        await reader.see("text('.facts').includes('Records\\n3')")
        table = await reader.do("document.querySelector('.records').textContent")
        assert all(word in str(table) for word in ("first", '"n": 2', '"n": 3', "trace: 7"))

        await reader.show("newest", key="grace")
        await reader.see("text('section [role=status]') .startsWith('That is all: 0 found, 3 looked at.')")
        await reader.show("newest", key="ada", partition="key")
        await reader.see("text('section [role=status]') === 'That is all: 3 found, 3 looked at.'")
        assert "retention_ms: 1h → 2h" in await reader.preview("Settings", retention_ms="2h")
        await reader.carry_out("Settings", "Done")
        async with connected(cluster) as client:
            answer = await client.link.call(Metadata(("orders",)), 15)
        assert isinstance(answer, MetadataAnswer) and answer.topics[0].config["retention_ms"] == "7200000"
        await reader.see("!text('nav').includes('Play')")
        async with connected(cluster) as client:
            with pytest.raises(TidelogError) as refused:
                await client.link.call(Play("r1", "kill"), 15)
        assert refused.value.code == "UNSUPPORTED"


async def test_records_are_there_at_once_and_are_filtered_followed_and_saved(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=1) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", partitions=2, replication_factor=1)
        for number, codec in enumerate(("zstd", "lz4", "none")):
            async with log.producer("orders", tidelog.ProducerOptions(compression=codec)) as producer:
                await producer.send(f"{codec} {'=' * 60}".encode(), key=b"k", headers=[("n", b"%d" % number)])
        async with log.producer("orders") as producer:
            await producer.send(b'{"n":[1,5]}', partition=1)
        async with reading(cluster.gateway) as reader:
            await reader.go("topics/orders")
            await reader.see("document.querySelectorAll('.records tbody tr').length === 4")
            first = "[...document.querySelectorAll('.records tr td:last-child code:first-child')]"
            assert await reader.do(f"{first}.map((one) => one.textContent.slice(0, 4))") == [
                '{ "n',
                "none",
                "lz4 ",
                "zstd",
            ]
            everything = dict.fromkeys(("key", "value", "header", "path", "since", "until", "partition"), "")
            for fields, numbers in (
                ({"key": "k"}, 3),
                ({"value": "lz4"}, 1),
                ({"header": "n: 2"}, 1),
                ({"path": "n[*] > 4"}, 1),
                ({"partition": "1"}, 1),
                ({"until": "2020-01-01T00:00"}, 0),
                ({"since": "2020-01-01T00:00"}, 4),
            ):
                await reader.show("newest", **everything | fields)
                await reader.see(f"text('section [role=status]').startsWith('That is all: {numbers} found')")
            await reader.show("earliest", **everything | {"path": "= 3"})
            await reader.see("text('section [role=status]').startsWith('Not read: \"= 3\" is no path')")

            await reader.show("follow", **everything | {"header": "level: error", "value": "disk"})
            await reader.see("text('section [role=status]').startsWith('Following')")
            async with log.producer("orders") as producer:
                for value, level in (("disk is full", "error"), ("disk is fine", "info"), ("<b>disk</b>", "error")):
                    await producer.send(value.encode(), key=b"k", headers=[("level", level.encode())])
            await reader.see("text('section [role=status]') === 'Following: 2 found, 3 looked at.'")
            click = (
                "[...document.querySelectorAll('button')].find((one) => one.innerText.startsWith('Download')).click()"
            )
            saved = await reader.save(click, tmp_path)
        assert saved.name == "orders.ndjson"
        lines = [json.loads(line) for line in saved.read_text().splitlines()]
        assert [line["value"] for line in lines] == ["<b>disk</b>", "disk is full"]
        assert lines[0]["headers"] == [{"name": "level", "value": "error"}] and lines[0]["key"] == "k"


async def test_topics_are_a_table_with_the_worst_first_and_many_are_folded(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=1) as cluster, tidelog.connect(cluster.gateway) as log:
        for number in range(52):
            await log.topics.create(f"t{number:02}", partitions=2, replication_factor=1)
        async with log.producer("t00") as producer:
            await producer.send(b"one")
        await log.partitions.pause("t51", [1])
        async with reading(cluster.gateway) as reader:
            await reader.go("topics")
            row = "text('[aria-label=\"All topics\"] tbody tr')"
            await reader.see(f"{row}.startsWith('t51\t1 of 2 paused\t2\t≥ 0\t≥ 0 B')")
            second = row.replace("tbody tr", "tbody tr:nth-child(2)")
            await reader.see(f"{second}.startsWith('t00\tall in sync\t2\t1\t')")
            await reader.see("document.querySelectorAll('[aria-label=\"All topics\"] tbody tr').length === 50")
            await reader.click("Show 2 more")
            await reader.see("document.querySelectorAll('[aria-label=\"All topics\"] tbody tr').length === 52")
            async with log.producer("t00") as producer:
                await producer.send(b"two")
            await reader.see(f"/^t00\tall in sync\t2\t2\t\\d+ B\t/.test({second})")
            await reader.go("cluster")
            await reader.see("text('.topic').startsWith('t51') && document.querySelectorAll('.topic').length === 16")
            await reader.click("Show 16 more")
            await reader.see("document.querySelectorAll('.topic').length === 32")
            await reader.go("topics")
            await reader.see("!!document.querySelector('[aria-label=\"All topics\"] tbody tr:nth-child(2) a')")
            await reader.do("document.querySelector('[aria-label=\"All topics\"] tbody tr:nth-child(2) a').click()")
            await reader.see("text('h1') === 't00' && text('.records tbody').includes('two')")


async def every_panel_can_be_told_and_operated(reader: Reader) -> None:
    """By who hears the page, has no mouse, or reads it on a phone."""
    panels = ("cluster", "partition/orders/0", "timeline", "topics", "rates", "replication", "groups", "play")
    for width, scheme in ((1440, "dark"), (390, "dark"), (360, "light")):
        await reader.look_like(width, scheme)
        await reader.go("topics/orders")
        await reader.see("text('h1') === 'orders' && text('section [role=status]').startsWith('That is all')")
        await reader.do("document.querySelectorAll('main details').forEach((one) => (one.open = true))")
        assert await reader.nameless() == []
        assert await reader.do("document.documentElement.scrollWidth <= innerWidth"), f"a topic is wider than {width}"
        for place in panels:
            await reader.go(place)
            title = place.partition("/")[0].capitalize()
            await reader.see(f"text('nav [aria-current=page]') === '{title}' && document.title.startsWith('{title}')")
            await reader.see("document.querySelectorAll('main h1').length === 1")
            assert await reader.nameless() == [], place
            assert await reader.do("document.documentElement.scrollWidth <= innerWidth"), f"{place} at {width}"
            assert await reader.do("document.activeElement.id") == "main", "what comes next is the panel"
    assert await reader.do("document.querySelector('a, button, input, select').className") == "skip"
    await reader.do("document.querySelector('.skip').focus()")
    await reader.press("Tab", "Tab", "Enter")
    await reader.see("text('nav [aria-current=page]') === 'Partition'")
    await reader.go("topics")
    await reader.see("!!document.querySelector('[aria-label=\"All topics\"] tbody a')")
    await reader.do("document.querySelector('[aria-label=\"All topics\"]').focus()")
    await reader.press("Tab", "Enter")
    await reader.see("text('h1') === 'orders' && text('section [role=status]').startsWith('That is all')")
    await reader.do("document.querySelector('#timebar input').focus()")
    await reader.press("ArrowLeft")
    await reader.see("document.body.dataset.time === 'past'")


async def messages_can_be_stepped_through(reader: Reader, killed: str) -> None:
    """What the services said to each other while a server was killed, and the cluster at each moment of it."""
    await reader.go("play")
    await reader.click("Stop")
    await reader.see("text('.steps [role=status]').includes(' messages.')")
    await reader.do(f"""(() => {{
        const wanted = document.querySelector('.steps [type=search]');
        wanted.value = 'register {killed}';
        wanted.dispatchEvent(new Event('input'));
    }})()""")
    current = "text('.steps [aria-current=step]')"
    await reader.see(f"{current}.includes('{killed} → c1') && {current}.includes('register')")
    await reader.do("document.querySelector('[aria-label=\"One message on\"]').click()")
    await reader.see("text('.steps .row [role=status]').startsWith('2 of') && document.body.dataset.time === 'past'")
    await reader.see(f"{current}.includes('c1 → {killed}') && {current}.includes('answer to register')")
    await reader.do("document.querySelector('#timebar button:last-child').click()")
    await reader.see("document.body.dataset.time === 'live'")


async def test_the_nodes_of_a_cluster_for_development_can_be_played_with(tmp_path: Path) -> None:
    port = free_base_port(1)
    url = f"ws://127.0.0.1:{port}"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_dev, tmp_path, port, 3)
        with trio.fail_after(60):
            await wait_ready(url, 3)
        async with tidelog.connect(url) as log:
            topic = await log.topics.create("orders", partitions=1, replication_factor=3)
        leader = topic.partitions[0].leader
        async with reading(url) as reader:
            await reader.go("play")
            await reader.click("Listen")
            await reader.see("text('.steps [role=status]') === 'Listening…'")
            for act, state in (("Pause", "paused"), ("Cut off", "cut"), ("Kill", "killed")):
                await reader.go("play")
                await reader.see(f"document.querySelector('[aria-label=\"{act} {leader}\"]:enabled')")
                await reader.do(f"document.querySelector('[aria-label=\"{act} {leader}\"]').click()")
                await reader.see(f"text('main [role=status]') === '{leader} is {state} now.'")
                await reader.see(f"text('#notices').includes('{leader} not heard of')")
                await reader.do(f"document.querySelector('[aria-label=\"Heal {leader}\"]').click()")
                await reader.see(f"text('main [role=status]') === '{leader} is running now.'")
                await reader.see("text('#notices').startsWith('All partitions')")
            await messages_can_be_stepped_through(reader, leader)
            await every_panel_can_be_told_and_operated(reader)
        nursery.cancel_scope.cancel()
