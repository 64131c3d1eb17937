"""A gateway that takes the tokens of an issuer that is not ours (``oidc-provider-mock``, a process of its own): who
gets in, until when, and what happens while the issuer changes its key or is away."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import tidelog
import trio
from running import HEAL_S, until
from tidelog.cli.local.local_cluster import LocalCluster, free_base_port
from tidelog.errors import TidelogError

pytestmark = pytest.mark.real

SETTINGS = """
authorization = true
superusers = ["alice", "anonymous"]

[oidc]
issuer = "{issuer}"
audience = ["tidelog"]
jwks = "{issuer}/jwks"
leeway_s = 0
"""
BACK = "http://127.0.0.1:1/back"


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


class Provider:
    """The issuer. Each life has a key of its own."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self, token_s: int = 3600) -> None:
        """Until it answers."""
        command = [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock"]
        options = ["--port", str(self._port), "--token-max-age", str(token_s), "--no-refresh-token", "true"]
        self._process = subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL)  # noqa: ASYNC220

        async def answers() -> bool:
            try:
                return bool(await trio.to_thread.run_sync(self.keys))
            except urllib.error.URLError:
                return False

        await until(answers)

    def keys(self) -> Any:
        with urllib.request.urlopen(f"{self.url}/jwks", timeout=5) as answer:
            return json.load(answer)["keys"]

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def token(self, subject: str, audience: str = "tidelog") -> str:
        """An ID token, by the authorization code flow."""
        asked = {"response_type": "code", "client_id": audience, "redirect_uri": BACK, "scope": "openid"}
        page = f"{self.url}/oauth2/authorize?{urllib.parse.urlencode(asked)}"
        opener = urllib.request.build_opener(_Stay)
        with pytest.raises(urllib.error.HTTPError) as moved:
            opener.open(page, urllib.parse.urlencode({"sub": subject}).encode(), timeout=10)
        with moved.value as redirect:
            [code] = urllib.parse.parse_qs(urllib.parse.urlsplit(redirect.headers["location"]).query)["code"]
        sent = {"grant_type": "authorization_code", "code": code, "redirect_uri": BACK}
        sent |= {"client_id": audience, "client_secret": "any"}
        body = urllib.parse.urlencode(sent).encode()
        with urllib.request.urlopen(f"{self.url}/oauth2/token", body, timeout=10) as answer:
            token = json.load(answer)["id_token"]
        assert isinstance(token, str)
        return token


@pytest.fixture(scope="module")
def ports() -> int:
    return free_base_port(4)


@pytest.fixture
def provider(ports: int) -> Iterator[Provider]:
    made = Provider(ports + 3)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def gateway(ports: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("oidc")
    local = LocalCluster.create(folder, controllers=1, replicas=1, gateways=1, base_port=ports)
    with (folder / "g1" / "config.toml").open("a") as config:
        config.write(SETTINGS.format(issuer=f"http://127.0.0.1:{ports + 3}"))
    command = [sys.executable, "-m", "tidelog.cli", "cluster", "up", "--detach", "--data", str(folder)]
    subprocess.run(command, check=True, capture_output=True, timeout=HEAL_S)
    local = LocalCluster.load(folder)
    try:
        yield local
    finally:
        local.stop()


async def refused(url: str, token: str) -> str:
    with pytest.raises(TidelogError) as caught:
        async with tidelog.connect(url, token=token, connect_timeout_s=HEAL_S):
            pass
    return str(caught.value)


async def test_tokens_of_a_foreign_issuer_open_what_the_rules_allow(
    provider: Provider, gateway: LocalCluster
) -> None:
    url = gateway.gateways()[0]
    await provider.start()
    alice, bob = provider.token("alice"), provider.token("bob")
    async with tidelog.connect(url, token=bob, connect_timeout_s=HEAL_S) as log:
        assert await log.topics.list() == ()
        with pytest.raises(TidelogError, match="oidc-bob may not create topic:orders"):
            await log.topics.create("orders")
    async with tidelog.connect(url, token=alice, connect_timeout_s=HEAL_S) as log:
        with pytest.raises(TidelogError, match="oidc-alice may not create"):  # the issuer names no superuser
            await log.topics.create("orders")
    assert "its aud is missing, or not" in await refused(url, provider.token("bob", "billing"))
    head, body, signature = bob.split(".")
    assert "its issuer has no such key" in await refused(url, f"{head}.{alice.split('.')[1]}.{signature}")
    assert body not in await trio.Path(gateway.get("g1").log).read_text(), "no token is logged"


async def test_a_connection_ends_with_its_token_and_the_next_key_is_found(
    provider: Provider, gateway: LocalCluster
) -> None:
    """Another life of the issuer has another key; the gateway asks for it as soon as a token names it."""
    url = gateway.gateways()[0]
    await provider.start(token_s=20)
    token = provider.token("bob")
    end = json.loads(_decoded(token.split(".")[1]))["exp"]
    with trio.fail_after(HEAL_S):
        async with tidelog.connect(url, token=token, connect_timeout_s=HEAL_S) as log:
            link = log._connection.link
            assert link is not None
            await link.wait_closed()
            assert "expired" in str(link.error)
            assert time.time() >= end
        assert "has expired" in await refused(url, token)


async def test_the_keys_outlive_their_issuer(provider: Provider, gateway: LocalCluster) -> None:
    url = gateway.gateways()[0]
    await provider.start()
    token = provider.token("bob")
    async with tidelog.connect(url, token=token, connect_timeout_s=HEAL_S):
        provider.stop()
    async with tidelog.connect(url, token=token, connect_timeout_s=HEAL_S) as log:
        assert await log.topics.list() == (), "its keys are still known"


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
