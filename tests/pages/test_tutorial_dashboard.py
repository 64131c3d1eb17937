"""The tutorial of the dashboard in the browser: all its files and commands, with the loss of the gateway."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from pages.place import Place, promise, started
from pages.tutorial import Tutorial
from real.running import HEAL_S
from support.browser import Page, browser
from support.js_tools import CHROMIUM, needs_chromium

pytestmark = pytest.mark.real
PAGE = Tutorial("tutorials/dashboard.md")
DEV, CREATE, SENSORS = map(PAGE.command, ("tidelog dev ", "tidelog topics create ", "python sensors.py"))
CONSUME, SERVE, REMOVE = map(PAGE.command, ("tidelog consume ", "python -m http.server ", "rm "))
CONFIGURE = "tidelog topics configure readings retention_ms=86400000"
READY = b"Ctrl-C ends it"
SENDING = b"sending readings"
LINES = """(() => {
    const canvas = document.getElementById("chart");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const seen = new Set(new Uint32Array(data.buffer));
    return [0xffa4620b, 0xff0a56c4, 0xff3d7a1b].filter((colour) => seen.has(colour)).length;
})()"""
"""How many of the colours of the three sensors are in the picture; a number has them as alpha, blue, green, red."""


def shown(page: Page, count: str) -> int:
    """Return a count of readings that the page shows."""
    return int(page.evaluate(f"document.getElementById('{count}').textContent"))


def test_the_test_knows_every_command_of_the_page() -> None:
    assert set(PAGE.commands) == {DEV, CREATE, SENSORS, CONSUME, SERVE, REMOVE} and f"`{CONFIGURE}`" in PAGE.text
    assert PAGE.commands.count(DEV) == 2 and set(PAGE.files) == {"sensors.py", "dashboard.html"}


@needs_chromium
def test_the_dashboard_goes_on_where_it_was_when_the_gateway_is_back(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    place = Place(tmp_path)
    PAGE.save_files(place)
    with started(place, SERVE, b"Serving HTTP"), browser(CHROMIUM) as page:
        with started(place, DEV, READY) as cluster:
            place.shell(CREATE)
            with started(place, SENSORS, SENDING) as sensors:
                assert place.shell(CONSUME).count("celsius") == 5
                page.open(place.own("http://127.0.0.1:8000/dashboard.html"))
                page.evaluate(promise(f"find('state') === 'live' && {LINES} === 3"))
                assert page.evaluate("document.querySelectorAll('#latest li').length") == 3
                cluster.send_signal(signal.SIGQUIT)
                cluster.wait(HEAL_S)
                page.evaluate(promise("find('state').startsWith('the gateway is away')"))
                before = shown(page, "drawn")
                with started(place, DEV, READY):
                    page.evaluate(promise(f"find('state') === 'live' && Number(find('drawn')) >= {before + 30}"))
                    assert [shown(page, "missing"), shown(page, "twice")] == [0, 0]
                    place.shell(CONFIGURE)
                    sensors.send_signal(signal.SIGINT)
                    assert sensors.wait(HEAL_S) == 0
        place.shell(REMOVE)
