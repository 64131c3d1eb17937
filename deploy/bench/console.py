"""The console with many partitions: how long until the map is drawn, and what the open page takes.

    .venv/bin/python deploy/bench/console.py [--partitions 1000] [--rounds 5] [--idle 30] [--json FILE]

A cluster of real processes on this machine, with topics of 100 partitions and three replicas each, and the page in a
headless Chromium, 1440 pixels wide, without a graphics card. Each round opens the page three times:

    first   in a browser that has just been started
    cold    in a tab with an empty cache, of a browser that runs
    warm    in the next tab with the same cache

Times are milliseconds from the navigation: until the script of the page runs (``script``), until the metadata have
come (``metadata``), until the map is in the document (``map``), and until it is painted (``painted``). ``CPU`` is
that of the tab's process in ms, ``all CPU`` that of all processes of the browser. Then the page stays open at
Cluster, nobody touches it, and its CPU time is measured, in percent of a core. Other work on the machine lengthens
the times; the load average of the last minute is printed with them.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path

import click
import tidelog
import trio
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from bench.harness.cluster import running_cluster
from bench.harness.processes import require_linux
from bench.harness.rows import CONSOLE, machine
from support.browser import Page, browser
from support.js_tools import CHROMIUM

PER_TOPIC = 100
"""Partitions of a topic."""
WIDTH, HEIGHT = 1440, 900
LARGE = 20_000
"""Bytes: a larger message of the gateway is one with metadata."""
SETTLED_S = 5.0
"""Seconds after which an opened page has read all that it reads at first."""
WATCH = f"""
window.taken = {{}};
const take = (name) => (taken[name] ??= performance.now());
window.WebSocket = class extends WebSocket {{
  constructor(...given) {{
    take("script");
    super(...given);
    this.addEventListener("message", ({{ data }}) => data.byteLength > {LARGE} && take("metadata"));
  }}
}};
const watching = new MutationObserver(() => {{
  if (!document.querySelector(".chip")) return;
  watching.disconnect();
  take("map");
  requestAnimationFrame(() => {{
    const after = new MessageChannel();
    after.port1.onmessage = () => take("painted");
    after.port2.postMessage(null);
  }});
}});
watching.observe(document, {{ subtree: true, childList: true }});
"""
"""Runs in the page before its own scripts."""
PAINTED = (
    "new Promise((done) => { const look = () => (taken.painted ? done(taken) : setTimeout(look, 20)); look(); })"
)
REQUESTS = "performance.getEntriesByType('resource').filter((one) => one.transferSize > 0).length + 1"
STEPS = ("script", "metadata", "map", "painted")


def opened(page: Page, url: str, *, cold: bool) -> dict[str, float]:
    """Open the page in a new tab and return its figures when the map is painted. Times and CPU are in ms."""
    page.new_tab(cold=cold, script=WATCH)
    page.evaluate("new Promise((done) => setTimeout(done, 1000))")  # until the process of the tab has started
    before = page.cpu_s()
    page.go(url)
    taken = page.evaluate(PAINTED)
    used = {process: 1e3 * (now - before.get(process, 0.0)) for process, now in page.cpu_s().items()}
    tabs = sum(spent for (kind, _), spent in used.items() if kind == "renderer")
    steps = {step: taken[step] for step in STEPS}
    return {**steps, "requests": page.evaluate(REQUESTS), "CPU": tabs, "all CPU": sum(used.values())}


def idle(page: Page, seconds: float) -> dict[str, float]:
    """Return the share of a core that the open page takes while nothing happens, in percent: the tab's process, and
    all processes of the browser."""
    time.sleep(SETTLED_S)
    before, began = page.cpu_s(), time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    used = {process: 100 * (now - before.get(process, 0.0)) / took for process, now in page.cpu_s().items()}
    return {"idle": sum(used[one] for one in used if one[0] == "renderer"), "all idle": sum(used.values())}


async def create_topics(gateway: str, partitions: int) -> None:
    """Create topics of ``PER_TOPIC`` partitions, until there are so many."""
    async with tidelog.connect(gateway) as log:
        for number, first in enumerate(range(0, partitions, PER_TOPIC)):
            count = min(PER_TOPIC, partitions - first)
            await log.topics.create(f"topic-{number}", partitions=count, replication_factor=3)


def measure(url: str, rounds: int, idle_s: float) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Return the medians of all rounds by the way of opening, and the shares at rest."""
    assert CHROMIUM is not None
    found: dict[str, list[dict[str, float]]] = {}
    for number in range(rounds):
        with browser(CHROMIUM, f"--window-size={WIDTH},{HEIGHT}") as page:
            for way in ("first", "cold", "warm"):
                figures = opened(page, url, cold=way == "cold")
                found.setdefault(way, []).append(figures)
                CONSOLE.print(f"  {way:6}", ", ".join(f"{name} {value:.0f}" for name, value in figures.items()))
            if number == rounds - 1:
                shares = idle(page, idle_s)
    medians = {
        way: {name: statistics.median(one[name] for one in rows) for name in rows[0]} for way, rows in found.items()
    }
    return medians, shares


@click.command(help=__doc__)
@click.option("--partitions", default=1000, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--idle", "idle_s", default=30.0, show_default=True, help="Seconds of the measurement at rest.")
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures there, too.")
def main(partitions: int, rounds: int, idle_s: float, file: Path | None) -> None:
    require_linux()
    if CHROMIUM is None:
        raise click.ClickException("Chromium is missing: make chromium")
    with running_cluster() as cluster:
        gateway = cluster.gateways()[0]
        trio.run(create_topics, gateway, partitions)
        medians, shares = measure(gateway.replace("ws", "http", 1) + "/console/", rounds, idle_s)
    load = os.getloadavg()[0]
    table = Table("", *next(iter(medians.values())), box=None)
    for way, figures in medians.items():
        table.add_row(way, *(f"{value:.0f}" for value in figures.values()))
    CONSOLE.print(f"{partitions} partitions, medians of {rounds} rounds; {machine()}, load {load:.1f}", table)
    CONSOLE.print(
        f"at rest {shares['idle']:.2f} % of a core, all processes of the browser {shares['all idle']:.2f} %"
    )
    if file:
        report = {"partitions": partitions, "rounds": rounds, "load": load, "opened": medians, "at_rest": shares}
        file.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
