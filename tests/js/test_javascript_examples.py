"""The examples of the documentation do what they show, against gateways in memory."""

from __future__ import annotations

from functools import partial

import trio
from support.browser import ROOT, browser
from support.fake_gateway import FakeCluster
from support.js_tools import CHROMIUM, NODE, needs_chromium, needs_node

EXAMPLES = "docs/examples"


@needs_node
async def test_orders_in_node() -> None:
    assert NODE is not None
    fake = FakeCluster()
    async with fake.gateways() as (url,):
        done = await trio.run_process(
            [NODE, ROOT / EXAMPLES / "orders.mjs", url], capture_stdout=True, capture_stderr=True
        )
    lines = done.stdout.decode().splitlines()
    assert lines[0].startswith("order 10 is record")
    assert sorted(lines[1:-1])[:4] == ["ada: order 10, 5", "ada: order 3, 30", "ada: order 6, 60", "ada: order 9, 90"]
    assert lines[-1] == "total 455"


@needs_chromium
async def test_a_page_that_tails_a_topic_and_sends_to_it() -> None:
    assert CHROMIUM is not None
    fake = FakeCluster()
    fake.add_topic("orders")
    async with fake.gateways() as (url,):
        await trio.to_thread.run_sync(partial(_tail, CHROMIUM, url))
    assert [record.value for record in fake.log("orders").records()] == [b"from the page"]


def _tail(chromium: str, url: str) -> None:
    with browser(chromium) as page:
        page.open(f"{EXAMPLES}/tail.html?gateway={url}&topic=orders")
        page.evaluate(_until("find('state') === 'following'"))
        page.evaluate(
            "document.querySelector('input').value = 'from the page'; document.querySelector('button').click()"
        )
        page.evaluate(_until("find('records') === '0/0 from the page'"))
        page.evaluate(_until("find('state') === 'sent: partition 0, offset 0'"))


def _until(condition: str) -> str:
    """Return a promise that is fulfilled when the condition holds, which is checked whenever the page changes."""
    return f"""new Promise((resolve) => {{
        const find = (id) => document.getElementById(id).textContent;
        const look = () => ({condition}) && resolve(true);
        new MutationObserver(look).observe(document.body, {{subtree: true, childList: true, characterData: true}});
        look();
    }})"""
