"""Creates, appends to, reads and deletes streams for clients over HTTP (Durable Streams, version 1.0).

Each request becomes a message of the client, so rights, quotas and limits are those of all other clients.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.batch.sparse import MOST_BYTES
from tidelog.errors import TidelogError
from tidelog.wire.codec import payload_buffers
from tidelog.wire.messages import (
    AppendStream,
    CreateStream,
    DeleteStream,
    DescribeStream,
    Done,
    ReadStream,
    StreamData,
    StreamInfo,
)

from tidelog_gateway.http.http_link import HttpLink
from tidelog_gateway.http.request_head import RequestHead
from tidelog_gateway.http.responses import Headers, HttpError, Response, refusal
from tidelog_gateway.http.streams.content import appended, whole
from tidelog_gateway.http.streams.cursors import next_cursor
from tidelog_gateway.http.streams.stream_events import StreamEvents
from tidelog_gateway.http.streams.stream_requests import (
    START,
    closes,
    lifetime_headers,
    lifetime_of,
    live_mode,
    order_mark_of,
    position_of,
    position_text,
    producer_of,
    stream_path,
)
from tidelog_gateway.shell import GatewayShell

LONG_POLL_MS = 15_000
"""How long a long poll waits for an append, in milliseconds."""
MAX_APPEND_BYTES = MOST_BYTES - (64 << 10)
"""Longest body of an append: with its description it fits into one batch."""
DEFAULT_TYPE = "application/octet-stream"
ALWAYS: Headers = (("cross-origin-resource-policy", "cross-origin"),)
"""Headers of every response about a stream."""


class Streams:
    """The part of the port that serves streams. There is one for each gateway."""

    def __init__(self, shell: GatewayShell, scheme: str) -> None:
        """``scheme``: ``http`` or ``https``, by which clients reach the port."""
        self._shell = shell
        self._scheme = scheme

    async def serve(
        self, operation: str, link: HttpLink, head: RequestHead, parts: tuple[str, ...], body: bytes
    ) -> Response | StreamEvents:
        """Carry out an operation on the stream that the parts of the path name, and return the answer, also if it is
        refused."""
        try:
            path = stream_path(parts)
            match operation:
                case "create_stream":
                    return await self._create(link, head, path, body)
                case "append_stream":
                    return await self._append(link, head, path, body)
                case "read_stream" if head.method == "HEAD":
                    return await self._describe(link, path)
                case "read_stream":
                    return await self._read(link, head, path)
                case _:
                    await link.call(DeleteStream(path), Done)
                    return Response(204, content_type="", headers=ALWAYS)
        except TidelogError as error:
            return _refused(error)

    async def _create(self, link: HttpLink, head: RequestHead, path: str, body: bytes) -> Response:
        content_type = head.header("content-type") or DEFAULT_TYPE
        lifetime = lifetime_of(head)
        data = appended(content_type, _bounded(body), creates=True)
        request = CreateStream(path, content_type, lifetime.ttl_s, lifetime.expires_ms, closes(head), payload=data)
        info = await link.call(request, StreamInfo)
        location = (("location", f"{self._scheme}://{head.host}/{'/'.join(head.path)}"),) if info.created else ()
        return Response(201 if info.created else 200, b"", info.content_type, (*location, *_state(info), *ALWAYS))

    async def _append(self, link: HttpLink, head: RequestHead, path: str, body: bytes) -> Response:
        producer, mark, closing = producer_of(head), order_mark_of(head), closes(head)
        content_type = head.header("content-type")
        if not body and not closing:
            raise HttpError(400, "the body of an append is not empty")
        if body and not content_type:
            raise HttpError(400, "an append has a Content-Type")
        request = AppendStream(
            path,
            content_type,
            mark,
            producer.name,
            producer.epoch,
            producer.seq,
            closing,
            appended(content_type, _bounded(body)),
        )
        info = await link.call(request, StreamInfo)
        headers: Headers = (*_state(info), *ALWAYS)
        if producer.name:
            headers += (("producer-epoch", str(producer.epoch)), ("producer-seq", str(info.producer_seq)))
        is_new = bool(producer.name) and not info.duplicate and bool(body)
        return Response(200 if is_new else 204, content_type="", headers=headers)

    async def _describe(self, link: HttpLink, path: str) -> Response:
        info = await link.call(DescribeStream(path), StreamInfo)
        lifetime = lifetime_headers(info.ttl_s, info.expires_ms)
        return Response(200, b"", info.content_type, (*_state(info), *lifetime, *ALWAYS))

    async def _read(self, link: HttpLink, head: RequestHead, path: str) -> Response | StreamEvents:
        mode = live_mode(head.query)
        stream_id, position = position_of(head.query.get("offset", START))
        request = ReadStream(path, position, stream_id, max_wait_ms=LONG_POLL_MS if mode == "long-poll" else 0)
        found = await link.call(request, StreamData)
        if mode == "sse":
            return StreamEvents(self._shell, link, path, found, head.query.get("cursor", ""))
        return self._answer(head, found, mode, position)

    def _answer(self, head: RequestHead, found: StreamData, mode: str, position: int) -> Response:
        """Return the response with what was read."""
        data = b"".join(map(bytes, payload_buffers(found.payload)))
        end = found.position + len(data)
        headers: Headers = (("stream-next-offset", position_text(found.stream_id, end)), *ALWAYS)
        is_last = end == found.end
        if is_last:
            headers += (("stream-up-to-date", "true"),)
        if is_last and found.closed:
            headers += (("stream-closed", "true"),)
        elif mode:
            cursor = next_cursor(head.query.get("cursor", ""), self._shell.wall_ms())
            headers += (("stream-cursor", str(cursor)),)
        if mode and not data:
            return Response(204, content_type="", headers=headers)
        tag = f'"{found.stream_id}:{found.position}:{end}{":closed" if is_last and found.closed else ""}"'
        if position >= 0 or mode:  # the end moves
            headers += (("etag", tag), ("cache-control", "no-cache"))
        if tag in [one.strip() for one in head.header("if-none-match").split(",")]:
            return Response(304, content_type="", headers=headers)
        return Response(200, whole(found.content_type, data), found.content_type, headers)


def _bounded(body: bytes) -> bytes:
    """Return the body of an append. Raises ``HttpError`` (413) if it is too long for one."""
    if len(body) > MAX_APPEND_BYTES:
        raise HttpError(413, f"an append has at most {MAX_APPEND_BYTES} bytes", code="BATCH_TOO_LARGE")
    return body


def _state(info: StreamInfo) -> Headers:
    """Return the headers that tell where a stream ends, and whether it is complete."""
    end: Headers = (("stream-next-offset", position_text(info.stream_id, info.end)),)
    return (*end, ("stream-closed", "true")) if info.closed else end


def _refused(error: TidelogError) -> Response:
    """Return the response with a refusal, with the headers by which the protocol tells the reason."""
    detail: Mapping[str, int | str] = error.detail
    headers = ALWAYS
    status = 0
    match error.code:
        case "STREAM_CLOSED":
            end = position_text(str(detail.get("stream_id", "")), int(detail.get("end", 0)))
            headers += (("stream-closed", "true"), ("stream-next-offset", end))
        case "STREAM_CONFLICT" if "expected" in detail:
            headers += (
                ("producer-expected-seq", str(detail["expected"])),
                ("producer-received-seq", str(detail["received"])),
            )
        case "FENCED_PRODUCER":
            status, headers = 403, (*headers, ("producer-epoch", str(detail.get("epoch", ""))))
        case "OFFSET_OUT_OF_RANGE":
            status = 400
        case "UNKNOWN_STREAM" if "stream_id" in detail:
            status = 410
    answer = refusal(error)
    return Response(status or answer.status, answer.body, answer.content_type, (*answer.headers, *headers))
