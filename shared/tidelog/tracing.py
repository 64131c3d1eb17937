"""Traces from producers to consumers, with OpenTelemetry. Needs the extra ``tidelog[otel]``, which is the API only.
The application chooses SDK and exporter; without them nothing is recorded.

    from tidelog.tracing import Tracing

    tracing = Tracing()
    async with tidelog.connect("ws://127.0.0.1:9292", tracing=tracing) as log:
        async with log.producer("orders") as producer:
            await producer.send(b"...")  # a span "send orders", until it is acknowledged
        async for record in log.consume("orders", start="earliest"):
            with tracing.process(record):  # a span "process orders" of the same trace
                ...

The context travels in the headers of each record (W3C ``traceparent``, or the format of OpenTelemetry's configured
propagators). Names and attributes are those of OpenTelemetry's conventions for messaging systems. Without ``tracing``
the client runs no code of this module (``tidelog.client.producer``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tidelog.batch.format import Record, RecordHeaders
from tidelog.errors import TidelogError
from tidelog.extras import install_hint
from tidelog.types import Headers

try:
    from opentelemetry import context, propagate, trace
    from opentelemetry.propagators.textmap import Getter, Setter
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
except ImportError as error:
    raise ImportError(f"tidelog.tracing needs OpenTelemetry's API: {install_hint('otel')}") from error

__all__ = ["Tracing"]

SYSTEM = "tidelog"
"""``messaging.system`` of every span."""


class _Headers(Getter[RecordHeaders], Setter[list[tuple[str, bytes]]]):
    """The adapter through which OpenTelemetry's propagators read and write the headers of records."""

    def get(self, carrier: RecordHeaders, key: str) -> list[str] | None:
        return [value.decode(errors="replace") for name, value in carrier if name.lower() == key] or None

    def keys(self, carrier: RecordHeaders) -> list[str]:
        return [name for name, _ in carrier]

    def set(self, carrier: list[tuple[str, bytes]], key: str, value: str) -> None:
        carrier.append((key, value.encode()))


_HEADERS = _Headers()


class Tracing:
    """The tracing of a client, passed to ``connect``: producers begin a span for each record and put its context into
    the record's headers; consumers open spans with ``process``. Any number of connections, tasks and threads may use
    it."""

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        """Make spans with the tracer of ``tracer_provider``, or of the process's provider if that is None."""
        self._tracer = trace.get_tracer("tidelog", tracer_provider=tracer_provider)

    @contextmanager
    def process(self, records: Record | Sequence[Record], *, group: str = "") -> Iterator[Span]:
        """Open a span, current within the block, for the processing of a record, or of several records of one
        partition (as ``next_records`` returns them); yields the span. It is linked to the spans that sent the
        records. The span for a single record is in the trace of the span that sent it. ``group``: the consumer's
        group. An exception in the block marks the span as failed. Raises ``ValueError`` without a record."""
        several = (records,) if isinstance(records, Record) else records
        if not several:
            raise ValueError("there is nothing to process: at least one record is needed")
        first = several[0]
        about: dict[str, str | int] = {
            **_about("process", first.topic),
            "messaging.destination.partition.id": str(first.partition),
            **({"messaging.consumer.group.name": group} if group else {}),
        }
        outer = context.get_current()
        links = [Link(sent) for record in several if (sent := _span_in(record.headers)).is_valid]
        if isinstance(records, Record):
            about |= {"tidelog.offset": first.offset, "tidelog.leader_epoch": first.leader_epoch}
            here = trace.get_current_span().get_span_context()
            if links and here.is_valid:
                links.append(Link(here))  # so that it is also found from where it is processed
            outer = propagate.extract(first.headers, outer, _HEADERS)
        else:
            about["messaging.batch.message_count"] = len(several)
        with (
            self.within(outer),
            self._tracer.start_as_current_span(
                f"process {first.topic}", kind=SpanKind.CONSUMER, attributes=about, links=links
            ) as span,
        ):
            yield span

    @contextmanager
    def within(self, outer: context.Context) -> Iterator[None]:
        """Make ``outer`` the current context within the block. The client calls this for records that it sends from
        another thread."""
        token = context.attach(outer)
        try:
            yield
        finally:
            context.detach(token)

    def now(self) -> context.Context:
        """Return the caller's current trace context. The client calls this before it sends a record from another
        thread."""
        return context.get_current()

    def begin_send(self, topic: str, headers: Headers) -> tuple[Span, list[tuple[str, bytes]]]:
        """Begin the span of a record to be sent to a topic. Returns the span, and the record's headers with the
        span's context added. If the application has put a context into the headers, that context stays and the span
        is linked to it. Producers call this."""
        pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
        given = _span_in(tuple(pairs))
        ours = not given.is_valid
        span = self._tracer.start_span(
            f"send {topic}",
            kind=SpanKind.PRODUCER if ours else SpanKind.CLIENT,
            attributes=_about("send", topic),
            links=[] if ours else [Link(given)],
        )
        if ours:
            propagate.inject(pairs, trace.set_span_in_context(span), setter=_HEADERS)
        return span, pairs

    def end_send(
        self,
        span: Span,
        error: BaseException | None,
        *,
        partition: int = -1,
        durability: str | None = None,
        offset: int = -1,
        leader_epoch: int = -1,
    ) -> None:
        """End the span of a record that is acknowledged or has failed, after adding the known attributes of its place
        (``offset`` -1 and ``partition`` -1: not known) and the error. Producers call this."""
        if partition >= 0:
            span.set_attribute("messaging.destination.partition.id", str(partition))
        if durability is not None:
            span.set_attribute("tidelog.durability", durability)
        if offset >= 0:
            span.set_attribute("tidelog.offset", offset)
            span.set_attribute("tidelog.leader_epoch", leader_epoch)
        if error is not None:
            span.set_attribute("error.type", error.code if isinstance(error, TidelogError) else type(error).__name__)
            span.set_status(Status(StatusCode.ERROR, str(error)))
        span.end()


def _about(operation: str, topic: str) -> dict[str, str]:
    """Return the attributes that every span of this operation (``send`` or ``process``) on a topic has."""
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }


def _span_in(headers: RecordHeaders) -> trace.SpanContext:
    """Return the context of the span that a record's headers name; it is invalid if they name none."""
    return trace.get_current_span(propagate.extract(headers, getter=_HEADERS)).get_span_context()
