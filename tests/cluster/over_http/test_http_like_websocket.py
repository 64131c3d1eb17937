"""What holds for a client over a WebSocket holds over HTTP: rights, quotas, audit, and that no record comes twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tidelog
import trio
from support.http.client import http_client
from tidelog.errors import TidelogError
from tidelog.types import Acl, Quota
from tidelog.wire.messages import Read

from cluster.harness import Client, connected, running
from cluster.test_bounded_clients import until
from cluster.test_slow_disk import SlowDisk

APPEND = "/v1/topics/orders/records"
READ = "/v1/topics/orders/partitions/0/records"
GUARDED = {"authentication": True, "authorization": True, "audit": True}


async def over_websocket(url: str, token: str, topic: str) -> dict[str, str]:
    """The error code of each operation of a client over a WebSocket; "" if it is done."""
    found: dict[str, str] = {}

    async def attempt(name: str, work: Any) -> None:
        try:
            await work
            found[name] = ""
        except TidelogError as error:
            found[name] = error.code

    async def produce() -> None:
        async with log.producer(topic) as producer:
            await producer.send(b"x")

    async def consume() -> None:
        async for _ in log.consume(topic, start="earliest", end="latest"):
            pass

    async with tidelog.connect(url, token=token) as log:
        await attempt("describe", log.topics.describe(topic))
        await attempt("append", produce())
        await attempt("read", consume())
        await attempt("create", log.topics.create("new-" + topic, replication_factor=1))
        await attempt("delete", log.topics.delete("new-" + topic))
    return found


async def over_http(url: str, token: str, topic: str) -> dict[str, str]:
    """The error code of each operation of a client over HTTP; "" if it is done."""
    async with http_client(url, token) as client:
        answers = {
            "describe": await client.ask("GET", f"/v1/topics/{topic}"),
            "append": await client.ask("POST", f"/v1/topics/{topic}/records", b"x"),
            "read": await client.ask("GET", f"/v1/topics/{topic}/partitions/0/records"),
            "create": await client.post_json("/v1/topics", {"name": f"new-{topic}"}),
            "delete": await client.ask("DELETE", f"/v1/topics/new-{topic}"),
        }
    return {name: "" if answer.status < 300 else answer.code for name, answer in answers.items()}


async def test_each_principal_may_do_over_http_what_it_may_do_over_a_websocket(tmp_path: Path) -> None:
    rights = {
        "nobody": [],
        "looker": ["describe"],
        "reader": ["describe", "read"],
        "writer": ["describe", "write"],
        "admin": ["describe", "read", "write", "create", "delete"],
    }
    async with running(tmp_path, replicas=1) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", replication_factor=1)
        async with log.producer("orders") as producer:
            await producer.send(b"to be read")
        tokens = {name: await log.access.create_token(name) for name in rights}
        await log.access.alter_acls([Acl(name, each, "topic:*") for name, found in rights.items() for each in found])
        cluster.settings["g2"] = GUARDED
        url = await cluster.start("g2")
        await until(lambda: tidelog.connect(url, token=tokens["admin"]))
        outcomes = set[str]()
        for name, token in tokens.items():
            expected = await over_websocket(url, token, "orders")
            assert await over_http(url, token, "orders") == expected, name
            outcomes |= {"|".join(expected.values())}
        assert len(outcomes) == len(rights), "each can do something else"


async def test_a_quota_counts_both_and_is_named_in_the_same_words(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=1) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", replication_factor=1)
        topic = await log.topics.describe("orders")
        await log.access.alter_quotas([Quota("anonymous", requests_s=1)])
        with trio.fail_after(60):
            async with http_client(cluster.gateway) as client, connected(cluster) as other:
                codes: tuple[str, str] = ("", "")
                while codes != ("QUOTA_EXCEEDED", "QUOTA_EXCEEDED"):
                    answer = await client.ask("GET", READ)
                    codes = "" if answer.status == 200 else answer.code, await code_of(other, topic.topic_id)


async def code_of(client: Client, topic_id: str) -> str:
    """The error code of a read over a WebSocket; "" if it is answered."""
    try:
        await client.link.call(Read(topic_id, 0, 0), 30)
    except TidelogError as error:
        return error.code
    return ""


async def test_the_audit_topic_names_the_principal_of_each_change_and_refusal_over_http(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=1) as cluster, tidelog.connect(cluster.gateway) as log:
        cluster.settings["g2"] = GUARDED
        url = await cluster.start("g2")
        token = await log.access.create_token("alice")
        await log.access.alter_acls([Acl("alice", "create", "topic:orders")])
        await until(lambda: tidelog.connect(url, token=token))
        async with http_client(url, token) as alice:
            assert (await alice.post_json("/v1/topics", {"name": "orders"})).status == 201
            assert (await alice.ask("DELETE", "/v1/topics/orders")).code == "FORBIDDEN"
        async with http_client(url, token[:-1]) as stranger:
            assert (await stranger.ask("GET", "/v1/topics")).code == "UNAUTHENTICATED"
        events: list[dict[str, Any]] = []
        with trio.fail_after(60):
            await until(lambda: log.consume("__audit", start="earliest"))
            async with log.consume("__audit", start="earliest") as consumer:
                while len(events) < 3:
                    events += [json.loads(record.value or b"") for record in await consumer.next_records()]
        found = {
            (e["event"], e.get("principal", ""), e["op"], e.get("outcome", ""), e.get("name", "")) for e in events
        }
        assert found == {
            ("change", "alice", "create_topic", "done", ""),
            ("denied", "alice", "delete_topic", "", ""),
            ("unauthenticated", "", "hello", "", "http"),
        }
        assert all(event["remote"].startswith("127.0.0.1:") for event in events)
        assert token.split("_", 2)[2] not in json.dumps(events)


async def test_a_webhook_whose_gateway_dies_before_it_answers_is_appended_once(tmp_path: Path) -> None:
    disks = {"r1": SlowDisk(), "r2": SlowDisk()}
    hook = f"{APPEND}?format=raw"
    async with running(tmp_path, replicas=2, disks=disks) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", replication_factor=2, config={"replica_max_lag_ms": "60000"})
        topic = await log.topics.describe("orders")
        slow = disks["r1" if topic.partitions[0].leader == "r2" else "r2"]
        gateways = [await cluster.start("g2"), await cluster.start("g3")]
        slow.slow = topic.topic_id
        answers: list[bool] = []

        async def deliver(gateway: str) -> None:
            async with http_client(gateway) as sender:
                try:
                    answer = await sender.ask(
                        "POST", hook, b'{"paid": 17}', Content_Type="application/json", Idempotency_Key="delivery-17"
                    )
                except (EOFError, trio.BrokenResourceError):
                    return
                answers.append(answer.json["acks"][0]["duplicate"])

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(deliver, gateways[0])
                await slow.wait_sync()  # it is in both logs, and not committed
                await cluster.stop("g2")
                nursery.start_soon(deliver, gateways[1])
                slow.be_quick()
            assert answers == [True]
            await deliver(await cluster.start("g4"))
        assert answers == [True, True]
        assert [r.value async for r in log.consume("orders", start="earliest", end="latest")] == [b'{"paid": 17}']
