"""Driver of the JavaScript client in a headless Chromium: a page performs the commands."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.browser import browser

with browser(sys.argv[1]) as page:
    page.open("tests/conformance/page.html")
    while line := sys.stdin.readline():
        print(json.dumps(page.evaluate(f"commands.then((all) => all.answer({line.strip()}))")), flush=True)
