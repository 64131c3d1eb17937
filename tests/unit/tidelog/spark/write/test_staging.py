"""Tasks that write in staged transactions, and the commit of what they have staged. Tests ``write/task.py``,
``write/renewal.py`` and ``sink.py``."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import tidelog.sync
import trio
import trio.testing
from support.fake_gateway import FakeCluster
from support.gateway_thread import served
from tidelog.errors import TidelogError, refuse
from tidelog.types import staged_name
from tidelog.wire.messages import (
    BeginTransaction,
    CommitStaged,
    Done,
    EndTransaction,
    Message,
    PrepareTransaction,
    StagedCommitted,
    TransactionBegun,
    TransactionEnded,
)

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")

from pyspark.sql.types import BinaryType, StructField, StructType
from pyspark.util import handle_worker_exception
from tidelog.spark import sink
from tidelog.spark.errors import SourceError
from tidelog.spark.sink import TidelogStreamWriter, TidelogWriter
from tidelog.spark.write.options import parse
from tidelog.spark.write.renewal import keep_open

ROWS = pa.RecordBatch.from_pydict({"value": [b"a", b"b"], "key": [b"k", b"l"]})


class Transactions:
    """What a cluster answers about transactions: each begins, and is prepared and committed, unless ``refusals`` say
    otherwise, by op."""

    def __init__(self) -> None:
        self.refusals: dict[str, Exception] = {}
        self.begun: list[BeginTransaction] = []
        self.renewed = 0
        self.committed: list[CommitStaged] = []

    def answer(self, cluster: FakeCluster, message: Message) -> Message | None:
        if error := self.refusals.get(message.OP):
            raise error
        match message:
            case BeginTransaction(renew=True):
                self.renewed += 1
                return self._last(cluster)
            case BeginTransaction():
                self.begun.append(message)
                return self._last(cluster)
            case PrepareTransaction():
                return Done()
            case CommitStaged():
                self.committed.append(message)
                return StagedCommitted()
        return None

    def _last(self, cluster: FakeCluster) -> TransactionBegun:
        """The transaction that was begun last; each is of another producer."""
        id = 100 + len(self.begun)
        return TransactionBegun(id, 0, f"{cluster.key} {id} 1 0")


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A gateway with transactions, and a task of query ``q`` in its batch 3, of which Spark hands over all rows."""
    transactions, answer = Transactions(), FakeCluster.answer
    monkeypatch.setattr(
        FakeCluster,
        "answer",
        lambda self, link, message: transactions.answer(self, message) or answer(self, link, message),
    )
    named = {sink.QUERY_ID: "q", sink.BATCH_ID: "3"}
    context = SimpleNamespace(partitionId=lambda: 2, getLocalProperty=named.get)
    monkeypatch.setattr(sink, "TaskContext", SimpleNamespace(get=lambda: context))
    monkeypatch.setattr(sink, "check_complete", lambda tables: tables)
    with served() as (cluster, url):
        yield SimpleNamespace(cluster=cluster, url=url, named=named, transactions=transactions)


def stream(gateway: SimpleNamespace, **options: str) -> TidelogStreamWriter:
    return TidelogStreamWriter(parse({"gateway": gateway.url, "topic": "orders", **options}, streaming=True))


def numbered(gateway: SimpleNamespace, **options: str) -> TidelogWriter:
    given = {"gateway": gateway.url, "topic": "orders", "appId": "app", "batchId": "5", **options}
    return TidelogWriter(parse(given, streaming=False))


def test_what_a_stream_stages_is_of_its_query_and_no_two_attempts_have_one_name(
    gateway: SimpleNamespace,
) -> None:
    writer = stream(gateway, appId="app")
    messages = [writer.write(iter([ROWS])) for _ in range(2)]
    writer.commit(messages, 3)
    [committed] = gateway.transactions.committed
    assert (committed.app, committed.batch, committed.alone) == ("app", 3, True)
    assert committed.staged == tuple(begun.staged for begun in gateway.transactions.begun)
    assert len(set(committed.staged)) == 2
    assert all(name.startswith(staged_name("q", "3-2-")) for name in committed.staged)


def test_a_numbered_batch_write_belongs_to_the_query_around_it_and_to_its_topic(gateway: SimpleNamespace) -> None:
    for query, owner in (("q", "q.orders"), (None, "batch.orders")):
        gateway.named[sink.QUERY_ID] = query
        writer = numbered(gateway)
        writer.commit([writer.write(iter([ROWS]))])
        committed = gateway.transactions.committed[-1]
        assert (committed.app, committed.batch) == ("app", 5)
        assert committed.staged[0].startswith(staged_name(owner, "5-2-"))


def test_the_longest_names_fit(gateway: SimpleNamespace) -> None:
    gateway.cluster.add_topic("t" * 249)
    numbered(gateway, topic="t" * 249, batchId=str((1 << 63) - 1)).write(iter([ROWS]))
    assert len(gateway.transactions.begun[0].staged) <= 249


def test_batch_writes_without_a_number_are_applications_of_their_own(gateway: SimpleNamespace) -> None:
    for _ in range(2):
        writer = TidelogWriter(
            parse({"gateway": gateway.url, "topic": "orders", "delivery": "exactly-once"}, streaming=False)
        )
        writer.commit([writer.write(iter([ROWS]))])
    first, second = gateway.transactions.committed
    assert first.app != second.app
    assert not first.staged[0].startswith("owner=")


def test_an_application_of_another_query_is_refused_with_what_to_do(gateway: SimpleNamespace) -> None:
    text = "application app belongs to p, not to q: use another name"
    gateway.transactions.refusals["commit_staged"] = refuse("INVALID_TRANSACTION", text, owner="p")
    writer = stream(gateway, appId="app")
    written = writer.write(iter([ROWS]))
    with pytest.raises(SourceError, match=rf"\[TIDELOG_APP_ID\] {text}.*Give another appId"):
        writer.commit([written], 3)
    gateway.transactions.refusals["commit_staged"] = refuse("INVALID_TRANSACTION", "batches below 7 are not known")
    with pytest.raises(SourceError, match=r"\[TIDELOG_FAILED\] batches below 7"):
        writer.commit([written], 3)


# --- renewals ----------------------------------------------------------------------------------------------------


def test_a_task_that_gets_rows_renews_its_transaction(gateway: SimpleNamespace) -> None:
    """It would never end if it did not."""

    def rows() -> Iterator[pa.RecordBatch]:
        while gateway.transactions.renewed < 3:
            yield ROWS

    assert stream(gateway, transactionTimeout="30ms").write(rows()).rows > 0
    assert len(gateway.transactions.begun) == 1


@pytest.mark.parametrize("op", ["prepare_transaction", "produce"])
def test_a_transaction_that_has_ended_is_an_error_with_its_timeout(gateway: SimpleNamespace, op: str) -> None:
    error = refuse("TRANSACTION_ABORTED", "the transaction of app is aborted")
    if op == "produce":
        gateway.cluster.refusals = [error]
    else:
        gateway.transactions.refusals[op] = error
    wanted = r"\[TIDELOG_NOT_WRITTEN\].*TRANSACTION_ABORTED.*no progress for transactionTimeout \(300 s\).*longer"
    with pytest.raises(SourceError, match=wanted):
        stream(gateway, transactionTimeout="5m").write(iter([ROWS]))


class Renewed:
    """A transaction that counts its renewals; those of ``errors`` fail."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.times: list[float] = []

    async def renew(self) -> None:
        self.times.append(trio.current_time())
        if self.errors and (error := self.errors.pop(0)):
            raise error


def renewals(transaction: Any, steps: dict[float, int]) -> list[float]:
    """The times at which a transaction with a time-out of 30 s is renewed within 100 s, while a task makes so many
    steps at these times."""

    async def main() -> None:
        start = trio.current_time()

        def progress() -> int:
            return sum(n for at, n in steps.items() if at <= trio.current_time() - start)

        with trio.move_on_after(105):
            await keep_open(transaction, 30.0, progress)
        transaction.times = [round(at - start) for at in transaction.times]

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return transaction.times  # type: ignore[no-any-return]


def test_a_task_that_waits_renews_nothing() -> None:
    assert renewals(Renewed(), {}) == []
    assert renewals(Renewed(), {5: 1, 15: 1, 71: 3}) == [10, 20, 80]


def test_a_renewal_that_fails_is_tried_again_until_the_transaction_is_over() -> None:
    steps = dict.fromkeys(map(float, range(100)), 1)
    passing, over = refuse("REQUEST_TIMED_OUT", "later"), refuse("TRANSACTION_ABORTED", "over")
    assert renewals(Renewed(passing, None, over), steps) == [10, 20, 30]
    assert renewals(Renewed(refuse("UNSUPPORTED", "an earlier gateway")), steps) == [10]


def test_a_transaction_that_an_earlier_release_begins_instead_is_given_up(gateway: SimpleNamespace) -> None:
    """It ignores that the request is to renew."""
    answer = gateway.transactions.answer

    def older(cluster: FakeCluster, message: Message) -> Message | None:
        if isinstance(message, EndTransaction):
            ended.append(message)
            return TransactionEnded(False)
        asked = replace(message, renew=False) if isinstance(message, BeginTransaction) else message
        return answer(cluster, asked)  # type: ignore[no-any-return]

    ended: list[EndTransaction] = []
    gateway.transactions.answer = older
    with tidelog.sync.connect(gateway.url) as log:
        with pytest.raises(TidelogError, match="is aborted: perhaps it took"), log.stage("app") as tx:
            tx.renew()
        while len(ended) < 2:
            log.topics.describe("orders")
    assert [message.producer_id for message in ended] == [102, 101]


# --- mode complete -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cleanup", "keys", "text"),
    [
        ("delete", [b"k", b"l"], "takes compacted topics, and compacted has cleanup=delete"),
        ("compact", [b"k", None], "takes rows with keys, and a key is null"),
        ("compact,delete", [b"k", b"l"], ""),
    ],
)
def test_mode_complete_takes_compacted_topics_and_keys(
    gateway: SimpleNamespace, cleanup: str, keys: list[bytes | None], text: str
) -> None:
    gateway.cluster.add_topic("compacted", cleanup=cleanup)
    schema = StructType([StructField("value", BinaryType()), StructField("key", BinaryType())])
    writer = sink.stream_writer({"gateway": gateway.url, "topic": "compacted"}, schema, overwrite=True)
    rows = pa.RecordBatch.from_pydict({"value": [b"a", b"b"], "key": keys})
    if not text:
        assert writer.write(iter([rows])).rows == 2
        return
    with pytest.raises(SourceError, match=rf"\[TIDELOG_MODE\].*{text}"):
        writer.write(iter([rows]))


# --- what Spark shows --------------------------------------------------------------------------------------------


def test_an_error_is_shown_with_its_code_first_and_the_trace_last(gateway: SimpleNamespace) -> None:
    out = io.BytesIO()
    try:
        stream(gateway, topic="none").write(iter([ROWS]))
    except SourceError as error:
        handle_worker_exception(error, out)
    shown = out.getvalue()[2 * struct.calcsize("!i") :].decode()
    first, *lines = shown.splitlines()
    assert first == "tidelog.spark.errors.Summary: [TIDELOG_UNKNOWN_TOPIC] there is no topic none (UNKNOWN_TOPIC)"
    assert "Traceback (most recent call last):" in lines
    assert any("spark/sink.py" in line for line in lines)
