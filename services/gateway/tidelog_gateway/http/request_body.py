"""The body of an HTTP request as it arrives. Sans-I/O: bytes in, the whole body out.

Chunks (RFC 9112 §7.1) are read more strictly than HTTP asks for, since a proxy in front may find another end where a
body can be read in two ways: each line ends with CR LF, and has no other CR or LF. Extensions of chunks and trailers
are read and ignored.

A body in chunks costs work for each chunk, however small. So a body in very many small chunks is refused.
"""

from __future__ import annotations

import re

from tidelog_gateway.http.request_head import RequestHead
from tidelog_gateway.http.responses import HttpError

MAX_BODY_BYTES = 16 << 20
"""Longest body of a request."""
FREE_CHUNKS, CHUNK_BYTES = 1024, 64
"""After so many chunks a body must have so many bytes for each of them."""
MAX_LINE_BYTES = 1024
"""Longest line with the size of a chunk and its extensions."""
MAX_TRAILER_BYTES = 4096
"""Longest trailers together."""
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})(;[\t\x20-\x7e\x80-\xff]*| *)")
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*")


class RequestBody:
    """The body of one request: ``receive`` takes bytes until ``is_complete``. ``rest`` then has the bytes behind the
    body, where the next request begins."""

    def __init__(self, head: RequestHead) -> None:
        """Raises ``HttpError`` (413) if the head announces too long a body."""
        if head.content_length > MAX_BODY_BYTES:
            raise too_long()
        self._chunks = _Chunks() if head.content_length < 0 else None
        self._left = head.content_length
        """Bytes of an announced length that have not arrived."""
        self._parts: list[bytes] = []
        self.size = 0
        """Bytes of the body that have arrived."""
        self.is_complete = head.content_length == 0
        self.rest = b""
        """The bytes that came behind the body."""

    def receive(self, data: bytes) -> None:
        """Process received bytes. Raises ``HttpError`` if the body is not what the head announced, or too long; the
        connection must then be closed."""
        if self._chunks is None:
            self._add(data[: self._left])
            self.rest = data[self._left :]
            self._left -= len(self._parts[-1])
            self.is_complete = self._left == 0
            return
        self._chunks.receive(data)
        while part := self._chunks.next_part():
            self._add(part)
        self.is_complete = self._chunks.is_complete
        if self.is_complete:
            self.rest = self._chunks.rest

    def _add(self, part: bytes) -> None:
        """Keep a part of the body. Raises ``HttpError`` if there are too many bytes, or too many chunks for them."""
        self._parts.append(part)
        self.size += len(part)
        if self.size > MAX_BODY_BYTES:
            raise too_long()
        if len(self._parts) > FREE_CHUNKS and self.size < CHUNK_BYTES * len(self._parts):
            raise HttpError(400, f"the chunks of the body have fewer than {CHUNK_BYTES} bytes on average")

    @property
    def content(self) -> bytes:
        """Return the body."""
        return b"".join(self._parts)


class _Chunks:
    """Reads chunks: ``receive`` takes bytes, ``next_part`` returns those of the body."""

    def __init__(self) -> None:
        self.is_complete = False
        self._data, self._position = b"", 0
        """The bytes that arrived last, and how many of them were read."""
        self._left = 0
        """Bytes of the present chunk that have not arrived."""
        self._ends_chunk = False
        """Whether the end of a chunk's line comes next."""
        self._trailer_bytes = -1
        """Bytes of trailers so far; -1 before the last chunk."""

    @property
    def rest(self) -> bytes:
        """Return the bytes that have arrived and were not read; at the end those behind the body."""
        return self._data[self._position :]

    def receive(self, data: bytes) -> None:
        """Take received bytes."""
        self._data, self._position = self.rest + data, 0

    def next_part(self) -> bytes:
        """Return the next bytes of the body; b"" if more have to arrive, or at the end. Raises ``HttpError``."""
        while not self.is_complete:
            if self._left:
                part = self._data[self._position : self._position + self._left]
                self._position += len(part)
                self._left -= len(part)
                self._ends_chunk = not self._left
                return part  # b"" if all that has arrived was read
            line = self._next_line()
            if line is None:
                return b""
            self._read_line(line)
        return b""

    def _next_line(self) -> bytes | None:
        """Return the next line without its end; None if it has not arrived. Raises ``HttpError`` if it is too long or
        has another line end."""
        begin = self._position
        end = self._data.find(b"\r\n", begin, begin + MAX_LINE_BYTES + 2)
        line = self._data[begin : begin + MAX_LINE_BYTES + 1] if end < 0 else self._data[begin:end]
        if len(line) > MAX_LINE_BYTES:
            raise _broken(f"a line has more than {MAX_LINE_BYTES} bytes")
        if b"\n" in line or b"\r" in (line if end >= 0 else line[:-1]):
            raise _broken("a line does not end with CR LF")
        if end < 0:
            return None
        self._position = end + 2
        return line

    def _read_line(self, line: bytes) -> None:
        """Read the end of a chunk, the size of a chunk, or a trailer. Raises ``HttpError``."""
        if self._ends_chunk:
            if line:
                raise _broken("a chunk is longer than its size")
            self._ends_chunk = False
        elif self._trailer_bytes >= 0:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > MAX_TRAILER_BYTES or (line and _TRAILER.fullmatch(line) is None):
                raise _broken("a trailer is none, or the trailers are too long")
            self.is_complete = not line
        else:
            match = _SIZE.fullmatch(line)
            if match is None:
                raise _broken("the size of a chunk is a hexadecimal number")
            self._left = int(match[1], 16)
            if not self._left:
                self._trailer_bytes = 0


def _broken(why: str) -> HttpError:
    return HttpError(400, f"the body is not what the head announces: {why}")


def too_long() -> HttpError:
    """Return the refusal of a body that is longer than ``MAX_BODY_BYTES``."""
    return HttpError(413, f"a body has at most {MAX_BODY_BYTES} bytes", code="BATCH_TOO_LARGE")
