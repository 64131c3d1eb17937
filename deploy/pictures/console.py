"""The pictures of the console in its documentation.

    make console-pictures        (that is .venv/bin/python deploy/pictures/console.py [--out docs/plots])

Starts the cluster of ``tidelog dev`` in this process, with topics, groups, transactions, tokens and traffic, opens
each panel in a headless Chromium, and writes a picture of each. Offsets and times differ from run to run.
"""

from __future__ import annotations

import io
import itertools
import json
import random
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import click
import tidelog
import trio
from PIL import Image
from tidelog.cli.local.dev import serve as serve_dev
from tidelog.cli.local.local_cluster import free_base_port
from tidelog.cli.local.readiness import wait_ready
from tidelog.cli.output import say
from tidelog.client.log import Log
from tidelog.runtime import logs
from tidelog.types import Acl, Quota

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from cluster.console.reader import Reader, reading
from support.js_tools import CHROMIUM

PLOTS = Path(__file__).resolve().parents[2] / "docs" / "plots"
SERVERS = 3
WIDE, NARROW = 1440, 390
"""Widths of a desktop and of a phone in CSS pixels."""
COLOURS = 256
"""Most colours of a picture: this makes the files small."""
PLOTTED_S = 20
"""Seconds that a panel with plots stays open before its picture is taken."""
LASTS_S = 600.0
"""Seconds that a transaction stays open: longer than all pictures take."""
TOPICS = {"orders": 6, "clicks": 12, "payments": 3, "invoices": 2}
"""Topics with their numbers of partitions."""
CITIES = ("Kiel", "Oslo", "Porto", "Riga")
SETTLED_S = 3
"""Seconds until the cluster has reacted to the loss of a server."""
DOWN = "r2"
"""The server that is killed."""


async def as_it_opens(reader: Reader) -> None:
    """Leave the panel as it was when it opened."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of one panel."""

    name: str
    """``console-NAME.png``."""
    place: str
    """Where it is: what follows ``#/`` in the address."""
    ready: str
    """JavaScript condition that holds when the panel shows what it shall."""
    prepare: Callable[[Reader], Awaitable[None]] = as_it_opens
    width: int = WIDE
    height: int = 820
    scheme: str = "light"


async def fill_filter(reader: Reader) -> None:
    await reader.do("document.querySelectorAll('.filters').forEach((one) => (one.open = true))")
    await reader.show("newest", path="$.total > 60", header="city: Kiel")
    counts = "text('section [role=status]').match(/(\\d+) found, (\\d+) looked at\\.$/)"
    await reader.see(f"{counts}?.[1] > 0 && {counts}[2] > 2 * {counts}[1]")
    await reader.do("document.querySelector('.records summary').click()")


async def preview_settings(reader: Reader) -> None:
    await reader.preview("Settings", retention_ms="7d", min_insync_replicas="1")
    await reader.do("document.querySelector('.doing .plan').scrollIntoView({block: 'center'})")


async def preview_move(reader: Reader) -> None:
    await reader.preview("Reassign", servers="r1, r3")


async def preview_reset(reader: Reader) -> None:
    await reader.fill("Reset offsets", "Nothing is changed yet.")


async def preview_drain(reader: Reader) -> None:
    await reader.preview("Drain a server", server="r1")


async def preview_rule(reader: Reader) -> None:
    await reader.preview("Add a rule", principal="reports", name="orders")


async def settled(reader: Reader) -> None:
    await trio.sleep(SETTLED_S)


async def plotted(reader: Reader) -> None:
    await trio.sleep(PLOTTED_S)


BEFORE = (
    Picture(
        "topics", "topics", "/orders\\t.*\\t[1-9]/.test(text('[aria-label=\"All topics\"]'))", plotted, height=520
    ),
    Picture("topics-phone", "topics", "text('h1') === 'Topics'", width=NARROW, height=760),
    Picture("records", "topics/orders", "document.querySelectorAll('.records tr').length > 3", fill_filter),
    Picture("settings", "topics/invoices", "text('h1') === 'invoices'", preview_settings),
    Picture("partition", "partition/orders/0", "!!document.querySelector('.track')", plotted, height=900),
    Picture("move", "partition/invoices/1", "text('h1') === 'invoices/1'", preview_move),
    Picture("rates", "rates", "!!document.querySelector('.plot')", plotted, height=780),
    Picture("replication", "replication", "!!document.querySelector('.flow')", plotted, height=900, scheme="dark"),
    Picture("groups", "groups", "/billing(?![^]*…)/.test(text('[aria-label=Groups]'))", height=480),
    Picture("group", "groups/billing", "!!document.querySelector('[aria-label=Members]')", plotted, height=900),
    Picture("reset", "groups/archive", "!!document.querySelector('[aria-label=Partitions]')", preview_reset),
    Picture("transactions", "transactions", "text('[aria-label=Transactions]').includes('etl')", height=480),
    Picture("security", "security", "!!document.querySelector('[aria-label=Rules]')", preview_rule, height=1100),
    Picture("drain", "cluster", "text('h2') === 'Gateways'", preview_drain, height=900),
)
"""The pictures of a healthy cluster."""
IS_DOWN = f"text('#notices').includes('{DOWN} not heard of')"
AFTER = (
    Picture("play", "play", f"{IS_DOWN} && text('.events').includes('{DOWN}')", settled, height=900),
    Picture("cluster", "cluster", IS_DOWN, height=900),
    Picture("cluster-phone", "cluster", IS_DOWN, width=NARROW, height=760, scheme="dark"),
    Picture("timeline", "timeline", f"text('.events').includes('{DOWN}')"),
)
"""The pictures after a server was killed."""


async def fill(log: Log) -> None:
    """Create topics with records, groups with lag, tokens, rules and quotas."""
    for name, partitions in TOPICS.items():
        await log.topics.create(name, partitions=partitions, replication_factor=SERVERS)
    await log.topics.alter("invoices", {"cleanup": "compact"})
    async with log.producer("payments") as producer:
        for number in range(400):
            await producer.send(json.dumps({"payment": number}).encode(), key=b"%d" % number)
    async with log.consume("payments", group="archive", start="earliest") as archive:
        for _ in range(300):
            await anext(archive)
        await archive.commit()
    await log.access.create_token("billing")
    await log.access.create_token("reports", lifetime_s=90 * 86_400)
    rules = [Acl("billing", "write", "topic:orders"), Acl("billing", "group", "group:billing")]
    rules += [Acl("reports", "group", "group:reports*"), Acl("intern", "*", "topic:pay*", deny=True)]
    await log.access.alter_acls(rules)
    await log.access.alter_quotas([Quota("reports", bytes_out_s=10 << 20, requests_s=500)])
    async with log.stage("etl") as staged:
        await staged.send("invoices", b'{"invoice": 7}')


async def produce(url: str) -> None:
    """Send orders and clicks, for ever."""
    chosen = random.Random(7)
    async with tidelog.connect(url) as log, log.producer("orders") as orders, log.producer("clicks") as clicks:
        for number in itertools.count():
            city = chosen.choice(CITIES)
            customer = f"c{number % 40}"
            order = {"order": number, "customer": customer, "total": round(chosen.uniform(5, 99), 2)}
            headers = [("city", city.encode())]
            await orders.send(json.dumps(order).encode(), key=customer.encode(), headers=headers)
            for _ in range(3):
                await clicks.send(json.dumps({"page": f"/{city.lower()}"}).encode())
            await trio.sleep(0.03)


async def consume(url: str) -> None:
    """Read orders as a member of a group that is too slow, for ever."""
    async with tidelog.connect(url) as log, log.consume("orders", group="billing", instance="desk-1") as member:
        async for record in member:
            if record.offset % 20 == 0:
                await member.commit()
            await trio.sleep(0.05)


async def transact(url: str) -> None:
    """Keep a transaction open, for ever."""
    async with tidelog.connect(url) as log, log.transaction("shipping", timeout_s=LASTS_S) as transaction:
        await transaction.send("payments", b'{"shipment": 1}')
        await trio.sleep_forever()


async def take(reader: Reader, picture: Picture, folder: Path) -> None:
    """Open the panel and write its picture."""
    await reader.look_like(picture.width, picture.scheme, picture.height)
    await reader.go(picture.place)
    await reader.see(picture.ready)
    await picture.prepare(reader)
    image = (
        Image.open(io.BytesIO(await reader.picture()))
        .convert("RGB")
        .quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    )
    path = folder / f"console-{picture.name}.png"
    image.save(path, optimize=True)
    say(f"{path}: {path.stat().st_size / 1000:.0f} kB")


async def take_all(folder: Path, wanted: tuple[str, ...]) -> None:
    """Start the cluster and write the pictures of these names; of none: all."""
    port = free_base_port(1)
    url = f"ws://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="tidelog-pictures-") as data:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_dev, Path(data), port, SERVERS)
            await wait_ready(url, SERVERS)
            async with tidelog.connect(url) as log:
                await fill(log)
                for run in (produce, consume, transact):
                    nursery.start_soon(run, url)
                async with reading(url) as reader:
                    await reader.see("text('.phase').startsWith('live')")
                    for pictures in (BEFORE, AFTER):
                        for picture in pictures:
                            if not wanted or picture.name in wanted:
                                await take(reader, picture, folder)
                        if pictures is BEFORE:
                            await log.cluster.play(DOWN, "kill")
            nursery.cancel_scope.cancel()


@click.command(help=__doc__)
@click.option(
    "--out",
    "folder",
    default=PLOTS,
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Folder of the pictures.",
)
@click.argument("names", nargs=-1)
def main(folder: Path, names: tuple[str, ...]) -> None:
    if CHROMIUM is None:
        raise click.ClickException("Chromium is missing: make chromium")
    logs.configure(level="error")
    trio.run(take_all, folder, names)


if __name__ == "__main__":
    main()
