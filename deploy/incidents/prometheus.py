"""Prometheus beside the cluster of a run, with the alerting rules of ``deploy/prometheus``."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import click
import trio
from tidelog.cli.local.local_cluster import HOST, LocalCluster, free_base_port
from tidelog.net.tls import TlsOptions

RULES = Path(__file__).resolve().parents[1] / "prometheus" / "alerts.yml"
EVERY_S = 2
"""Seconds between two scrapes, and between two evaluations of the rules."""
FIRES_S = 480.0
"""Seconds within which the alert of an incident must fire. Some conditions are met only after 5 minutes, such as that
of ``TidelogStableOffsetStands``."""
START_S = 60.0
"""Seconds within which Prometheus must answer."""
LOOK_S = 1.0
"""Pause in seconds between two looks at the alerts."""

Labels = frozenset[tuple[str, str]]
"""Names and values of the labels of an alert; its name is the value of ``alertname``."""


def rules(text: str, *, at_once: bool) -> str:
    """Return the text of alerting rules; with ``at_once`` without the times that conditions have to last, which are
    up to a day."""
    return re.sub(r"\bfor: \w+", "for: 0s", text) if at_once else text


def configuration(addresses: Sequence[str], tls: TlsOptions) -> str:
    """Return the configuration that scrapes these processes. If ``tls`` names a certificate, Prometheus presents it.
    It does not verify the certificates of the processes, because an incident may let one expire."""
    presented = {"cert_file": tls.cert, "key_file": tls.key, "insecure_skip_verify": True}
    scheme = {"scheme": "https", "tls_config": presented} if tls.cert else {}
    job = {"job_name": "tidelog", "static_configs": [{"targets": list(addresses)}], **scheme}
    every = f"{EVERY_S}s"
    return json.dumps(  # which is YAML, too
        {
            "global": {"scrape_interval": every, "evaluation_interval": every},
            "rule_files": ["rules.yml"],
            "scrape_configs": [job],
        }
    )


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running Prometheus."""

    url: str

    async def firing(self) -> dict[Labels, str]:
        """Return the alerts that fire: their labels -> their summary."""
        return dict(_firing(await trio.to_thread.run_sync(_get, f"{self.url}/api/v1/alerts")))

    async def wait_fires(self, alert: str, before: Mapping[Labels, str], healthy_group: str) -> None:
        """Wait until the alert fires with labels that are not in ``before``, and not about ``healthy_group``, which
        no incident strikes. Print its summary. Raises ``TimeoutError`` after ``FIRES_S`` seconds, with the alerts
        that fire then."""
        until = trio.current_time() + FIRES_S
        while trio.current_time() < until:
            for labels, summary in (await self.firing()).items():
                is_meant = ("alertname", alert) in labels and ("group", healthy_group) not in labels
                if is_meant and labels not in before:
                    click.echo(f"{alert} fires: {summary}")
                    return
            await trio.sleep(LOOK_S)
        others = "; ".join(sorted(set((await self.firing()).values()))) or "nothing"
        raise TimeoutError(f"{alert} does not fire within {FIRES_S:g} s; Prometheus says {others}")


@asynccontextmanager
async def scraped(program: Path | None, cluster: LocalCluster, *, at_once: bool) -> AsyncIterator[Prometheus | None]:
    """Have Prometheus scrape all processes of the cluster while the block runs. ``program`` is its executable file;
    None: it is not run, and the block gets None. ``at_once``: as in ``rules``. Raises ``TimeoutError`` if it does not
    start. If this process is killed, Prometheus goes on."""
    if program is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="tidelog-prometheus-") as folder:
        address = f"{HOST}:{free_base_port(1)}"
        running = _start(program, address, cluster, Path(folder), at_once)
        try:
            yield await _started(f"http://{address}", running)
        finally:
            running.terminate()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(running.wait)


def _start(
    program: Path, address: str, cluster: LocalCluster, folder: Path, at_once: bool
) -> subprocess.Popen[bytes]:
    (folder / "rules.yml").write_text(rules(RULES.read_text(), at_once=at_once))
    addresses = [process.url.split("://")[1].rstrip("/") for process in cluster.processes]
    (folder / "prometheus.yml").write_text(configuration(addresses, cluster.tls))
    options = {
        "config.file": "prometheus.yml",
        "storage.tsdb.path": "data",
        "web.listen-address": address,
        "log.level": "error",
    }
    command = [str(program), *(f"--{name}={value}" for name, value in options.items())]
    return subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL)


async def _started(url: str, running: subprocess.Popen[bytes]) -> Prometheus:
    """Return the Prometheus at this URL once it has scraped all processes and evaluated the rules."""
    prometheus = Prometheus(url)
    with trio.move_on_after(START_S):
        while running.poll() is None:
            try:
                await prometheus.firing()
            except OSError:
                await trio.sleep(LOOK_S)
            else:
                await trio.sleep(3 * EVERY_S)
                return prometheus
    raise TimeoutError("Prometheus does not start")


def _get(url: str) -> Any:
    with urlopen(url, timeout=30) as answer:
        return json.load(answer)


def _firing(answer: Any) -> Iterator[tuple[Labels, str]]:
    """Yield labels and summary of each alert that fires, from the answer of ``/api/v1/alerts``."""
    for alert in answer["data"]["alerts"]:
        if alert["state"] == "firing":
            yield frozenset(alert["labels"].items()), alert["annotations"]["summary"]
