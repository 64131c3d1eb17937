"""HTTP at the port of a real gateway: what is appended and read, that no request is appended twice, and that rights
and limits are those of every client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import cbor2
import jsonschema
import pytest
import tidelog
import trio
from support.http.client import HttpClient, http_client
from tidelog.runtime.disk import Disk
from tidelog.types import Acl, Quota
from tidelog.wire.messages import Produce, ProducePart
from tidelog_gateway.http.openapi import document
from unit.tidelog.client.test_unreadable_batches import garbage

from cluster.harness import Cluster, connected, running
from cluster.test_slow_disk import SlowDisk

APPEND = "/v1/topics/orders/records"
READ = "/v1/topics/orders/partitions/0/records"
EVENTS = "/v1/topics/orders/partitions/0/events"


@asynccontextmanager
async def serving(
    folder: Path, partitions: int = 1, replicas: int = 3, disks: Mapping[str, Disk] | None = None, **config: str
) -> AsyncIterator[tuple[Cluster, tidelog.Log, HttpClient]]:
    """A cluster with a topic ``orders``, a client over a WebSocket, and one over HTTP."""
    async with running(folder, replicas=replicas, disks=disks) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", partitions=partitions, replication_factor=replicas, config=config)
        async with http_client(cluster.gateway) as client:
            with trio.fail_after(60):
                yield cluster, log, client


async def send(log: tidelog.Log, value: bytes, key: bytes | None = None) -> None:
    """Append a record over a WebSocket, and wait until it is committed."""
    async with log.producer("orders") as producer:
        await producer.send(value, key=key)


async def values(log: tidelog.Log, topic: str = "orders") -> list[bytes | None]:
    return [record.value async for record in log.consume(topic, start="earliest", end="latest")]


async def test_what_is_appended_over_http_is_read_by_every_client_and_the_other_way_round(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, log, client):
        raw = await client.ask("POST", f"{APPEND}?key=k%C3%A9", b"\xff\x00", Content_Type="image/png")
        assert raw.status == 200
        assert raw.json == {
            "topic": "orders",
            "acks": [
                {
                    "partition": 0,
                    "count": 1,
                    "offset": 0,
                    "leader_epoch": 0,
                    "durability": "all/fsync",
                    "duplicate": False,
                }
            ],
        }
        both = {"records": [{"key": "a", "value": "1", "headers": {"n": "v"}}, {"key": "a", "value": None}]}
        assert (await client.post_json(APPEND, both)).json["acks"][0]["offset"] == 1
        lines = b'{"value": "x"}\n\n{"value": "y"}\n'
        assert (await client.ask("POST", APPEND, lines, Content_Type="application/x-ndjson")).status == 200
        as_is = await client.ask("POST", f"{APPEND}?format=raw", b'{"a": 1}', Content_Type="application/json")
        assert as_is.status == 200
        await send(log, b"last")
        records = [record async for record in log.consume("orders", start="earliest", end="latest")]
        assert [(r.key, r.value, r.headers) for r in records] == [
            ("ké".encode(), b"\xff\x00", ()),
            (b"a", b"1", (("n", b"v"),)),
            (b"a", None, ()),
            (None, b"x", ()),
            (None, b"y", ()),
            (None, b'{"a": 1}', ()),
            (None, b"last", ()),
        ]
        read = await client.ask("GET", READ)
        assert [record["offset"] for record in read.json["records"]] == list(range(7))
        assert (read.json["next_offset"], read.json["high_watermark"]) == (7, 7)
        some = await client.ask("GET", f"{READ}?from=2&max=2", Accept="application/cbor")
        found = cbor2.loads(some.body)
        assert [record["value"] for record in found["records"]] == [None, b"x"]
        assert found["next_offset"] == 4 == int(some.headers["tidelog-next-offset"])
        one = await client.ask("GET", f"{READ}?from=0", Accept="application/octet-stream")
        assert (one.body, one.headers["tidelog-key"], one.headers["tidelog-next-offset"]) == (
            b"\xff\x00",
            "k%C3%A9",
            "1",
        )


async def test_an_append_may_expect_the_end_of_the_log(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, log, client):
        assert (await client.ask("POST", f"{APPEND}?expected_offset=0", b"a")).status == 200
        refused = await client.ask("POST", f"{APPEND}?expected_offset=0", b"b")
        assert (refused.status, refused.code, refused.json["values"]) == (412, "UNEXPECTED_OFFSET", {"end_offset": 1})
        assert await values(log) == [b"a"]


async def test_keys_choose_partitions_as_those_of_every_producer_do(tmp_path: Path) -> None:
    keys = [f"key-{n}" for n in range(20)]
    async with serving(tmp_path, partitions=4) as (_, log, client):
        sent = await client.post_json(APPEND, {"records": [{"key": key, "value": "http"} for key in keys]})
        assert sum(ack["count"] for ack in sent.json["acks"]) == 20 and len(sent.json["acks"]) == 4
        for key in keys:
            await send(log, b"websocket", key=key.encode())
        places: dict[bytes | None, set[int]] = {}
        async for record in log.consume("orders", start="earliest", end="latest"):
            places.setdefault(record.key, set()).add(record.partition)
        assert len(places) == 20 and all(len(found) == 1 for found in places.values())
        there = await client.ask("POST", "/v1/topics/orders/partitions/3/records", b"x")
        assert there.json["acks"][0]["partition"] == 3


async def test_a_request_that_is_wrong_appends_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as (cluster, log, client):
        long = json.dumps({"value": "x" * (2 << 20)}).encode()
        too_large = b"y" * (2 << 20)
        for body, kind, status in (
            (b'{"value": "a"}\n{"value": "b"}\n{"value": 3}\n', "application/x-ndjson", 400),
            (b"\n\n", "application/x-ndjson", 400),
            (b'{"records": [{"value": "a"}, {}]}', "application/json", 400),
            (long, "application/json", 413),
            (too_large, "text/plain", 413),
        ):
            answer = await client.ask("POST", APPEND, body, Content_Type=kind)
            assert (answer.status, bool(answer.code)) == (status, True)
        for target in ("?acks=some", "?expected_offset=-1", "?timeout=1e9", "?nothing=1", "?acks=all&acks=none"):
            async with http_client(cluster.gateway) as other:
                assert (await other.ask("POST", APPEND + target, b"x")).status == 400
        for path, code in (
            ("/v1/topics/nothing/records", "UNKNOWN_TOPIC"),
            ("/v1/topics/orders/partitions/7/records", "UNKNOWN_TOPIC"),
            ("/v1/topics/orders%2Frecords/records", "INVALID_TOPIC"),
            ("/v1/topics/orders/partitions/-1/records", "MALFORMED"),
            ("/v1/topics/orders/partitions/%31x/records", "MALFORMED"),
        ):
            assert (await client.ask("POST", path, b"x")).code == code
        async with http_client(cluster.gateway) as broken:
            await broken.stream.send_all(
                f"POST {APPEND} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\nhalf".encode()
            )
        async with http_client(cluster.gateway) as smuggler:
            hidden = f"POST {APPEND} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\n\r\nh"
            await smuggler.raw(
                f"POST {APPEND} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\n"
                "Transfer-Encoding: chunked\r\n\r\n"
                f"0\r\n\r\n{hidden}".encode()
            )
            assert await smuggler.is_closed()
        assert (await client.ask("POST", APPEND, b"good")).status == 200
        assert await values(log) == [b"good"]


# --- Idempotency-Key ---------------------------------------------------------------------------------------


async def test_a_request_with_a_key_is_appended_once_at_every_gateway_and_after_restarts(tmp_path: Path) -> None:
    async with serving(tmp_path, partitions=3) as (cluster, log, client):
        records = {"records": [{"key": f"k{n}", "value": str(n)} for n in range(9)] + [{"value": "no key"}]}
        first = await client.post_json(APPEND, records, Idempotency_Key="a")
        assert first.status == 200 and not any(ack["duplicate"] for ack in first.json["acks"])
        offsets = [(ack["partition"], ack["offset"]) for ack in first.json["acks"]]

        async def again(gateway: str) -> None:
            async with http_client(gateway) as other:
                found = await other.post_json(APPEND, records, Idempotency_Key="a")
                assert found.status == 200, found
                assert [(ack["partition"], ack["offset"]) for ack in found.json["acks"]] == offsets
                assert all(ack["duplicate"] and ack["durability"] == "all/fsync" for ack in found.json["acks"])

        await again(cluster.gateway)
        changed = await client.post_json(APPEND, {"records": [{"key": "k0", "value": "0"}]}, Idempotency_Key="a")
        assert (changed.status, changed.code) == (422, "SEQUENCE_CONFLICT")
        other_key = await client.post_json(APPEND, records, Idempotency_Key="b")
        assert not any(ack["duplicate"] for ack in other_key.json["acks"])
        await again(await cluster.start("g2"))
        await cluster.stop("g2")
        for node in ("r1", "r2", "r3"):
            await cluster.stop(node)
            await cluster.start(node)
        await again(await cluster.start("g3"))
        assert len(await values(log)) == 20


async def test_of_tries_at_the_same_time_one_is_appended(tmp_path: Path) -> None:
    async with serving(tmp_path) as (cluster, log, _):
        gateways = [cluster.gateway, await cluster.start("g2")]
        found: list[bool] = []

        async def send(gateway: str) -> None:
            async with http_client(gateway) as client:
                answer = await client.ask("POST", APPEND, b"x", Idempotency_Key="k")
                assert answer.status == 200, answer
                found.append(answer.json["acks"][0]["duplicate"])

        async with trio.open_nursery() as nursery:
            for n in range(10):
                nursery.start_soon(send, gateways[n % 2])
        assert sorted(found) == [False] + [True] * 9
        assert await values(log) == [b"x"]


async def test_a_second_try_waits_until_the_first_is_committed(tmp_path: Path) -> None:
    """The first try is in the log of the leader, and the disk of the follower does not answer."""
    disks = {"r1": SlowDisk(), "r2": SlowDisk()}
    async with serving(tmp_path, replicas=2, disks=disks, replica_max_lag_ms="60000") as (cluster, log, client):
        topic = await log.topics.describe("orders")
        slow = disks["r1" if topic.partitions[0].leader == "r2" else "r2"]
        await client.ask("POST", APPEND, b"first")
        slow.slow = topic.topic_id
        lost = await client.ask("POST", f"{APPEND}?timeout=0.5", b"x", Idempotency_Key="k")
        assert (lost.status, lost.json["unknown_outcome"]) == (504, True)
        behind = await client.ask("POST", f"{APPEND}?timeout=0.5", b"y", Idempotency_Key="l")
        assert behind.status == 504
        second: list[int] = []

        async def again(value: bytes, key: str) -> None:
            async with http_client(cluster.gateway) as other:
                answer = await other.ask("POST", APPEND, value, Idempotency_Key=key)
                second.append(answer.status)
                assert answer.json["acks"][0]["duplicate"], answer

        async with trio.open_nursery() as nursery:
            nursery.start_soon(again, b"x", "k")
            nursery.start_soon(again, b"y", "l")
            await slow.wait_sync()
            assert not second
            slow.be_quick()
        assert second == [200, 200]
        assert await values(log) == [b"first", b"x", b"y"]


async def test_a_key_is_remembered_among_as_many_others_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog_replica.replication.producer_state.MAX_PRODUCERS", 5)
    async with serving(tmp_path) as (_, log, client):
        for n in range(5):
            await client.ask("POST", APPEND, b"%d" % n, Idempotency_Key=f"k{n}")
        kept = await client.ask("POST", APPEND, b"0", Idempotency_Key="k0")
        assert kept.json["acks"][0]["duplicate"]
        await client.ask("POST", APPEND, b"5", Idempotency_Key="k5")  # pushes the oldest out
        forgotten = await client.ask("POST", APPEND, b"0", Idempotency_Key="k0")
        assert not forgotten.json["acks"][0]["duplicate"]
        assert await values(log) == [b"0", b"1", b"2", b"3", b"4", b"5", b"0"]


# --- reading -----------------------------------------------------------------------------------------------


async def test_a_read_waits_for_records_and_ends_with_its_client(tmp_path: Path) -> None:
    async with serving(tmp_path) as (cluster, log, client):
        found: list[str] = []

        async def wait() -> None:
            answer = await client.ask("GET", f"{READ}?from=0&wait=30")
            found.extend(record["value"] for record in answer.json["records"])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await send(log, b"a")
        assert found == ["a"]
        assert (await client.ask("GET", f"{READ}?from=1")).json["records"] == []
        async with http_client(cluster.gateway) as gone:
            await gone.stream.send_all(f"GET {READ}?from=1&wait=30 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        assert (await client.ask("GET", f"{READ}?from=9")).code == "OFFSET_OUT_OF_RANGE"
        assert (await client.ask("GET", f"{READ}?from=1&epoch=7")).code in ("LOG_TRUNCATED", "UNKNOWN_LEADER_EPOCH")


async def test_records_of_an_aborted_transaction_are_passed_over(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, log, client):
        await send(log, b"before")
        with pytest.raises(RuntimeError):
            async with log.transaction("app") as tx:
                await tx.send("orders", b"aborted")
                raise RuntimeError
        async with log.transaction("app") as tx:
            await tx.send("orders", b"committed")
        await log.wait_visible("app")
        read = await client.ask("GET", f"{READ}?wait=5")
        assert [record["value"] for record in read.json["records"]] == ["before", "committed"]
        assert read.json["next_offset"] == read.json["high_watermark"]
        behind = await client.ask("GET", f"{READ}?from=1&max=1")
        assert [record["value"] for record in behind.json["records"]] == ["committed"]
        await client.follow(f"{EVENTS}?from=earliest")
        assert [json.loads((await client.event())["data"])["value"] for _ in range(2)] == ["before", "committed"]


async def test_events_go_on_exactly_behind_the_last_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as (cluster, log, client):
        for n in range(10):
            await send(log, b"%d" % n)
        await client.follow(f"{EVENTS}?from=3")
        events = [await client.event() for _ in range(4)]
        assert [json.loads(event["data"])["value"] for event in events] == ["3", "4", "5", "6"]
        assert events[-1]["id"] == "6:0"
        async with http_client(cluster.gateway) as again:
            await again.follow(f"{EVENTS}?from=earliest", Last_Event_ID=events[-1]["id"])
            assert [json.loads((await again.event())["data"])["offset"] for _ in range(3)] == [7, 8, 9]
            await send(log, b"new")
            assert json.loads((await again.event())["data"])["value"] == "new"
        async with http_client(cluster.gateway) as many:
            await many.follow(EVENTS, Last_Event_ID="-1:-1")
            batch = [f'{{"value": "{n}"}}' for n in range(50)]
            await send(log, b"x")
            async with http_client(cluster.gateway) as sender:
                await sender.ask("POST", APPEND, "\n".join(batch), Content_Type="application/x-ndjson")
            assert [int((await many.event())["id"].partition(":")[0]) for _ in range(62)] == list(range(62))
        async with http_client(cluster.gateway) as wrong:
            assert (await wrong.ask("GET", EVENTS, Last_Event_ID="six")).code == "MALFORMED"
            assert (await wrong.ask("GET", EVENTS, Accept="application/json")).status == 406
            assert (await wrong.ask("GET", f"{EVENTS}?from=99")).status == 200


async def test_a_stream_ends_with_an_event_that_says_why(tmp_path: Path) -> None:
    async with serving(tmp_path) as (cluster, log, client):
        cluster.settings["g2"] = {"shutdown_s": 20.0}
        async with http_client(await cluster.start("g2")) as other, trio.open_nursery() as nursery:
            await other.follow(EVENTS)
            nursery.start_soon(cluster.stop, "g2")
            end = await other.event()
            assert end["event"] == "end" and "this gateway is ending" in json.loads(end["data"])["reason"]
            assert await other.event() == {}
        await client.follow(EVENTS)
        await log.topics.delete("orders")
        error = await client.event()
        assert (error["event"], json.loads(error["data"])["code"]) == ("error", "UNKNOWN_TOPIC")
        assert await client.event() == {}


async def test_a_batch_that_cannot_be_decoded_is_named_with_the_offset_behind_it(tmp_path: Path) -> None:
    async with serving(tmp_path, validate_batches="false") as (cluster, log, client):
        await send(log, b"a")
        topic = await log.topics.describe("orders")
        async with connected(cluster) as producer:
            await producer.init()
            batch = garbage(producer.producer_id)
            producer.link.post(Produce((ProducePart(1, topic.topic_id, 0, 2, 15_000, len(batch)),), batch))
            assert (await producer.wait_ack(1)).error is None
        await send(log, b"b")
        before = await client.ask("GET", READ)
        assert ([r["value"] for r in before.json["records"]], before.json["next_offset"]) == (["a"], 1)
        unreadable = await client.ask("GET", f"{READ}?from=1")
        assert (unreadable.code, unreadable.json["values"]) == ("CORRUPT_BATCH", {"offset": 1, "last_offset": 3})
        assert [r["value"] for r in (await client.ask("GET", f"{READ}?from=4")).json["records"]] == ["b"]
        await client.follow(f"{EVENTS}?from=earliest")
        assert json.loads((await client.event())["data"])["value"] == "a"
        assert json.loads((await client.event())["data"])["code"] == "CORRUPT_BATCH"


# --- rights ------------------------------------------------------------------------------------------------


async def test_a_client_over_http_has_the_rights_of_its_token_and_learns_of_nothing_else(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, tidelog.connect(cluster.gateway) as log:
        for topic in ("orders", "secret"):
            await log.topics.create(topic, replication_factor=3)
        token = await log.access.create_token("alice")
        await log.access.alter_acls([Acl("alice", "read", "topic:orders"), Acl("alice", "describe", "topic:orders")])
        cluster.settings["g2"] = {"authentication": True, "authorization": True}
        async with http_client(await cluster.start("g2"), token=token) as alice:
            assert (await alice.ask("GET", "/v1/topics")).json["topics"][0]["name"] == "orders"
            assert len((await alice.ask("GET", "/v1/topics")).json["topics"]) == 1
            assert (await alice.ask("GET", READ)).status == 200
            assert (await alice.ask("POST", APPEND, b"x")).code == "FORBIDDEN"
            assert (await alice.post_json("/v1/topics", {"name": "mine"})).code == "FORBIDDEN"
            assert (await alice.ask("DELETE", "/v1/topics/orders")).code == "FORBIDDEN"
            for method, rest in (
                ("GET", "partitions/0/records"),
                ("GET", "partitions/0/events"),
                ("POST", "records"),
                ("GET", ""),
            ):
                hidden = await alice.ask(method, f"/v1/topics/secret/{rest}")
                missing = await alice.ask(method, f"/v1/topics/absent/{rest}")
                assert hidden.status == missing.status == 404
                assert hidden.body.replace(b"secret", b"absent") == missing.body, "they look alike"
        assert await values(log) == []


async def test_a_quota_counts_for_requests_over_http(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, log, client):
        await log.access.alter_quotas([Quota("anonymous", requests_s=1)])
        statuses = [(await client.ask("GET", READ)).status for _ in range(20)]
        assert 429 in statuses
        refused = await client.ask("GET", READ)
        assert refused.code == "QUOTA_EXCEEDED" and int(refused.headers["retry-after"]) >= 1


# --- topics, groups, and the description -------------------------------------------------------------------


async def test_every_answer_is_as_the_description_says(tmp_path: Path) -> None:
    whole = document()
    async with serving(tmp_path) as (_, _log, client):

        def check(answer: object, operation: str) -> None:
            found = next(
                each for path in whole["paths"].values() for each in path.values() if each["operationId"] == operation
            )["responses"]
            response = found.get(str(answer.status), found.get("default"))  # type: ignore[attr-defined]
            if answer.status == 204:  # type: ignore[attr-defined]
                return
            kind = answer.headers["content-type"]  # type: ignore[attr-defined]
            schema = response["content"][kind]["schema"]
            jsonschema.Draft202012Validator({**schema, "components": whole["components"]}).validate(answer.json)  # type: ignore[attr-defined]

        check(await client.post_json("/v1/topics", {"name": "t", "config": {"retention_ms": "1000"}}), "create_topic")
        check(await client.post_json("/v1/topics", {"name": "t"}), "create_topic")
        check(await client.ask("GET", "/v1/topics"), "list_topics")
        check(await client.ask("GET", "/v1/metadata"), "describe_cluster")
        check(await client.ask("GET", "/v1/topics/t?offsets=true"), "describe_topic")
        check(await client.post_json(APPEND, {"value": "x", "headers": {"a": "b"}}), "append")
        check(await client.ask("POST", f"{APPEND}?acks=none", b"\xff"), "append")
        check(await client.ask("POST", f"{APPEND}?expected_offset=99", b"x"), "append")
        check(await client.ask("GET", f"{READ}?wait=5"), "read")
        check(await client.ask("GET", f"{READ}?from=x"), "read")
        at = {"topic": "orders", "partition": 0, "offset": 1, "metadata": "m"}
        check(await client.post_json("/v1/groups/g/positions", {"positions": [at]}, method="PUT"), "set_positions")
        got = await client.ask("GET", "/v1/groups/g/positions")
        check(got, "get_positions")
        assert got.json["group"] == "g" and got.json["positions"][0]["offset"] == 1
        check(await client.ask("DELETE", "/v1/topics/t"), "delete_topic")
        check(await client.ask("DELETE", "/v1/topics/t"), "delete_topic")
        assert (await client.ask("GET", "/v1/openapi.json")).json == json.loads(json.dumps(whole))
