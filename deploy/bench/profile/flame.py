"""Where the time goes: one case of ``throughput.py`` with its processes under a sampling profiler, as a report.

    .venv/bin/python deploy/bench/profile/flame.py [--case 128k] [--flush os] [--seconds 6] [--report flame.html]

py-spy (in the dependency group ``dev``) looks at the Python stacks of the gateway, of the replica server that leads
the case's first partition, and of the client, so many times a second; only threads that run count. The report has a
table of shares by part of the program, by the innermost frame that belongs to one, and a flame graph for each
process. What the kernel does is counted on the line that called it: it has parts of its own where such lines do
nothing else.

To look at a process of another's takes root, or ``ptrace_scope`` 0. The profiler stops what it looks at for each
sample: the rate that the report names is not that of ``throughput.py``.
"""

from __future__ import annotations

import linecache
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from html import escape
from pathlib import Path

import click
import tidelog
import trio
from tidelog.cli.local.local_cluster import LocalCluster

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.harness.cluster import create
from bench.harness.processes import end_with_sigterm, require_linux
from bench.harness.rows import Row, cpu_text, machine, show
from bench.throughput import Bench, cases

PARTS = {
    "kernel: sockets": r"trio/_socket\.py",
    "kernel: epoll, and waiting in it": r"trio/_core/_(generated_)?io_epoll\.py",
    "kernel: files": r"tidelog/runtime/disk\.py",
    "trio: tasks, nurseries, events": r"trio/|outcome/|attrs generated methods (trio|outcome)",
    "frames, WebSocket": r"tidelog/net/(websocket/|transport\.py)|wsproto/|trio_websocket/|h11/",
    "codec": r"tidelog/wire/(?!link_session)|cbor2/",
    "links, sessions, outboxes": r"tidelog/net/|tidelog/runtime/listener\.py|/(link_)?session\.py",
    "batches of records": r"tidelog/batch/",
    "log": r"tidelog_replica/storage/",
    "replication": r"tidelog_replica/",
    "gateway": r"tidelog_gateway/",
    "client": r"tidelog/client/|bench/throughput\.py",
    "counting, logging, else": r"tidelog",
}
"""Part of the program -> pattern of the files of its frames. The first pattern that matches counts."""
OTHER = "other"
COLOURS = {name: f"hsl({360 * i // len(PARTS)} 62% 62%)" for i, name in enumerate([*PARTS])} | {OTHER: "#aaa"}
SHARED = Path(__file__).resolve().parents[3] / "shared"
STYLE = Path(__file__).resolve().parents[2] / "chaos" / "report" / "report.css"
OWN_STYLE = """
.flame text{font:10px ui-monospace,monospace;fill:#111;pointer-events:none}
.flame rect{stroke:var(--card)}
.flame rect:hover{stroke:var(--ink)}
i.part{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:7px;background:var(--colour)}
td:first-child{white-space:nowrap}
td.b i{background:var(--colour)}
"""
WIDTH, ROW = 1080, 15
WAITING = re.compile(r"trio/_core/_thread_cache\.py|\(threading\.py|_wait_for_tstate_lock")
"""Pattern of the innermost frame of a thread that waits for work: py-spy takes some of these threads for running."""
Stacks = Counter[tuple[str, ...]]
"""Number of samples of each stack, a tuple of frames from the outermost to the innermost."""


def read(text: str) -> Stacks:
    """Return the stacks in py-spy's ``raw`` output, which has a stack and its count in each line. Threads that wait
    are left out."""
    stacks: Stacks = Counter()
    for line in text.splitlines():
        frames, _, count = line.rpartition(" ")
        stack = tuple(frames.split(";"))
        if not WAITING.search(stack[-1]):
            stacks[stack] += int(count)
    return stacks


def writes_to_socket(frame: str) -> bool:
    """Return whether a frame is the line of ``net/direct_socket.py`` that calls the kernel."""
    at = re.search(r"\((tidelog/net/direct_socket\.py):(\d+)\)", frame)
    return at is not None and "os.writev" in linecache.getline(str(SHARED / at[1]), int(at[2]))


def part_of(stack: tuple[str, ...]) -> str:
    """Return the part of the innermost frame that belongs to one, so that time in a library counts for its caller;
    ``OTHER`` if no frame does."""
    if writes_to_socket(stack[-1]):
        return "kernel: sockets"
    for frame in reversed(stack):
        for name, pattern in PARTS.items():
            if re.search(pattern, frame):
                return name
    return OTHER


def shares(stacks: Stacks) -> dict[str, float]:
    """Return the share of each part in the samples, 0 to 1."""
    by_part: Counter[str] = Counter()
    for stack, count in stacks.items():
        by_part[part_of(stack)] += count
    return {name: count / stacks.total() for name, count in by_part.items()}


def merged(stacks: Stacks) -> Stacks:
    """Return the stacks without line numbers, and without the outermost frames that all have in common."""
    plain: Stacks = Counter()
    for stack, count in stacks.items():
        plain[tuple(re.sub(r":\d+\)$", ")", frame) for frame in stack)] += count
    skip = 0
    while len({stack[skip : skip + 1] for stack in plain}) == 1 and all(len(stack) > skip + 1 for stack in plain):
        skip += 1
    return Counter({stack[skip:]: count for stack, count in plain.items()})


def flame(stacks: Stacks) -> str:
    """Return the flame graph as SVG, from the top down; a box is as wide as its share of the samples, and has the
    colour of its part."""
    total, boxes, deepest = stacks.total(), [], 0

    def draw(below: Stacks, depth: int, x: float) -> None:
        nonlocal deepest
        groups: dict[str, Stacks] = {}
        for stack, count in below.items():
            if len(stack) > depth:
                groups.setdefault(stack[depth], Counter())[stack] += count
        for frame, group in sorted(groups.items()):
            width = WIDTH * group.total() / total
            if width >= 1:
                deepest = max(deepest, depth)
                path = next(iter(group))[: depth + 1]
                text = frame.partition(" (")[0][: int(width / 6.2)] if width > 25 else ""
                boxes.append(
                    f'<rect x="{x:.1f}" y="{depth * ROW}" width="{width:.1f}" height="{ROW - 1}" '
                    f'fill="{COLOURS[part_of(path)]}"><title>{escape(frame)}: {width / WIDTH:.1%}</title></rect>'
                    f'<text x="{x + 2:.1f}" y="{depth * ROW + 11}">{escape(text)}</text>'
                )
                draw(group, depth + 1, x)
            x += width

    draw(stacks, 0, 0.0)
    return f'<svg class="flame" viewBox="0 0 {WIDTH} {(deepest + 1) * ROW}">{"".join(boxes)}</svg>'


def lines(stacks: Stacks) -> str:
    """Return a table, in HTML, of the twenty lines in which most samples were."""
    own: Counter[str] = Counter()
    for stack, count in stacks.items():
        own[stack[-1]] += count
    rows = "".join(
        f"<tr><td><code>{escape(frame)}</code></td><td class=n>{count / stacks.total():.1%}</td></tr>"
        for frame, count in own.most_common(20)
    )
    return f"<details><summary>The twenty lines with most of it</summary><table>{rows}</table></details>"


def bar(share: float) -> str:
    """Return two cells of an HTML table: the share, and a bar of that length."""
    return f'<td class=n>{share:.1%}</td><td class=b><i style="width:{100 * share:.0f}%"></i></td>'


def render(row: Row, found: dict[str, Stacks], rate: int) -> str:
    """Return the report, one HTML file that loads nothing from elsewhere. ``found`` has the stacks of each process;
    ``rate`` is the number of samples a second."""
    by_process = [shares(stacks) for stacks in found.values()]
    names = sorted(COLOURS, key=lambda name: -max(part.get(name, 0.0) for part in by_process))
    rows = "".join(
        f'<tr style="--colour:{COLOURS[name]}"><td><i class=part></i>{escape(name)}</td>'
        + "".join(bar(part.get(name, 0.0)) for part in by_process)
        + "</tr>"
        for name in names
        if any(name in part for part in by_process)
    )
    heads = "".join(f"<th class=n>{escape(name)}</th><th></th>" for name in found)
    graphs = "".join(
        f"<h2>{escape(name)}</h2><p class=soft>{stacks.total():,} samples</p>"
        f"<figure>{flame(merged(stacks))}</figure>{lines(stacks)}"
        for name, stacks in found.items()
    )
    speed = f"{row.mb_per_s:.1f} MB/s" if row.mb_per_s else f"{row.records_per_s or 0.0:,.0f} records/s"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Where the time goes</title><style>{STYLE.read_text()}{OWN_STYLE}</style></head><body><main>
<h1>Where the time goes</h1><p class=soft>{escape(row.case)}, flush {row.flush}: {speed} under the profiler, {rate}
samples a second; CPU {cpu_text(row)}. {escape(machine())}.</p>
<h2>Shares by part</h2><p>Of the time in which a thread of the process ran. A sample is of the part of its innermost
frame that belongs to one. A process is caught in epoll as it goes to sleep or comes back; on a busy machine some of
its waiting counts there, too.</p>
<div class="card scroll"><table><tr><th>part</th>{heads}</tr>{rows}</table></div>
{graphs}</main></body></html>
"""


@contextmanager
def sampled(pid: int, file: Path, rate: int) -> Iterator[None]:
    """Let py-spy sample a process during the block, and write the stacks to ``file``. Raises ``ClickException`` if
    py-spy cannot read the process."""
    command = [str(Path(sys.executable).with_name("py-spy")), "record", "--pid", str(pid), "--rate", str(rate)]
    with subprocess.Popen(
        [*command, "--format", "raw", "--output", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as profiler:
        try:
            yield
        finally:
            profiler.send_signal(signal.SIGINT)  # it writes what it has
            output, _ = profiler.communicate()
    if not file.exists():
        raise click.ClickException(f"py-spy cannot look at process {pid}: {output.strip()}")


async def leader(cluster: LocalCluster, topic: str) -> str:
    """Return the leader of the first partition of a topic."""
    async with tidelog.connect(cluster.gateways()) as log:
        return str((await log.topics.describe(topic)).partitions[0].leader)


def profile(bench: Bench, name: str, rate: int, folder: Path) -> tuple[Row, dict[str, Stacks]]:
    """Run the case once for warmth, then under the profiler. Returns its figures and the stacks of each process."""
    case = cases(False)[name]
    topic = trio.run(bench.create_topic, name)
    trio.run(case, replace(bench, seconds=min(1.0, bench.seconds)), topic)
    server = trio.run(leader, bench.cluster, topic)
    pids = {"gateway": bench.cluster.get("g1").pid, f"leader, {server}": bench.cluster.get(server).pid}
    pids["client"] = os.getpid()
    files = {process: folder / f"{number}.txt" for number, process in enumerate(pids)}
    with ExitStack() as stack:
        for process, pid in pids.items():
            stack.enter_context(sampled(pid, files[process], rate))
        row = trio.run(case, bench, topic)
    show(row)
    return row, {process: read(file.read_text()) for process, file in files.items()}


@click.command(help=__doc__)
@click.option("--case", "name", type=click.Choice(list(cases(False))), default="128k", show_default=True)
@click.option("--flush", type=click.Choice(["fsync", "interval", "os"]), default="os", show_default=True)
@click.option("--seconds", type=float, default=6.0, show_default=True, help="Length of the case.")
@click.option("--rate", type=int, default=250, show_default=True, help="Samples a second.")
@click.option("--report", type=click.Path(path_type=Path), default=Path("flame.html"), show_default=True)
def main(name: str, flush: str, seconds: float, rate: int, report: Path) -> None:
    """Start a cluster, run a case under the profiler, and write the report."""
    require_linux()
    end_with_sigterm()
    folder = Path(tempfile.mkdtemp(prefix="tidelog-flame-"))
    cluster = create(folder / "cluster")
    try:
        cluster.start()
        trio.run(cluster.wait_ready)
        row, found = profile(Bench(cluster, flush, seconds, 1 << 30), name, rate, folder)
    finally:
        cluster.stop()
        shutil.rmtree(folder)
    report.write_text(render(row, found, rate))
    print(f"report: {report}")


if __name__ == "__main__":
    main()
