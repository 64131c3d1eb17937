"""``tidelog doctor``: what is wrong with a cluster and with this machine, and what to do next."""

from __future__ import annotations

import re
import resource
import ssl
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from urllib.error import URLError
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

import click
import trio
from rich.console import Console

from tidelog.cli.findings import FEW_FILES, NOTE, PROBLEM, WARNING, Finding, View, examine, in_order
from tidelog.cli.main import NEXT_STEP, connect, gateway_option, json_option, print_json, run, tls_options
from tidelog.errors import TidelogError
from tidelog.link import PROTOCOL_VERSION
from tidelog.tls import TlsFiles
from tidelog.wire.messages import MetadataAnswer, QuorumAnswer

ASK_S = 5.0
"""How long the controllers may take to answer."""
PAGE_S = 3.0
"""How long a page of metrics may take."""
_SAMPLE = re.compile(r"^([a-z_]+)(?:\{[^}]*\})? ([0-9.e+-]+)", re.MULTILINE)
_STYLES = {PROBLEM: "bold red", WARNING: "yellow", NOTE: "dim"}


@click.command()
@json_option
@gateway_option
def doctor(as_json: bool, gateways: tuple[str, ...]) -> None:
    """Look for what is wrong with the cluster and this machine, and say the next step for each finding.

    It looks at every gateway that is named, the controllers and their majority, replica servers, their disks (where
    their metrics can be read from here), each partition's leader and in-sync replicas, and what this process may
    open. Exit code 0: nothing but notes; 1: problems or warnings."""
    found: list[Finding] = []
    seen: dict[str, object] = {"client": _version(), "protocol": PROTOCOL_VERSION}

    async def task() -> None:
        views = [view for url in gateways if (view := await _look(url, found))]
        clusters = sorted({view.metadata.cluster for view in views})
        if len(clusters) > 1:
            what = f"the gateways belong to several clusters: {', '.join(clusters)}"
            found.append(Finding(PROBLEM, what, "Name gateways of one cluster with --gateway."))
        if views:
            metadata, quorum = views[0].metadata, views[0].quorum
            metrics = await _read_metrics(metadata, found)
            found.extend(examine(View(metadata, quorum, metrics)))
            seen.update(_counted(metadata, quorum), disks_seen=sorted(metrics))

    run(task)
    found.extend(_machine())
    healthy = all(finding.level == NOTE for finding in found)
    _show(in_order(found), seen, healthy, as_json)
    raise SystemExit(0 if healthy else 1)


def _version() -> str:
    try:
        return version("tidelog")
    except PackageNotFoundError:
        return "not installed"


async def _look(url: str, found: list[Finding]) -> View | None:
    """The cluster as one gateway sees it; None where it does not answer."""
    try:
        async with connect((url,)) as log:
            metadata = await log.status()
            quorum = None
            with trio.move_on_after(ASK_S):
                try:
                    quorum = await log.quorum()
                except TidelogError as error:
                    found.append(Finding(WARNING, f"{url}: {error}", NEXT_STEP.get(error.code, "See its log.")))
            return View(metadata, quorum)
    except TidelogError as error:
        step = NEXT_STEP.get(error.code, "See the log of this gateway.")
        found.append(Finding(PROBLEM, f"gateway {url}: {error}", step))
    return None


def _counted(metadata: MetadataAnswer, quorum: QuorumAnswer | None) -> dict[str, object]:
    return {
        "cluster": metadata.cluster,
        "active_controller": quorum.active if quorum else "",
        "controllers": len(quorum.controllers) if quorum else 0,
        "servers": len(metadata.servers),
        "topics": len(metadata.topics),
        "partitions": sum(len(topic.partitions) for topic in metadata.topics),
    }


async def _read_metrics(metadata: MetadataAnswer, found: list[Finding]) -> dict[str, Mapping[str, float]]:
    """Of the live replica servers whose page can be read from here."""
    options = tls_options()
    context = TlsFiles(options).connecting()
    read: dict[str, Mapping[str, float]] = {}
    hidden: list[str] = []

    async def one(node: str, url: str) -> None:
        page = "http" + url.removeprefix("ws").rstrip("/") + "/metrics"
        try:
            read[node] = await trio.to_thread.run_sync(_metrics, page, context)
        except (URLError, OSError, ValueError):
            hidden.append(node)

    async with trio.open_nursery() as nursery:
        for server in metadata.servers:
            if not server.fenced:
                nursery.start_soon(one, server.node, server.url)
    if hidden:
        what = f"the metrics of {', '.join(sorted(hidden))} cannot be read from here: their disks are not known"
        found.append(Finding(NOTE, what, "Run 'tidelog doctor' where the replica servers can be reached."))
    return read


def _metrics(page: str, context: ssl.SSLContext) -> dict[str, float]:
    """Metric -> value, over all labels together."""
    opener = build_opener(ProxyHandler({}), HTTPSHandler(context=context))
    with opener.open(page, timeout=PAGE_S) as answer:
        text = answer.read().decode()
    values: dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        values[name] = values.get(name, 0.0) + float(value)
    return values


def _machine() -> list[Finding]:
    """What this process may do."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= FEW_FILES:
        return []
    what = f"a process may open {hard} files on this machine: few for a replica server, or a gateway of many clients"
    return [Finding(NOTE, what, "Raise it where they are started: 'ulimit -n', or LimitNOFILE= of a systemd unit.")]


def _show(found: list[Finding], seen: dict[str, object], healthy: bool, as_json: bool) -> None:
    if as_json:
        print_json({"healthy": healthy, "seen": seen, "findings": [asdict(finding) for finding in found]})
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(", ".join(f"{name.replace('_', ' ')} {_text(value)}" for name, value in seen.items()))
    for finding in found:
        console.print(f"[{_STYLES[finding.level]}]{finding.level}[/]", end=": ")
        console.print(finding.what, markup=False)
        console.print(f"    {finding.next_step}", markup=False)
    console.print("healthy" if healthy else f"{sum(f.level != NOTE for f in found)} findings")


def _text(value: object) -> str:
    return " ".join(map(str, value)) or "none" if isinstance(value, list) else str(value) or "none"
