"""Responses over HTTP: the status for each error code, problem documents (RFC 9457), and what a handler returns."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tidelog.errors import CODES, TidelogError

STATUSES: dict[str, int] = {
    "MALFORMED": 400,
    "CORRUPT_BATCH": 400,
    "INVALID_TOPIC": 400,
    "INVALID_CONFIG": 400,
    "INVALID_REPLICATION_FACTOR": 400,
    "INVALID_REPLICAS": 400,
    "INVALID_GROUP": 400,
    "INVALID_VALUE": 400,
    "UNAUTHENTICATED": 401,
    "FORBIDDEN": 403,
    "UNKNOWN_TOPIC": 404,
    "UNKNOWN_GROUP": 404,
    "UNKNOWN_SERVER": 404,
    "UNKNOWN_TOKEN": 404,
    "UNKNOWN_TRANSACTION": 404,
    "UNKNOWN_CONTROLLER": 404,
    "UNKNOWN_STREAM": 404,
    "STREAM_EXISTS": 409,
    "STREAM_CLOSED": 409,
    "STREAM_CONFLICT": 409,
    "TOPIC_EXISTS": 409,
    "GROUP_NOT_EMPTY": 409,
    "TOPIC_READ_ONLY": 409,
    "TOPIC_PAUSED": 409,
    "UNKNOWN_MEMBER": 409,
    "FENCED_GENERATION": 409,
    "FENCED_INSTANCE": 409,
    "FENCED_PRODUCER": 409,
    "REQUEST_CONFLICT": 409,
    "UNVERIFIED_SEQUENCE": 409,
    "LIMIT_EXCEEDED": 409,
    "GROUP_FULL": 409,
    "LOG_TRUNCATED": 410,
    "OFFSET_OUT_OF_RANGE": 416,
    "UNEXPECTED_OFFSET": 412,
    "BATCH_TOO_LARGE": 413,
    "SEQUENCE_CONFLICT": 422,
    "QUOTA_EXCEEDED": 429,
    "UNSUPPORTED": 501,
    "UNSUPPORTED_LEVEL": 501,
    "REQUEST_TIMED_OUT": 504,
}
"""The status of each error code. Of those that are not here, retriable ones are 503 and all others 500."""
REASONS = {
    200: "OK",
    201: "Created",
    202: "Accepted",
    204: "No Content",
    304: "Not Modified",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    406: "Not Acceptable",
    408: "Request Timeout",
    409: "Conflict",
    410: "Gone",
    412: "Precondition Failed",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    416: "Range Not Satisfiable",
    422: "Unprocessable Content",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}
PROBLEM_TYPE = "application/problem+json"
JSON_TYPE = "application/json"

Headers = tuple[tuple[str, str], ...]


class HttpError(TidelogError):
    """A refusal with a status of its own, such as 405 for a method that a path does not have."""

    def __init__(self, status: int, message: str, *, code: str = "MALFORMED", headers: Headers = ()) -> None:
        super().__init__(message, code=code)
        self.status = status
        self.headers = headers


@dataclass(frozen=True, slots=True)
class Response:
    """The whole response to a request."""

    status: int
    body: bytes = b""
    content_type: str = JSON_TYPE
    headers: Headers = ()


def status_of(error: TidelogError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, HttpError):
        return error.status
    return STATUSES.get(error.code) or (503 if error.retriable else 500)


def problem(error: TidelogError, **more: Any) -> dict[str, Any]:
    """Return the problem document of an error: the members of RFC 9457, and the error's code, what it means for
    another try, and its details. ``more``: further members."""
    status = status_of(error)
    return {
        "type": "about:blank",
        "title": REASONS.get(status, "Error"),
        "status": status,
        "detail": error.message,
        "code": error.code,
        "meaning": CODES[error.code].text,
        "retriable": error.retriable,
        "unknown_outcome": error.unknown_outcome,
        "values": dict(error.detail),
        **({"error_id": error.id} if error.id else {}),
        **more,
    }


def refusal(error: TidelogError, **more: Any) -> Response:
    """Return the response to a request that has failed with an error. ``more``: further members of its problem
    document."""
    headers: list[tuple[str, str]] = list(error.headers) if isinstance(error, HttpError) else []
    if error.code == "UNAUTHENTICATED":
        headers.append(("www-authenticate", "Bearer"))
    if error.pause_s:
        headers.append(("retry-after", str(max(1, round(error.pause_s)))))
    return Response(status_of(error), as_json(problem(error, **more)), PROBLEM_TYPE, tuple(headers))


def as_json(document: Any) -> bytes:
    """Return a document as JSON in UTF-8, with a line end."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def ok(document: Any, status: int = 200, headers: Headers = ()) -> Response:
    """Return the response with a JSON document."""
    return Response(status, as_json(document), JSON_TYPE, headers)


def response_head(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    """Return the head of a response, with the empty line behind it. Raises ``ValueError`` if a header has a line end,
    so that no value can add a header of its own."""
    lines = [f"HTTP/1.1 {status} {REASONS[status]}", *(f"{name}: {value}" for name, value in headers)]
    text = "\r\n".join(lines)
    if text.count("\r") != len(lines) - 1 or text.count("\n") != len(lines) - 1:
        raise ValueError(f"a header of a response has a line end: {lines}")
    return f"{text}\r\n\r\n".encode("latin-1")
