"""Streams over HTTP at real services: what was acknowledged is there once and in order when a leader or a gateway has
gone, readers go on where they were, and rights and bounds hold."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import tidelog
import trio
from support.http.client import Answer, HttpClient, http_client
from tidelog.types import STREAMS, Acl

from cluster.harness import Cluster, running

PATH = "/v1/streams/chat/room-1"
TEXT = {"Content_Type": "text/plain"}


@asynccontextmanager
async def serving(folder: Path, **gateway: object) -> AsyncIterator[tuple[Cluster, HttpClient]]:
    """A cluster, and a client on its gateway."""
    settings = {"g1": dict(gateway)} if gateway else None
    async with running(folder, settings=settings) as cluster, http_client(cluster.gateway) as client:
        with trio.fail_after(60):
            yield cluster, client


async def leader_of(cluster: Cluster, path: str) -> str:
    """Return the server that coordinates a stream."""
    from tidelog.client.core.partitioner import partition_of

    async with tidelog.connect(cluster.gateway) as log:
        partitions = (await log.topics.describe(STREAMS)).partitions
        return str(partitions[partition_of(path.encode(), len(partitions))].leader)


async def append(client: HttpClient, seq: int, body: str) -> Answer:
    """Append once, however often it must be sent."""
    producer = {"Producer_Id": "p", "Producer_Epoch": "0", "Producer_Seq": str(seq)}
    while True:
        answer = await client.ask("POST", PATH, body, **TEXT, **producer)
        if answer.status < 500:
            return answer


async def test_acknowledged_appends_are_there_once_when_leaders_have_gone(tmp_path: Path) -> None:
    async with serving(tmp_path) as (cluster, client):
        assert (await client.ask("PUT", PATH, "first,", **TEXT)).status == 201
        expected = "first,"
        for seq in range(30):
            if seq % 10 == 5:
                leader = await leader_of(cluster, "chat/room-1")
                await cluster.stop(leader)
                stopped = leader
            if seq % 10 == 8:
                await cluster.start(stopped)
            assert (await append(client, seq, f"{seq},")).status in (200, 204)
            expected += f"{seq},"
        assert (await append(client, 29, "again,")).status == 204, "a second time changes nothing"
        whole = await client.ask("GET", PATH)
        assert whole.body.decode() == expected
        part = await client.ask("GET", f"{PATH}?offset={whole.headers['stream-next-offset']}")
        assert part.body == b""


async def test_a_reader_goes_on_at_another_gateway_exactly_where_it_was(tmp_path: Path) -> None:
    async with serving(tmp_path) as (cluster, client):
        await client.ask("PUT", PATH, "0", Content_Type="application/json")
        seen: list[int] = []
        offset = "-1"
        for gateway, wanted in (("g2", 3), ("g3", 5)):
            async with http_client(await cluster.start(gateway)) as reader:
                await reader.follow(f"{PATH}?offset={offset}&live=sse")
                await client.ask("POST", PATH, f"[{wanted - 2}, {wanted - 1}]", Content_Type="application/json")
                while len(seen) < wanted:
                    event = await reader.event()
                    if event["event"] == "data":
                        seen += json.loads(event["data"])
                        offset = json.loads((await reader.event())["data"])["streamNextOffset"]
            await cluster.stop(gateway)
        assert seen == list(range(5))


async def test_readers_that_wait_at_one_position_get_the_append_of_another_client(tmp_path: Path) -> None:
    async with serving(tmp_path) as (cluster, client):
        made = await client.ask("PUT", PATH, **TEXT)
        target = f"{PATH}?live=long-poll&offset={made.headers['stream-next-offset']}"
        answers: list[Answer] = []

        async def wait() -> None:
            async with http_client(cluster.gateway) as reader:
                answers.append(await reader.ask("GET", target))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(wait)
            await append(client, 0, "news")
        assert {answer.body for answer in answers} == {b"news"}
        assert {answer.headers["stream-up-to-date"] for answer in answers} == {"true"}
        await client.ask("POST", PATH, Stream_Closed="true")
        ended = await client.ask("GET", target.replace("0" * 16, f"{4:016d}"))
        assert (ended.status, ended.headers["stream-closed"]) == (204, "true")


async def test_a_client_may_do_with_streams_what_the_rules_say_and_no_more(tmp_path: Path) -> None:
    async with serving(tmp_path) as (cluster, client), tidelog.connect(cluster.gateway) as log:
        await client.ask("PUT", "/v1/streams/other", "secret", **TEXT)
        rules = [Acl("alice", "write", "stream:chat/*"), Acl("alice", "create", "stream:chat/*")]
        await log.access.alter_acls(add=rules)
        token = await log.access.create_token("alice")
        cluster.settings["g2"] = {"authentication": True, "authorization": True}
        url = await cluster.start("g2")
        async with http_client(url) as nobody, http_client(url, token=token) as alice:
            assert (await nobody.ask("GET", PATH)).status == 401
            assert (await alice.ask("PUT", PATH, **TEXT)).status == 201
            assert (await append(alice, 0, "x")).status == 200
            assert (await alice.ask("HEAD", PATH)).status == 200
            for method in ("GET", "DELETE"):
                answer = await alice.ask(method, PATH)
                assert (answer.status, answer.code) == (403, "FORBIDDEN")
            for method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
                answer = await alice.ask(method, "/v1/streams/other", "x", **TEXT)
                assert answer.status == 403
                assert b"secret" not in answer.body
