"""The head of an HTTP request, checked (RFC 9112). Sans-I/O.

h11 parses the head. Before that, this module refuses everything that a proxy in front may read in another way, since
a request could hide there (request smuggling): line ends other than CR LF, folded lines, both a length and a transfer
coding, a length given twice, and transfer codings other than ``chunked``. After such a fault nothing more of the
connection is read.

A path is split at its slashes first and decoded afterwards. So ``%2F`` is part of a name and never a separator. A
name is UTF-8 without control characters, and not ``.`` or ``..``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

import h11

from tidelog_gateway.http.responses import HttpError

MAX_HEAD_BYTES = 16 << 10
MAX_HEADERS = 100
MAX_PARAMETERS = 32
_REQUEST_LINE = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+ [\x21-\x7e]+ HTTP/1\.[01]")
_BAD_LINE_ENDS = re.compile(rb"(?<!\r)\n|\r(?!\n)|\0|\r\n[ \t]")
_LENGTH = re.compile(rb"\r\ncontent-length[ \t]*:[ \t]*([^\r]*?)[ \t]*(?=\r)", re.IGNORECASE)
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_AUTHORITY = re.compile(r"https?://([^/?#]*)")


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The head of a request that may be served: what it asks for, and how its body is sent."""

    method: str
    path: tuple[str, ...]
    """The decoded segments of the path."""
    query: dict[str, str]
    headers: dict[str, str]
    """By name in lower case; the values of repeated headers are joined with a comma."""
    host: str
    is_http_11: bool
    """Whether the client speaks HTTP/1.1; otherwise it speaks HTTP/1.0."""

    def header(self, name: str) -> str:
        """Return the value of a header by its name in lower case; "" if it is missing."""
        return self.headers.get(name, "")

    @property
    def content_length(self) -> int:
        """Return the length of the body in bytes; -1 if it is sent in chunks."""
        if "transfer-encoding" in self.headers:
            return -1
        return int(self.headers.get("content-length", "0"))

    @property
    def keeps_connection(self) -> bool:
        """Return whether the client may send another request on the connection (RFC 9112 §9.3). HTTP/1.0 may not."""
        options = self.header("connection").lower().replace(" ", "").split(",")
        return self.is_http_11 and "close" not in options

    @property
    def waits_for_continue(self) -> bool:
        """Return whether the client waits for ``100 Continue`` before it sends the body."""
        return self.is_http_11 and self.header("expect").lower() == "100-continue"

    @property
    def media_type(self) -> str:
        """Return the media type of the body in lower case, without parameters; "" if none is given."""
        return self.header("content-type").partition(";")[0].strip().lower()


def parse_head(data: bytes) -> RequestHead:
    """Return the checked head of a request. ``data`` is the head with the empty line behind it. Raises ``HttpError``;
    the connection must then be closed, since it is not certain where the next request begins."""
    if _BAD_LINE_ENDS.search(data):
        raise HttpError(400, "lines of the head end with CR LF, and none is folded or has a NUL")
    line = data.partition(b"\r\n")[0]
    if _REQUEST_LINE.fullmatch(line) is None:
        raise HttpError(400, "the request line is METHOD, path and HTTP/1.1, with one space between them")
    lengths = _LENGTH.findall(data)  # h11 joins equal ones
    if len(lengths) > 1 or not all(length.isdigit() for length in lengths):
        raise HttpError(400, "the length of the body is one number")
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
    connection.receive_data(data)
    try:
        request = connection.next_event()
    except h11.RemoteProtocolError as error:
        raise HttpError(_status_of(error), str(error)) from None
    assert isinstance(request, h11.Request)
    headers = _headers_of(request)
    target = request.target.decode("ascii")
    authority = _AUTHORITY.match(target)
    if authority is not None:
        target = target[authority.end() :]
    path, _, query = target.partition("?")
    host = authority[1] if authority is not None else headers.get("host", "")
    if not path.startswith("/"):
        raise HttpError(400, "the path begins with /")
    method, is_http_11 = request.method.decode("ascii"), request.http_version == b"1.1"
    return RequestHead(method, _segments(path), _parameters(query), headers, host, is_http_11)


def _status_of(error: h11.RemoteProtocolError) -> int:
    """Return the status for a head that h11 refuses."""
    hint = int(error.error_status_hint)
    return hint if hint in (431, 501) else 400


def _headers_of(request: h11.Request) -> dict[str, str]:
    """Return the headers of a request by name. Raises ``HttpError`` for too many, and for those that let it be
    uncertain where the body ends."""
    if len(request.headers) > MAX_HEADERS:
        raise HttpError(431, f"a request has at most {MAX_HEADERS} headers")
    names = [name for name, _ in request.headers]
    if b"transfer-encoding" in names:
        if b"content-length" in names:
            raise HttpError(400, "a request has a Content-Length or a Transfer-Encoding, not both")
        if request.http_version != b"1.1":
            raise HttpError(400, "HTTP/1.0 has no Transfer-Encoding")
    headers: dict[str, str] = {}
    for key, value in request.headers:
        name, text = key.decode("ascii"), value.decode("latin-1")
        headers[name] = f"{headers[name]}, {text}" if name in headers else text
    if headers.get("content-encoding", "identity").lower() not in ("identity", ""):
        raise HttpError(415, "bodies are not compressed here", code="UNSUPPORTED")
    return headers


def _segments(path: str) -> tuple[str, ...]:
    """Return the decoded segments of a path. Raises ``HttpError`` for an empty or dotted one, and for one that is not
    text."""
    parts = path[1:].split("/")
    if parts and parts[-1] == "":
        parts.pop()
    segments = tuple(_printable(part, "the path") for part in parts)
    for segment in segments:
        if segment in ("", ".", ".."):
            raise HttpError(400, "no part of a path is empty, . or ..")
    return segments


def _parameters(query: str) -> dict[str, str]:
    """Return the parameters of a query. Raises ``HttpError`` if one is given twice, or there are too many."""
    found: dict[str, str] = {}
    parts = [part for part in query.split("&") if part]
    if len(parts) > MAX_PARAMETERS:
        raise HttpError(400, f"a query has at most {MAX_PARAMETERS} parameters")
    for part in parts:
        name, _, value = part.partition("=")
        name = _printable(name, "the query")
        if name in found:
            raise HttpError(400, "each parameter of a query is given once")
        found[name] = _decoded(value.replace("+", " "), "the query")
    return found


def _printable(text: str, where: str) -> str:
    """Return a part of a target decoded. Raises ``HttpError`` unless it is UTF-8 without control characters."""
    found = _decoded(text, where)
    if not found.isprintable():
        raise HttpError(400, f"{where} has characters that are not printable")
    return found


def _decoded(text: str, where: str) -> str:
    """Return a part of a target with its escapes (``%41``) decoded. Raises ``HttpError`` unless it is UTF-8."""
    if _BAD_ESCAPE.search(text):
        raise HttpError(400, f"{where} has a % without two hexadecimal digits behind it")
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise HttpError(400, f"{where} is not UTF-8") from None
