"""A page in a headless Chromium, controlled over the browser's debugging pipe."""

from __future__ import annotations

import fcntl
import json
import os
import select
import subprocess
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe"),
)
TOLD = (
    *("button", "link", "textbox", "searchbox", "combobox", "slider", "spinbutton", "checkbox", "heading", "image"),
    *("img", "figure", "region", "navigation", "DisclosureTriangle"),
)
"""The accessibility roles that need a name."""
KEYS = {"Tab": 9, "Enter": 13, "ArrowLeft": 37}
READ_FD, WRITE_FD = 3, 4
"""Where a browser with ``--remote-debugging-pipe`` reads and writes."""
HANGING_S = 180.0
"""Seconds after which a browser that says nothing is given up."""


class _Files(SimpleHTTPRequestHandler):
    """An HTTP server for the project's files that logs nothing."""

    extensions_map = SimpleHTTPRequestHandler.extensions_map | {".js": "text/javascript", ".mjs": "text/javascript"}

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing: requests are not logged."""


class Page:
    """One page of a browser, for one caller at a time. Every method raises ``TimeoutError`` if the browser says
    nothing for ``HANGING_S``, as with a promise that is never settled."""

    def __init__(self, origin: str, write: IO[bytes], read: IO[bytes]) -> None:
        self.origin = origin
        """The URL under which the page finds the project's files."""
        self._write = write
        self._read = read
        self._received = bytearray()
        self._next_id = 0
        self._session = ""
        self._tab = ""

    def new_tab(self, *, cold: bool = False, script: str = "") -> None:
        """Open an empty tab, which takes the place of the one before. A cold tab has a cache of its own, which is
        empty. The script runs before those of each document."""
        before, self._session = self._tab, ""
        context = {"browserContextId": self._call("Target.createBrowserContext")["browserContextId"]} if cold else {}
        self._tab = self._call("Target.createTarget", url="about:blank", **context)["targetId"]
        if before:
            self._call("Target.closeTarget", targetId=before)
        self._session = self._call("Target.attachToTarget", targetId=self._tab, flatten=True)["sessionId"]
        self._call("Page.enable")
        if script:
            self._call("Page.addScriptToEvaluateOnNewDocument", source=script)

    def go(self, path: str) -> None:
        """Go to a path of the project, or to a URL, in the same tab, and return when it has loaded."""
        self._call("Page.navigate", url=path if path.startswith("http") else f"{self.origin}/{path}")
        while self._receive().get("method") != "Page.loadEventFired":
            continue

    def open(self, path: str) -> None:
        """Go to a path of the project, or to a URL, in a new tab, and return when it has loaded."""
        self.new_tab()
        self.go(path)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; a promise is awaited. Raises ``RuntimeError`` for an
        exception."""
        answer = self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def look_like(self, width: int, height: int, scheme: str = "light") -> None:
        """Set the size of the page in CSS pixels and its colour scheme."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def nameless(self) -> list[str]:
        """Return the roles of controls without an accessible name, which a screen reader could not describe."""
        nodes = self._call("Accessibility.getFullAXTree")["nodes"]
        roles = ((node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if "role" in node)
        return [role for role, name in roles if role in TOLD and not name.strip()]

    def press(self, key: str) -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])

    def save(self, script: str, folder: Path) -> Path:
        """Run a script that makes the page save a file, and return the file's path in ``folder`` when it is there."""
        self._call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder), eventsEnabled=True)
        name = ""
        self._send("Runtime.evaluate", expression=script)
        while (event := self._receive()).get("params", {}).get("state") != "completed":
            if event.get("method") == "Browser.downloadWillBegin":
                name = event["params"]["suggestedFilename"]
        return folder / name

    def cpu_s(self) -> dict[tuple[str, int], float]:
        """Return the CPU seconds of the browser's processes, by kind (such as ``renderer``) and process id."""
        session, self._session = self._session, ""
        found = self._call("SystemInfo.getProcessInfo")["processInfo"]
        self._session = session
        return {(one["type"], one["id"]): one["cpuTime"] for one in found}

    def screenshot(self) -> bytes:
        """Return an image of the page as PNG."""
        return b64decode(self._call("Page.captureScreenshot", format="png")["data"])

    def quit(self) -> None:
        """End the browser."""
        self._session = ""
        self._call("Browser.close")

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._send(method, **params)
        while (answer := self._receive()).get("id") != self._next_id:
            continue
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return dict(answer["result"])

    def _send(self, method: str, **params: Any) -> None:
        self._next_id += 1
        message = {"id": self._next_id, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._write.write(json.dumps(message).encode() + b"\0")
        self._write.flush()

    def _receive(self) -> dict[str, Any]:
        while (end := self._received.find(b"\0")) < 0:
            if not select.select([self._read], [], [], HANGING_S)[0]:
                raise TimeoutError(f"the browser has said nothing for {HANGING_S:g} s")
            data = os.read(self._read.fileno(), 1 << 16)
            if not data:
                raise RuntimeError("the browser has ended")
            self._received += data
        message = json.loads(self._received[:end])
        del self._received[: end + 1]
        return dict(message)


@contextmanager
def browser(chromium: str, *flags: str) -> Iterator[Page]:
    """Start a browser, with more command-line flags, and yield its page; the project's files are served on
    loopback."""
    with _served() as origin, TemporaryDirectory(prefix="tidelog-chromium-", ignore_cleanup_errors=True) as profile:
        to_read, to_write = os.pipe()
        from_read, from_write = os.pipe()
        ours = (to_write, from_read)

        def place_pipes() -> None:
            read, write = (fcntl.fcntl(fd, fcntl.F_DUPFD, WRITE_FD + 1) for fd in (to_read, from_write))
            os.dup2(read, READ_FD)
            os.dup2(write, WRITE_FD)

        command = [chromium, *QUIET, *flags, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(READ_FD, WRITE_FD),
            preexec_fn=place_pipes,
        )
        os.close(to_read)
        os.close(from_write)
        try:
            with os.fdopen(ours[0], "wb") as write, os.fdopen(ours[1], "rb") as read:
                page = Page(origin, write, read)
                yield page
                page.quit()
            process.wait(timeout=20)
        finally:
            process.kill()
            process.wait()


@contextmanager
def _served() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(ROOT)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
