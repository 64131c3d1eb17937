"""The public client of Durable Streams, unchanged, in Chromium: a page loses its network and goes on."""

from __future__ import annotations

import subprocess
import urllib.request
from pathlib import Path

from support.browser import browser
from support.js_tools import CHROMIUM, needs_chromium

from streams.test_conformance import NODE, SUITE, dev, needs_suite
from streams.wire import HANGING_S, Wire

ENTRY = 'export * from "@durable-streams/client";'
FOLLOW = """
  window.seen = [];
  streams.stream({ url: "%s", offset: "-1", live: true, json: true }).then((found) => {
    found.closed.catch((error) => { window.failed = error; });
    found.subscribeJson((batch) => { seen.push(...batch.items); });
  });
"""

SEEN = """
  new Promise((resolve, reject) => {
    const look = setInterval(() => {
      if (!window.failed && seen.length < %d) return;
      clearInterval(look);
      window.failed ? reject(failed) : resolve(seen);
    }, 20);
  })
"""
"""Waits until the page has so many messages, and returns those that it has. Rejects if it follows no longer."""


def append(url: str, number: int) -> None:
    """Append a message to a stream, from another program."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, str(number).encode(), headers)
    urllib.request.urlopen(request, timeout=HANGING_S).close()


def client(folder: Path) -> str:
    """Return the client as one script that defines ``streams``."""
    entry = folder / "entry.js"
    entry.write_text(ENTRY)
    (folder / "node_modules").symlink_to(SUITE / "node_modules")
    esbuild = SUITE / "node_modules" / "esbuild" / "bin" / "esbuild"
    command = [str(NODE), esbuild, "entry.js", "--bundle", "--format=iife", "--global-name=streams"]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=HANGING_S)
    return made.stdout


@needs_suite
@needs_chromium
def test_a_page_that_loses_its_network_goes_on_where_it_was(tmp_path: Path) -> None:
    script = client(tmp_path)
    with browser(str(CHROMIUM)) as page, dev(tmp_path / "data", page.origin) as url, Wire(url) as wire:
        target = f"{wire.url}/chat"
        page.new_tab(script=script)
        page.go("docs/")
        made = f'streams.DurableStream.create({{ url: "{target}", contentType: "application/json" }})'
        page.evaluate(f"{made}.then((made) => {{ window.made = made; }})")
        page.evaluate(FOLLOW % target)
        for number in range(0, 9, 3):
            page.evaluate(f"made.append('{number}')")
            assert page.evaluate(SEEN % (number + 1)) == [*range(number + 1)]
            wire.cut()
            append(f"{url}/chat", number + 1)
            append(f"{url}/chat", number + 2)
            wire.wait_refused()
            wire.mend()
            assert page.evaluate(SEEN % (number + 3)) == [*range(number + 3)]
        append(f"{url}/chat", 9)  # what comes twice comes before
        assert page.evaluate(SEEN % 10) == [*range(10)]
