"""Finds the operation that a request asks for, by its path and method.

``ROUTES`` is the only list of operations. The port (``http_port.py``) serves what is there, and the description
(``openapi.py``) describes it. Each route names the parameters that its query may have. Any other is refused, so
that a misspelt one is not ignored in silence.

A path is compared part by part, after its parts were decoded. So an encoded slash is part of a name, and no name can
lead to another operation.

    unknown path                                404
    known path, another method                  405, with the methods in Allow
    known path and method, unknown parameter    400
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog_gateway.http.request_head import RequestHead
from tidelog_gateway.http.responses import HttpError

PREFIX = "/v1/"
VERSION = PREFIX.strip("/")


@dataclass(frozen=True, slots=True)
class Route:
    """One operation: its method and path. ``{name}`` in the path stands for one part of it, and ``{name*}``
    for the rest, of one part or more."""

    operation: str
    method: str
    path: str
    parameters: tuple[str, ...] | None = ()
    """The parameters that the query may have; None: any, and unknown ones are ignored."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the parts of the path behind the prefix."""
        return tuple(self.path.removeprefix(PREFIX).split("/"))


@dataclass(frozen=True, slots=True)
class Matched:
    """The operation of one request, and the names in its path."""

    route: Route
    names: dict[str, str] = field(default_factory=dict)


_APPEND = ("acks", "expected_offset", "key", "timeout", "format")
_READ = ("from", "epoch", "max", "wait")
ROUTES = (
    Route("openapi", "GET", "/v1/openapi.json"),
    Route("describe_cluster", "GET", "/v1/metadata"),
    Route("list_topics", "GET", "/v1/topics"),
    Route("create_topic", "POST", "/v1/topics"),
    Route("describe_topic", "GET", "/v1/topics/{topic}", ("offsets",)),
    Route("delete_topic", "DELETE", "/v1/topics/{topic}"),
    Route("append", "POST", "/v1/topics/{topic}/records", _APPEND),
    Route("append_to_partition", "POST", "/v1/topics/{topic}/partitions/{partition}/records", _APPEND),
    Route("read", "GET", "/v1/topics/{topic}/partitions/{partition}/records", _READ),
    Route("follow", "GET", "/v1/topics/{topic}/partitions/{partition}/events", ("from", "epoch")),
    Route("get_positions", "GET", "/v1/groups/{group}/positions"),
    Route("set_positions", "PUT", "/v1/groups/{group}/positions"),
    Route("create_stream", "PUT", "/v1/streams/{path*}", None),
    Route("append_stream", "POST", "/v1/streams/{path*}", None),
    Route("read_stream", "GET", "/v1/streams/{path*}", None),
    Route("delete_stream", "DELETE", "/v1/streams/{path*}", None),
)


def find(head: RequestHead) -> Matched:
    """Return the operation that a request asks for. A ``HEAD`` request asks for what ``GET`` does. Raises
    ``HttpError``: 404 for an unknown path, 405 for a method that the path does not have, 400 for a parameter that the
    operation does not have."""
    matches = _matches(head.path)
    if not matches:
        raise HttpError(
            404, f"there is no such path; {PREFIX}openapi.json lists those that there are", code="UNSUPPORTED"
        )
    method = "GET" if head.method == "HEAD" else head.method
    for found in matches:
        if found.route.method == method:
            for name in head.query:
                if found.route.parameters is not None and name not in found.route.parameters:
                    known = ", ".join(found.route.parameters) or "none"
                    raise HttpError(400, f"there is no parameter {name!r} here; there are: {known}")
            return found
    raise HttpError(
        405, f"this path is not for {head.method}", code="UNSUPPORTED", headers=(("allow", allowed(head)),)
    )


def allowed(head: RequestHead) -> str:
    """Return the methods that a request's path has, as the value of the header ``Allow``; "OPTIONS" alone for an
    unknown path."""
    methods = [found.route.method for found in _matches(head.path)]
    if "GET" in methods:
        methods.append("HEAD")
    return ", ".join([*methods, "OPTIONS"])


_BY_LENGTH: dict[int, list[tuple[Route, tuple[str, ...]]]] = {}
"""The routes whose paths have a fixed number of parts, with these parts, by that number."""
_OPEN: list[tuple[Route, tuple[str, ...]]] = []
"""The routes whose last part stands for any number of parts, with the parts before it."""
for _route in ROUTES:
    _parts = (VERSION, *_route.parts)
    if _parts[-1].endswith("*}"):
        _OPEN.append((_route, _parts[:-1]))
    else:
        _BY_LENGTH.setdefault(len(_parts), []).append((_route, _parts))


def _matches(path: tuple[str, ...]) -> list[Matched]:
    """Return the routes whose path this is, each with the names in it."""
    found = []
    for route, parts in _BY_LENGTH.get(len(path), ()):
        if all(part == given or part[0] == "{" for part, given in zip(parts, path, strict=True)):
            names = {part[1:-1]: given for part, given in zip(parts, path, strict=True) if part[0] == "{"}
            found.append(Matched(route, names))
    for route, parts in _OPEN:
        if len(path) > len(parts) and path[: len(parts)] == parts:
            found.append(Matched(route))
    return found
