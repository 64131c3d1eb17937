"""The web application of docs/web.md under uvicorn: its files and commands, browsers that were away or are slow, and
orders that cannot be written."""

from __future__ import annotations

import itertools
import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import ExitStack

import httpx
import pytest
import tidelog.sync
import trio
from pages.place import Place, promise, started
from pages.tutorial import Tutorial
from real.running import HEAL_S, until
from support.browser import browser
from support.js_tools import CHROMIUM, needs_chromium

pytestmark = pytest.mark.real
PAGE = Tutorial("web.md")
DEV, UVICORN, TEA, COFFEE, WATER, REMOVE = PAGE.commands
READY, RUNNING = b"Ctrl-C ends it", b"Uvicorn running on"
PATIENCE = 4
"""Comments in a row, each after 15 s without an order, that a reader waits."""
LARGE, ITEM = 400, "x" * 100_000
"""So many orders of this length: 40 MB."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("web"))
    PAGE.save_files(place)
    return place


@pytest.fixture(scope="module")
def dev(place: Place) -> Iterator[subprocess.Popen[bytes]]:
    with started(place, DEV, READY) as process:
        yield process


@pytest.fixture
def shop(place: Place, dev: subprocess.Popen[bytes]) -> Iterator[int]:
    """The application; the id of its process."""
    with started(place, UVICORN, RUNNING) as process:
        yield process.pid
        process.send_signal(signal.SIGINT)
        assert process.wait(HEAL_S) == 0


def url(place: Place, path: str = "/orders") -> str:
    return place.own(f"http://127.0.0.1:8000{path}")


def rss_bytes(process: int) -> int:
    """Return the memory that a process has in use."""
    return 1024 * int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(process)]))


def followed(lines: Iterable[str], count: int) -> tuple[str, list[int]]:
    """Return the numbers of the next orders of a stream, and the id of the last one. They are fewer if none comes for
    as long as ``PATIENCE`` says."""
    numbers: list[int] = []
    ids = []
    silent = 0
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "id":
            ids.append(value)
        elif name == "data" and value.startswith("{"):
            numbers.append(json.loads(value)["number"])
            silent = 0
        silent += line.startswith(": ")
        if len(numbers) == count or silent == PATIENCE:
            break
    return ids[-1], numbers


def follow(place: Place, last_id: str, count: int) -> tuple[str, list[int]]:
    """Follow the orders behind an id as a browser does, and go away after so many. Returns what ``followed`` does."""
    headers = {"Last-Event-ID": last_id}
    with httpx.stream("GET", url(place, "/orders/events"), headers=headers, timeout=HEAL_S) as stream:
        return followed(stream.iter_lines(), count)


@needs_chromium
def test_a_page_shows_what_was_ordered_while_the_shop_was_away(place: Place, dev: subprocess.Popen[bytes]) -> None:
    assert CHROMIUM is not None
    with browser(CHROMIUM) as page:
        with started(place, UVICORN, RUNNING) as first:
            page.open(url(place, "/"))
            page.evaluate(promise("find('state') === 'live'"))
            assert re.fullmatch(r'\{"partition":[0-2],"offset":0\}', place.shell(TEA))
            place.shell(COFFEE)
            page.evaluate(promise("find('orders').includes('ada: tea') && find('orders').includes('grace: coffee')"))
            first.send_signal(signal.SIGINT)
            assert first.wait(HEAL_S) == 0, "the stream of the page does not hold it up"
        place.shell(WATER)
        with started(place, UVICORN, RUNNING):
            page.evaluate(promise("find('state') === 'live' && find('orders').includes('edsger: water')"))
            assert page.evaluate("document.querySelectorAll('#orders li').length") == 3


def test_an_answer_says_where_an_order_is_and_what_is_none_is_refused(place: Place, shop: int) -> None:
    answer = httpx.post(url(place), json={"customer": "ada", "number": 0}, timeout=HEAL_S)
    assert answer.status_code == 201 and answer.json().keys() == {"partition", "offset"}
    for body in (b"tea", b"[]", b'{"item": "tea"}'):
        assert httpx.post(url(place), content=body).status_code == 400
    large = httpx.post(url(place), json={"customer": "x" * 20_000_000}, timeout=HEAL_S)
    assert large.status_code == 413 and large.json() == {"error": "BATCH_TOO_LARGE", "maybe_written": False}
    assert httpx.get(url(place, "/orders/events"), headers={"Last-Event-ID": "0:x"}).status_code == 400


def test_a_stream_goes_on_with_the_next_order(place: Place, shop: int) -> None:
    with httpx.stream("GET", url(place, "/orders/events"), timeout=HEAL_S) as stream:
        lines = stream.iter_lines()
        begin = next(line for line in lines if line.startswith("id: ")).removeprefix("id: ")
        for number in range(1, 13):
            httpx.post(url(place), json={"customer": f"customer-{number}", "number": number}, timeout=HEAL_S)
        _, live = followed(itertools.chain([f"id: {begin}"], lines), 12)
    assert live == list(range(1, 13))
    last_id, first = follow(place, begin, 5)
    _, rest = follow(place, last_id, 7)
    assert sorted(first + rest) == live


def test_browsers_that_do_not_read_cost_no_memory_and_miss_nothing(place: Place, shop: int) -> None:
    with tidelog.sync.connect(place.url, connect_timeout_s=HEAL_S) as log:
        start = ",".join(
            f"{p.partition}:{p.high_watermark}:-1" for p in log.topics.describe("orders", offsets=True).partitions
        )
        with log.producer("orders") as producer:
            for number in range(LARGE):
                producer.submit(json.dumps({"number": number, "item": ITEM}).encode(), partition=number % 3)
    assert sorted(follow(place, start, LARGE)[1]) == list(range(LARGE))
    before = rss_bytes(shop)
    request = f"GET /orders/events HTTP/1.1\r\nHost: shop\r\nLast-Event-ID: {start}\r\n\r\n".encode()
    with ExitStack() as slow:
        sockets = [slow.enter_context(socket.create_connection(("127.0.0.1", place.port + 2))) for _ in range(4)]
        for each in sockets:
            each.sendall(request)
        assert sorted(follow(place, start, LARGE)[1]) == list(range(LARGE))
        assert rss_bytes(shop) - before < LARGE * len(ITEM) / 2, "half of what one of the four would need for all"
        with sockets[0].makefile("r") as lines:
            assert sorted(followed(map(str.rstrip, lines), LARGE)[1]) == list(range(LARGE))


async def test_orders_that_cannot_be_written_are_refused_and_do_not_pile_up(
    place: Place, dev: subprocess.Popen[bytes], shop: int
) -> None:
    async with httpx.AsyncClient(timeout=HEAL_S, limits=httpx.Limits()) as client:
        answers: list[httpx.Response] = []

        async def order(number: int) -> None:
            answers.append(await client.post(url(place), json={"customer": "ada", "number": number}))

        await order(0)
        assert answers.pop().status_code == 201
        dev.send_signal(signal.SIGSTOP)
        try:
            async with trio.open_nursery() as nursery:
                for number in range(300):
                    nursery.start_soon(order, number)
        finally:
            dev.send_signal(signal.SIGCONT)
        refused = [answer for answer in answers if answer.headers.get("retry-after") == "1"]
        assert refused and {answer.status_code for answer in answers} == {503}
        assert all(one.json() == {"error": "too many orders are waiting"} for one in refused)
        assert any(one.json()["maybe_written"] for one in answers if one not in refused), "those that were sent"

        async def is_well() -> bool:
            return (await client.post(url(place), json={"customer": "ada", "number": 0})).status_code == 201

        await until(is_well)


def test_the_data_can_be_removed(place: Place, dev: subprocess.Popen[bytes]) -> None:
    dev.send_signal(signal.SIGINT)
    assert dev.wait(HEAL_S) == 0
    place.shell(REMOVE)
