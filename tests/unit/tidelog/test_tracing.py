"""Traces: what a producer sends and what is done with it is one trace, by every client; nobody else pays for it."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
import tidelog
import tidelog.aio
import tidelog.sync
import trio
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from support.fake_gateway import FakeCluster
from support.gateway_thread import served
from tidelog.batch.format import Record
from tidelog.client.producer import Producer, TracedProducer
from tidelog.errors import TidelogError, refuse
from tidelog.tracing import Tracing


class Traces:
    """An application with an SDK that keeps its spans."""

    def __init__(self) -> None:
        self._kept = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracer = provider.get_tracer("application")
        self.tracing = Tracing(provider)

    @property
    def spans(self) -> list[ReadableSpan]:
        """Those that have ended, in order."""
        return list(self._kept.get_finished_spans())

    def named(self, name: str) -> ReadableSpan:
        """The only one of that name."""
        [span] = [span for span in self.spans if span.name == name]
        return span


def assert_one_trace(traces: Traces, outer: str) -> None:
    """The application's span, that of the send within it, and that of the processing within that."""
    application, send, process = (traces.named(name) for name in (outer, "send orders", "process orders"))
    assert application.context and send.context and process.context and send.parent and process.parent
    assert send.parent.span_id == application.context.span_id
    assert process.parent.span_id == send.context.span_id
    assert [link.context.span_id for link in process.links] == [send.context.span_id]
    assert len({span.context.trace_id for span in (application, send, process)}) == 1


async def test_a_record_and_its_consumption_are_one_trace() -> None:
    traces, cluster = Traces(), FakeCluster()
    cluster.add_topic("orders")
    with trio.fail_after(30):
        async with (
            cluster.gateways(1) as urls,
            tidelog.connect(urls, tracing=traces.tracing) as log,
            log.producer("orders") as producer,
        ):
            with traces.tracer.start_as_current_span("checkout"):
                await producer.send(b"a", headers={"h": b"1"})
            async for record in log.consume("orders", start="earliest", end="latest"):
                with traces.tracing.process(record, group="billing"):
                    assert dict(record.headers)["h"] == b"1"
    assert_one_trace(traces, "checkout")
    send, process = traces.named("send orders"), traces.named("process orders")
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    place = {
        "messaging.system": "tidelog",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "tidelog.offset": 0,
        "tidelog.leader_epoch": 4,
    }
    assert send.attributes == place | {
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "tidelog.durability": "all/os",
    }
    assert process.attributes == place | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "billing",
    }


def test_the_same_from_any_thread_of_the_blocking_client() -> None:
    traces = Traces()
    with served() as (_, url), tidelog.sync.connect(url, tracing=traces.tracing) as log:
        with log.producer("orders") as producer, traces.tracer.start_as_current_span("checkout"):
            producer.send(b"a")
        for record in log.consume("orders", start="earliest", end="latest"):
            with traces.tracing.process(record):
                pass
    assert_one_trace(traces, "checkout")


def test_the_same_on_asyncio() -> None:
    traces = Traces()

    async def main(url: str) -> None:
        async with tidelog.aio.connect(url, tracing=traces.tracing) as log, log.producer("orders") as producer:
            with traces.tracer.start_as_current_span("checkout"):
                await producer.send(b"a")
            async for record in log.consume("orders", start="earliest", end="latest"):
                with traces.tracing.process(record):
                    pass

    with served() as (_, url):
        asyncio.run(main(url))
    assert_one_trace(traces, "checkout")


def test_the_span_of_a_send_ends_with_its_batch_and_holds_its_error() -> None:
    traces = Traces()
    with served() as (cluster, url), tidelog.sync.connect(url, tracing=traces.tracing) as log:
        cluster.refusals = [refuse("CORRUPT_BATCH", "bad")]
        with log.producer("orders") as producer:
            for value in (b"refused by the leader", b"x" * (2 << 20)):
                with pytest.raises(TidelogError):
                    producer.send(value)
    assert [span.status.status_code for span in traces.spans] == [StatusCode.ERROR] * 2
    assert [dict(span.attributes or {})["error.type"] for span in traces.spans] == [
        "CORRUPT_BATCH",
        "BATCH_TOO_LARGE",
    ]
    assert [span.end_time is not None for span in traces.spans] == [True, True]


def test_every_record_of_a_batch_has_a_span_with_its_own_offset() -> None:
    traces = Traces()
    with served() as (_, url), tidelog.sync.connect(url, tracing=traces.tracing) as log:
        with log.producer("orders") as producer:
            for n in range(100):
                producer.submit(b"%d" % n)
        batch = log.consume("orders", start="earliest", end="latest").next_records()
    assert sorted(dict(span.attributes or {})["tidelog.offset"] for span in traces.spans) == list(range(100))  # type: ignore[type-var]
    with traces.tracing.process(batch):
        pass
    process = traces.named("process orders")
    sent = [span.context.span_id for span in traces.spans if span.name == "send orders" and span.context]
    assert process.parent is None, "several records may be of several traces"
    assert [link.context.span_id for link in process.links] == sent[: len(batch)]
    assert dict(process.attributes or {})["messaging.batch.message_count"] == len(batch)


def test_a_context_that_the_application_gives_stays() -> None:
    traces = Traces()
    given = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with served() as (cluster, url), tidelog.sync.connect(url, tracing=traces.tracing) as log:
        with log.producer("orders") as producer:
            producer.send(b"a", headers={"traceparent": given})
        [record] = cluster.log("orders").records()
    assert record.headers == (("traceparent", given),)
    send = traces.named("send orders")
    assert send.kind is SpanKind.CLIENT
    assert [link.context.span_id for link in send.links] == [0xB7AD6B7169203331]


def test_a_record_processed_within_another_span_is_linked_from_both() -> None:
    traces = Traces()
    header = ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    record = Record("orders", 0, 7, 1, 0, None, b"a", (header,))
    with pytest.raises(KeyError), traces.tracer.start_as_current_span("poll"), traces.tracing.process(record):
        raise KeyError("what the application did wrong")
    process, poll = traces.named("process orders"), traces.named("poll")
    assert process.context and process.context.trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    assert poll.context and [link.context.span_id for link in process.links] == [
        0xB7AD6B7169203331,
        poll.context.span_id,
    ]
    assert process.status.status_code is StatusCode.ERROR
    with pytest.raises(ValueError, match="at least one"), traces.tracing.process([]):
        pass


def test_a_record_without_a_context_is_processed_in_the_trace_that_is_there() -> None:
    traces = Traces()
    with (
        traces.tracer.start_as_current_span("poll"),
        traces.tracing.process(Record("orders", 0, 7, 1, 0, None, b"a", (("traceparent", b"\xff nonsense"),))),
    ):
        pass
    process, poll = traces.named("process orders"), traces.named("poll")
    assert process.parent and poll.context and process.parent.span_id == poll.context.span_id
    assert not process.links


def test_a_client_without_tracing_pays_nothing() -> None:
    with served() as (cluster, url), tidelog.sync.connect(url) as log:
        with log.producer("orders") as producer:
            assert type(producer._inner) is Producer and issubclass(TracedProducer, Producer)
            producer.send(b"a")
        assert cluster.log("orders").records()[0].headers == ()
    script = """
import sys
sys.modules["opentelemetry"] = None
import tidelog, tidelog.aio, tidelog.sync
tidelog.connect
try:
    import tidelog.tracing
except ImportError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said == "tidelog.tracing needs OpenTelemetry's API: pip install 'tidelog[otel]'\n"
