"""The report of a run: one HTML file that loads nothing from elsewhere, for light and dark screens."""

from __future__ import annotations

import platform
import shlex
import statistics
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

from chaos.cluster.capabilities import HOSTS
from chaos.driver import Outcome, Struck
from chaos.faults import FAULTS, Fault
from chaos.report.plots import Axis, Bar, lines, quantile, rates, timeline
from chaos.report.resources import Usage

STYLE = Path(__file__).with_name("report.css")
KINDS = {
    "processes": "processes",
    "links": "links",
    "disks": "disks",
    "spark": "Spark",
    "versions": "versions",
    "fell": "a process ended unasked",
}
"""CSS class of a bar -> its name in the legend."""


def render(
    outcome: Outcome,
    command: list[str],
    seed: int,
    lacking: Mapping[str, str],
    old: str = "",
) -> str:
    """Return the whole page. ``command`` is shown as the way to run it again; ``lacking`` has the capabilities that
    the machine lacked; ``old`` is the earlier revision that half of the processes began with."""
    body = [
        f"<h1>Chaos, seed {seed}</h1>",
        f"<p class=soft>{_length(outcome.seconds)} of a cluster of real processes under load: three controllers, "
        f"three replica servers, two gateways, {_links(lacking)}{_versions(old)}. {platform.platform()}, Python "
        f"{platform.python_version()}.</p>",
        _verdict(outcome),
        _tiles(outcome),
        _plots(outcome),
        _by_fault(outcome),
        _judged(outcome),
        _resources(outcome.usages, outcome.seconds),
        _left_out(lacking),
        f"<h2>Run it again</h2><p><code>{escape(shlex.join(command))}</code></p>",
        "<p>The schedule is a function of the seed. The process that a fault strikes depends on the leader then.</p>",
    ]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Chaos, seed {seed}</title><style>{STYLE.read_text()}</style></head>
<body><main>{"".join(body)}</main></body></html>
"""


def _links(lacking: Mapping[str, str]) -> str:
    if HOSTS in lacking:
        return "on one host, where each reaches the others through a proxy each"
    return "each on a host of its own"


def _versions(old: str) -> str:
    return f"; every second process began as revision {escape(old)}, the others as the present source" if old else ""


def _length(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:.1f} minutes"


def _verdict(outcome: Outcome) -> str:
    if not outcome.faults:
        return (
            '<div class="verdict"><b>Every promise was kept.</b><br>Nothing acknowledged is lost, changed, doubled '
            f"or out of order, and the logs of all replicas are equal to the byte.{_copied(outcome)}</div>"
        )
    found = "".join(f"<li>{escape(text)}</li>" for text in outcome.faults[:100])
    more = f"<li>and {len(outcome.faults) - 100} more</li>" if len(outcome.faults) > 100 else ""
    return f'<div class="verdict bad"><b>{len(outcome.faults)} findings.</b><ul>{found}{more}</ul></div>'


def _copied(outcome: Outcome) -> str:
    if outcome.copied is None:
        return ""
    return f" Spark copied each of {outcome.copied.rows:,} committed records once, and in order."


def _tiles(outcome: Outcome) -> str:
    done = [struck for struck in outcome.strikes if not struck.note]
    acked = sum(len(times) for times in outcome.meter.acks.values())
    tiles = {
        "faults": f"{len(done):,}",
        "kinds of faults": str(len({struck.fault for struck in done})),
        "records acknowledged by all": f"{acked:,}",
        "longest time without service": f"{max((struck.gap_s for struck in done), default=0):.1f} s",
        "bytes compared per replica": f"{outcome.comparison.bytes:,}",
        "processes that ended unasked": str(len(outcome.ended)),
    }
    return (
        '<div class="tiles">'
        + "".join(f"<div class=tile><b>{v}</b><small>{k}</small></div>" for k, v in tiles.items())
        + "</div>"
    )


def _plots(outcome: Outcome) -> str:
    meter, axis = outcome.meter, Axis(max(1.0, outcome.seconds))
    bars = [
        Bar(s.began, s.healed, kind(FAULTS[s.fault]), f"{s.fault} {s.target}, {s.began:.1f} to {s.healed:.1f} s")
        for s in outcome.strikes
        if not s.note
    ]
    bars += [Bar(at, at, "fell", f"{node} ended at {at:.1f} s: {line[:200]}") for at, node, line in outcome.ended]
    legend = "".join(f'<span class="key"><i class="{name}"></i>{words}</span>' for name, words in KINDS.items())
    written = {
        name: rates((at for at, _ in meter.done.get(name, ())), outcome.seconds)
        for name in ("acks all", "acks leader", "acks none", "conditional append", "transaction", "group read")
    }
    slow = [(at, took) for name in ("acks all", "conditional append") for at, took in meter.done.get(name, ())]
    waits = {name: quantile(slow, part, outcome.seconds) for name, part in (("median", 0.5), ("p99", 0.99))}
    failed = {
        name: rates(times, outcome.seconds)
        for name, times in sorted(meter.failed.items())
        if name != "conditional append"
    }
    made = [
        "<h2>What happened</h2>",
        f"<figure><figcaption><b>Faults</b> <small>minutes:seconds</small>{legend}</figcaption>",
        f"{timeline(bars, axis)}</figure>",
        lines(written, axis, "Done", "operations per second"),
        lines(waits, axis, "Time to acks of all", "seconds, logarithmic", log=True),
    ]
    if failed:
        made.append(lines(failed, axis, "Reported as failed", "operations per second", height=90))
    return "".join(made)


def kind(fault: Fault) -> str:
    """Return the kind of a fault, by which it is coloured: the name of its module."""
    return fault.module


def _by_fault(outcome: Outcome) -> str:
    groups: dict[str, list[Struck]] = {}
    for struck in outcome.strikes:
        groups.setdefault(struck.fault, []).append(struck)
    longest = max((s.gap_s for s in outcome.strikes), default=0) or 1
    rows = []
    for name, strikes in sorted(groups.items(), key=lambda item: -max(s.gap_s for s in item[1])):
        gaps = [s.gap_s for s in strikes if not s.note]
        if gaps:
            cells = f"<td class=n>{statistics.median(gaps):.2f}</td><td class=n>{max(gaps):.2f}</td>"
            bar = f'<td class=b><i style="width:{100 * max(gaps) / longest:.0f}%"></i></td>'
        else:
            cells, bar = "<td class=n></td><td class=n></td>", "<td></td>"
        notes = sorted({s.note for s in strikes if s.note})
        many = len(strikes) - len(gaps)
        note = f"<br><small>{many} came to nothing: {escape('; '.join(notes))}</small>" if notes else ""
        rows.append(
            f"<tr><td><b>{escape(name)}</b><br><small>{escape(FAULTS[name].words)}</small>{note}</td>"
            f"<td class=n>{len(gaps)}</td>{cells}{bar}</tr>"
        )
    single = "".join(
        f"<tr><td class=n>{s.began:.1f}</td><td class=n>{s.ended - s.began:.1f}</td>"
        f"<td class=n>{s.healed - s.ended:.1f}</td><td class=n>{s.gap_s:.2f}</td>"
        f"<td>{escape(s.fault)}</td><td>{escape(s.target)}</td><td>{escape(s.note)}</td></tr>"
        for s in outcome.strikes
    )
    return (
        "<h2>Time without service</h2><p class=soft>The longest time in which some partition that is written to "
        "acknowledged nothing with acks <code>all</code>, from the fault until 2 s after it was healed. Faults that "
        "overlap share their silence.</p><div class='card scroll'><table><tr><th>fault<th class=n>times"
        f"<th class=n>median s<th class=n>worst s<th></tr>{''.join(rows)}</table></div>"
        "<details><summary>Every fault in order</summary><div class='card scroll'><table><tr><th class=n>at s"
        "<th class=n>lasted s<th class=n>healing s<th class=n>without service s<th>fault<th>struck<th></tr>"
        f"{single}</table></div></details>"
    )


def _judged(outcome: Outcome) -> str:
    compared = outcome.comparison
    rows = [(name, f"{count:,}") for name, count in outcome.checked.items()]
    if copied := outcome.copied:
        rows += [
            ("copies that Spark wrote", f"{copied.rows:,}"),
            ("batches that Spark committed", f"{copied.batches:,}"),
            ("starts of the Spark query", f"{copied.starts:,}"),
        ]
    rows += [
        (f"{reason} (reported to a client)", f"{count:,}") for reason, count in outcome.meter.reasons.most_common(30)
    ]
    table = "".join(f"<tr><td>{escape(name)}</td><td class=n>{count}</td></tr>" for name, count in rows)
    ended = "".join(
        f"<tr><td class=n>{at:.1f}</td><td>{node}</td><td><small>{escape(line[:300])}</small></td></tr>"
        for at, node, line in outcome.ended
    )
    fell = (
        f"<details><summary>{len(outcome.ended)} times a process ended without being asked to, and was started again"
        "</summary><div class='card scroll'><table><tr><th class=n>at s<th>process<th>last line of its log</tr>"
        f"{ended}</table></div></details>"
    )
    return (
        "<h2>What was judged</h2><p>The history of all clients, operation by operation, against the logs as fresh "
        f"consumers read them at the end; and {compared.partitions} partitions with {compared.batches:,} batches "
        f"({compared.bytes:,} bytes) on the disk of each replica, batch by batch.</p>"
        f"<div class='card scroll'><table>{table}</table></div>{fell if ended else ''}"
    )


def _resources(usages: Mapping[str, Usage], seconds: float) -> str:
    made = []
    axis = Axis(max(1.0, seconds))
    for name, unit, scale in (
        ("memory", "MiB resident", 1 << 20),
        ("descriptors", "open", 1),
        ("disk", "MiB", 1 << 20),
    ):
        series = {
            node: [(at, amount / scale) for at, amount in _thin(usage.samples[name])]
            for node, usage in usages.items()
            if name in usage.samples
        }
        made.append(lines(series, axis, name.capitalize(), unit))
    return "<h2>What it took</h2>" + "".join(made) if usages else ""


def _thin(samples: list[tuple[float, float]], most: int = 500) -> Iterable[tuple[float, float]]:
    return samples[:: max(1, len(samples) // most)]


def _left_out(lacking: Mapping[str, str]) -> str:
    names = [(f.name, "; ".join(lacking[n] for n in f.needs if n in lacking)) for f in FAULTS.values()]
    rows = "".join(f"<li><b>{escape(name)}</b>: {escape(why)}</li>" for name, why in names if why)
    return f"<h2>Left out here</h2>{f'<ul>{rows}</ul>' if rows else '<p>Nothing.</p>'}"
