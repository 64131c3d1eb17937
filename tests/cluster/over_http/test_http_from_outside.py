"""HTTP as clients outside have it: over TLS, through a proxy, and in a browser that loses its connection."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import tidelog
import trio
from support.browser import browser
from support.http.client import HttpClient, http_client
from support.js_tools import CHROMIUM, needs_chromium
from tidelog.net.dev_certificates import open_authority
from tidelog.types import Acl

from cluster.harness import running

APPEND = "/v1/topics/orders/records"
READ = "/v1/topics/orders/partitions/0/records"
EVENTS = "/v1/topics/orders/partitions/0/events"
LASTS = timedelta(days=1)
PATIENCE_S = 60


async def test_over_tls_a_client_appends_reads_and_follows(tmp_path: Path) -> None:
    files = open_authority(tmp_path, datetime.now(UTC), LASTS).issue(
        "g2", [], ["127.0.0.1"], datetime.now(UTC), LASTS
    )
    long = "é" * 400_000
    async with running(tmp_path, replicas=1) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", replication_factor=1)
        token = await log.access.create_token("alice")
        cluster.settings["g2"] = {"authentication": True, "tls_cert": files.cert, "tls_key": files.key}
        url = await cluster.start("g2")
        port = int(url.rpartition(":")[2])
        trust = ssl.create_default_context(cafile=files.ca)
        with trio.fail_after(PATIENCE_S):
            async with await trio.open_ssl_over_tcp_stream("127.0.0.1", port, ssl_context=trust) as stream:
                client = HttpClient(stream, token=token)
                sent = await client.ask("POST", APPEND, long)
                assert (sent.status, sent.json["acks"][0]["offset"]) == (200, 0)
                read = await client.ask("GET", READ)
                assert read.json["records"][0]["value"] == long, "more than the socket takes at once"
                await client.follow(f"{EVENTS}?from=earliest")
                assert json.loads((await client.event())["data"])["value"] == long
                async with log.producer("orders") as producer:
                    await producer.send(b"small")
                assert json.loads((await client.event())["data"])["value"] == "small"
            async with http_client(url) as plain:
                assert (await plain.ask("GET", "/v1/topics")).status == 426


# --- a proxy -----------------------------------------------------------------------------------------------


@dataclass
class Proxy:
    """Passes on bytes between its clients and a gateway as they come, and shows the heads of the requests."""

    nursery: trio.Nursery
    gateway: str
    heads: list[str] = field(default_factory=list)
    """What clients sent, by connection."""
    url: str = ""
    scopes: list[trio.CancelScope] = field(default_factory=list)
    """One for each connection."""

    async def start(self) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        self.nursery.start_soon(trio.serve_listeners, self._serve, listeners)

    def cut(self) -> None:
        """Break all connections that are open now."""
        for scope in self.scopes:
            scope.cancel()

    async def _serve(self, client: trio.SocketStream) -> None:
        host, _, port = self.gateway.partition("://")[2].rpartition(":")
        number = len(self.heads)
        self.heads.append("")

        async def up(scope: trio.CancelScope) -> None:
            async for data in client:
                self.heads[number] += data.decode("latin-1")
                await gateway.send_all(data)
            scope.cancel()

        self.scopes.append(trio.CancelScope())
        with self.scopes[-1]:
            async with client, await trio.open_tcp_stream(host, int(port)) as gateway, trio.open_nursery() as nursery:
                nursery.start_soon(up, nursery.cancel_scope)
                async for data in gateway:
                    await client.send_all(data)
                nursery.cancel_scope.cancel()


@asynccontextmanager
async def proxied(gateway: str) -> AsyncIterator[Proxy]:
    async with trio.open_nursery() as nursery:
        proxy = Proxy(nursery, gateway)
        await proxy.start()
        with trio.fail_after(PATIENCE_S):
            yield proxy
        nursery.cancel_scope.cancel()


async def test_through_a_proxy_events_come_at_once_and_each_request_has_its_own_rights(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=1) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", replication_factor=1)
        tokens = {name: await log.access.create_token(name) for name in ("alice", "bob")}
        await log.access.alter_acls([Acl("alice", "write", "topic:orders"), Acl("bob", "read", "topic:orders")])
        cluster.settings["g2"] = {"authentication": True, "authorization": True}
        async with proxied(await cluster.start("g2")) as proxy:
            async with http_client(proxy.url) as client, http_client(proxy.url, tokens["bob"]) as follower:
                await follower.follow(f"{EVENTS}?from=earliest", X_Forwarded_For="10.1.2.3")
                for number in range(3):  # the requests of both come over one connection
                    client.token = tokens["alice"]
                    assert (await client.ask("POST", APPEND, b"%d" % number, Via="1.1 proxy")).status == 200
                    assert (await client.ask("GET", READ)).status in (403, 404)
                    client.token = tokens["bob"]
                    assert (await client.ask("POST", APPEND, b"x")).code == "FORBIDDEN"
                    assert (await client.ask("GET", READ)).status == 200
                    event = await follower.event()
                    assert json.loads(event["data"])["value"] == str(number), "while the answer goes on"
            assert len(proxy.heads) == 2


# --- a browser ---------------------------------------------------------------------------------------------

FOLLOW = f"""
    window.got = []; window.waits = [];
    const source = new EventSource('{EVENTS}?from=earliest');
    source.onmessage = (event) => {{
        got.push(JSON.parse(event.data).value);
        waits.filter(([count]) => count <= got.length).forEach(([, done]) => done());
    }};
"""


def until(count: int) -> str:
    """JavaScript that waits for so many values and returns them."""
    wait = f"new Promise((done) => got.length >= {count} ? done() : waits.push([{count}, done]))"
    return f"{wait}.then(() => got)"


@needs_chromium
async def test_a_browser_whose_connection_breaks_goes_on_behind_the_last_event(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=1) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", replication_factor=1)

        async def send(*values: str) -> None:
            async with log.producer("orders") as producer:
                for value in values:
                    await producer.send(value.encode())

        await send("a", "b", "c")
        async with proxied(cluster.gateway) as proxy:
            assert CHROMIUM is not None
            with browser(CHROMIUM) as page:
                await trio.to_thread.run_sync(page.open, f"{proxy.url}/v1/openapi.json")
                await trio.to_thread.run_sync(page.evaluate, FOLLOW)
                assert await trio.to_thread.run_sync(page.evaluate, until(3)) == ["a", "b", "c"]
                proxy.cut()
                await send("d", "e")
                assert await trio.to_thread.run_sync(page.evaluate, until(5)) == ["a", "b", "c", "d", "e"]
                await send("f")
                assert await trio.to_thread.run_sync(page.evaluate, until(6)) == ["a", "b", "c", "d", "e", "f"]
            again = [head for head in proxy.heads if "Last-Event-ID: 2:0" in head]
            assert len(again) == 1 and again[0].startswith(f"GET {EVENTS}?from=earliest ")
