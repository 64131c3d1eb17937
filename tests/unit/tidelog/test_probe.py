"""``python -m tidelog.probe``: one question to a real service, and what a supervisor is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
import trio
from tidelog.net.dev_certificates import open_authority
from tidelog.net.tls import NodeIdentity, TlsOptions
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.probe import main
from tidelog_controller.config import ControllerConfig
from tidelog_controller.server import serve


@asynccontextmanager
async def controller(tmp_path: Path, tls: TlsOptions | None = None, **settings: object) -> AsyncIterator[str]:
    """The port of one that is alone, and so ready at once, unless ``settings`` name others."""
    files = {} if tls is None else {"tls_ca": tls.ca, "tls_cert": tls.cert, "tls_key": tls.key}
    config = ControllerConfig(port=0, data_dir=str(tmp_path / "c1"), shutdown_s=0, **files, **settings)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        url = await nursery.start(partial(serve, config, transport=WebSocketTransport(tls=config.tls)))
        yield url.rpartition(":")[2]
        nursery.cancel_scope.cancel()


async def ask(*arguments: str, **environ: str) -> int:
    """The exit code of the probe, run beside what it asks."""
    return await trio.to_thread.run_sync(partial(main, arguments, environ))


async def test_a_service_that_lives_but_is_not_ready_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peers = {"c1": "ws://127.0.0.1:1", "c2": "ws://127.0.0.1:2"}
    async with controller(tmp_path, peers=peers) as port:
        assert await ask("--port", port) == 0
        assert await ask("--ready", TIDELOG_PORT=port) == 1
    assert "no active controller is known" in capsys.readouterr().err


async def test_it_shows_the_certificate_of_the_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = datetime.now(UTC)
    authority = open_authority(tmp_path / "certs", now, timedelta(days=1))
    tls = authority.issue("c1", [NodeIdentity("controller", "c1")], ["c1.example"], now, timedelta(days=1))
    stranger = open_authority(tmp_path / "others", now, timedelta(days=1))
    async with controller(tmp_path, tls) as port:
        known = {"TIDELOG_PORT": port, "TIDELOG_TLS_CA": tls.ca}
        assert await ask(**known, TIDELOG_TLS_CERT=tls.cert, TIDELOG_TLS_KEY=tls.key) == 0
        assert await ask(**known) == 1, "the service lets nobody in without"
        shown = ("--tls-cert", tls.cert, "--tls-key", tls.key)
        assert await ask(*shown, TIDELOG_PORT=port, TIDELOG_TLS_CA=str(stranger.ca)) == 1
        assert "CERTIFICATE_VERIFY_FAILED" in capsys.readouterr().err


async def test_a_port_without_a_listener_fails_the_probe(
    capsys: pytest.CaptureFixture[str], unused_tcp_port: int
) -> None:
    assert await ask("--port", str(unused_tcp_port)) == 1
    assert capsys.readouterr().err == f"127.0.0.1:{unused_tcp_port} gives no answer: [Errno 111] Connection refused\n"


@pytest.mark.parametrize("arguments", [[], ["--port", "x"], ["--port", "1", "--tls-cert", "c.pem"]])
def test_wrong_arguments_end_the_probe_with_a_usage_error(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments, {})
    assert ended.value.code == 2
    assert "give the port" in capsys.readouterr().err


@pytest.fixture
def unused_tcp_port() -> int:
    """A port on which nobody listens."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
