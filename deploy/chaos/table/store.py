"""An object store that can be killed, for runs with a table in S3: two processes.

The *disk* is moto's S3 server, which keeps all objects and is never touched: what a store has acknowledged is
durable. The *front* is what clients see. It passes requests on to the disk, at a port of its own that stays the same;
killed, it takes all requests under way with it, those whose change the disk has made already among them. A file tells
it its mood:

==========  ===========================================================================
``well``    every request is answered
``refuse``  every request is answered with 503, and not carried out
``late``    every second request is carried out, and answered with 500 nevertheless
==========  ===========================================================================

    python store.py disk PORT
    python store.py front PORT DISK_PORT MOOD_FILE
"""

from __future__ import annotations

import http.client
import itertools
import logging
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HOST = "127.0.0.1"
WELL, REFUSE, LATE = "well", "refuse", "late"
SKIPPED = ("connection", "transfer-encoding", "content-length", "expect")
"""Headers that are those of one connection, or are written anew."""


def run_disk(port: int) -> None:
    """Serve S3 from memory, for ever."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    make_server(HOST, port, DomainDispatcherApplication(create_backend_app), threaded=True).serve_forever()


def run_front(port: int, disk_port: int, mood_file: Path) -> None:
    """Pass requests on to the disk in the mood that the file has, for ever."""
    numbers = itertools.count()

    class Front(BaseHTTPRequestHandler):
        """The handler of one connection."""

        protocol_version = "HTTP/1.1"
        timeout = 60

        def handle_one(self) -> None:
            """Answer one request."""
            body = self.body()
            if body is None:  # the client has died: a store takes no half of an object
                self.close_connection = True
                return
            mood = mood_file.read_text() if mood_file.exists() else WELL
            if mood == REFUSE:
                self.answer(503, [], b"")
                return
            disk = http.client.HTTPConnection(HOST, disk_port, timeout=60)
            headers = {name: text for name, text in self.headers.items() if name.lower() not in SKIPPED}
            disk.request(self.command, self.path, body, headers)
            found = disk.getresponse()
            data = found.read()
            if mood == LATE and next(numbers) % 2:
                self.answer(500, [], b"")
                return
            kept = [(name, text) for name, text in found.getheaders() if name.lower() not in SKIPPED]
            length = found.getheader("Content-Length") if self.command == "HEAD" else None
            self.answer(found.status, kept, data, length)
            disk.close()

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_one

        def body(self) -> bytes | None:
            """Return the body of a request, whose length is given at once or chunk by chunk; None if the client did
            not send all of it."""
            if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                length = int(self.headers.get("Content-Length", 0))
                data = self.rfile.read(length)
                return data if len(data) == length else None
            parts = []
            while size := int(self.rfile.readline().split(b";")[0].strip() or b"-1", 16):
                part = self.rfile.read(size) if size > 0 else b""
                if len(part) != size or self.rfile.read(2) != b"\r\n":
                    return None
                parts.append(part)
            while self.rfile.readline().strip():
                continue
            return b"".join(parts)

        def answer(self, status: int, headers: list[tuple[str, str]], data: bytes, length: str | None = None) -> None:
            """Write an answer."""
            self.send_response_only(status)
            for name, text in headers:
                self.send_header(name, text)
            self.send_header("Content-Length", length or str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Write no line for a request."""

    ThreadingHTTPServer((HOST, port), Front).serve_forever()


if __name__ == "__main__":
    if sys.argv[1] == "disk":
        run_disk(int(sys.argv[2]))
    else:
        run_front(int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
