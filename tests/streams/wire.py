"""A network between a page and a server that can be cut."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from urllib.parse import urlsplit

HANGING_S = 180.0
"""Seconds after which a wait is given up."""


class Wire:
    """Passes connections on to a server, as a context manager. While it is cut there are none, and new ones end at
    once."""

    def __init__(self, url: str) -> None:
        """``url``: that of the server."""
        parts = urlsplit(url)
        self._target = (str(parts.hostname), parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = url.replace(parts.netloc, f"127.0.0.1:{self._listener.getsockname()[1]}")
        """The URL of the server by way of this wire."""
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._is_cut = False
        self._refused = threading.Event()

    def __enter__(self) -> Wire:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.cut()
        self._listener.close()

    def cut(self) -> None:
        """End all connections, and let no new one come about."""
        with self._lock:
            self._is_cut = True
            self._refused.clear()
            for end in self._open:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def wait_refused(self) -> None:
        """Wait until somebody has tried to connect since the wire was cut. Raises ``TimeoutError`` if nobody does."""
        if not self._refused.wait(HANGING_S):
            raise TimeoutError("nobody tries to connect")

    def mend(self) -> None:
        """Let connections come about again."""
        with self._lock:
            self._is_cut = False

    def _accept(self) -> None:
        with suppress(OSError):  # the listener is closed at the end
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        """Pass one connection on, both ways, until it ends."""
        with near, suppress(OSError), socket.create_connection(self._target, HANGING_S) as far:
            far.settimeout(None)
            with self._lock:
                if self._is_cut:
                    self._refused.set()
                    return
                self._open |= {near, far}
            back = threading.Thread(target=_pass_on, args=(far, near), daemon=True)
            back.start()
            _pass_on(near, far)
            back.join()
            with self._lock:
                self._open -= {near, far}


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    """Send what one end of a connection sends to the other one, up to its end."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
