"""The client for programs without trio: the same API, blocking. For scripts, threads and Spark executors.

    with tidelog.sync.connect("ws://127.0.0.1:9292") as log:
        with log.producer("orders") as producer:
            ack = producer.send(b"...", key=b"k")
        for record in log.consume("orders", start="earliest", end="latest"):
            ...

Each connection runs trio in one background thread of its own, so no event loop of the caller is touched and any
number of threads may use it. Ctrl-C ends the waiting call, not the connection.

**Fork.** A connection belongs to the process that opened it. After a fork the child has the memory but not the
thread: using the connection there raises ``Closed``, closing it does nothing (the parent's goes on undisturbed), and
``connect`` in the child opens the child's own.

Methods import what they need when they are called, as those of ``tidelog.Log`` do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from tidelog.client import trio_loop
from tidelog.client.admin.old_names import keep_old_names
from tidelog.client.log import DEFAULT_URL, NO_FILES
from tidelog.client.options import TABLE_COLUMNS, TRANSACTION_TIMEOUT_S
from tidelog.net.tls import TlsOptions
from tidelog.sync import faces
from tidelog.sync.portal import Portal

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.client.group_consumer import Hooks, Start
    from tidelog.client.lookups import Where
    from tidelog.client.options import ConsumerOptions, GroupOptions, ProducerOptions, Reading
    from tidelog.sync.faces import (
        AccessAdmin,
        BackwardConsumer,
        ClusterAdmin,
        Consumer,
        GroupAdmin,
        GroupConsumer,
        PartitionAdmin,
        TopicAdmin,
        TransactionAdmin,
    )
    from tidelog.sync.producer import Pending, Producer
    from tidelog.sync.transactions import Transaction
    from tidelog.tracing import Tracing

__all__ = ["BackwardConsumer", "Consumer", "GroupConsumer", "Log", "Pending", "Producer", "Transaction", "connect"]


@keep_old_names
class Log:
    """A connected client whose methods block, from ``connect`` until ``close`` or the end of its ``with`` block. Any
    number of threads may use it. Its methods are those of ``tidelog.Log``."""

    def __init__(self, portal: Portal) -> None:
        self._portal = portal

    @cached_property
    def topics(self) -> TopicAdmin:
        """The methods that create, describe, change and delete topics."""
        return faces.TopicAdmin(self._portal, self._portal.log.topics)

    @cached_property
    def partitions(self) -> PartitionAdmin:
        """The methods that describe, compare and move partitions."""
        return faces.PartitionAdmin(self._portal, self._portal.log.partitions)

    @cached_property
    def groups(self) -> GroupAdmin:
        """The methods that describe, reset and delete consumer groups."""
        return faces.GroupAdmin(self._portal, self._portal.log.groups)

    @cached_property
    def transactions(self) -> TransactionAdmin:
        """The methods that list and end transactions."""
        return faces.TransactionAdmin(self._portal, self._portal.log.transactions)

    @cached_property
    def access(self) -> AccessAdmin:
        """The methods that create and revoke tokens, and change rules and quotas."""
        return faces.AccessAdmin(self._portal, self._portal.log.access)

    @cached_property
    def cluster(self) -> ClusterAdmin:
        """The methods that describe and change the cluster itself."""
        return faces.ClusterAdmin(self._portal, self._portal.log.cluster)

    def producer(self, topic: str, options: ProducerOptions | None = None) -> Producer:
        """Open a producer for a topic and return it: ``with log.producer("orders") as producer``. Raises
        ``UNKNOWN_TOPIC``, and ``ConfigError`` if the topic has no partitions."""
        from tidelog.sync.producer import Producer

        return Producer(self._portal, topic, options)

    @overload
    def consume(
        self,
        topic: str,
        *,
        start: Where = "latest",
        end: Where | None = None,
        partitions: Iterable[int] | None = None,
        reverse: Literal[False] = False,
        options: ConsumerOptions | None = None,
        **reading: Unpack[Reading],
    ) -> Consumer: ...

    @overload
    def consume(
        self,
        topic: str,
        *,
        start: Where = "latest",
        end: Where | None = None,
        partitions: Iterable[int] | None = None,
        reverse: Literal[True],
        options: ConsumerOptions | None = None,
        **reading: Unpack[Reading],
    ) -> BackwardConsumer: ...

    @overload
    def consume(
        self,
        topic: str | Iterable[str],
        *,
        group: str,
        start: Start = "earliest",
        instance: str = "",
        hooks: Hooks | None = None,
        options: ConsumerOptions | None = None,
        group_options: GroupOptions | None = None,
        **reading: Unpack[Reading],
    ) -> GroupConsumer: ...

    def consume(
        self, topic: str | Iterable[str], *, hooks: Hooks | None = None, **how: Any
    ) -> Consumer | BackwardConsumer | GroupConsumer:
        """Return an iterator over records: ``for record in log.consume("orders", start="earliest", end="latest")``.
        Arguments and errors are those of ``tidelog.Log.consume``. Hooks of members of a group run in threads of their
        own, and may use the client."""
        if "group" in how and hooks is not None:
            from tidelog.sync.member_records import in_threads

            how["hooks"] = in_threads(hooks)
        inner = self._portal.log.consume(topic, **how)
        face: type[Consumer | BackwardConsumer | GroupConsumer] = getattr(faces, type(inner).__name__)
        return face(self._portal, inner)

    def read_arrow(
        self,
        topic: str,
        *,
        start: Where = "earliest",
        end: Where | None = "latest",
        partitions: Iterable[int] | None = None,
        columns: Sequence[str] = TABLE_COLUMNS,
        values: str = "raw",
        keys: str = "raw",
        schema: pa.Schema | None = None,
        on_invalid: str = "raise",
        progress: bool = False,
        options: ConsumerOptions | None = None,
        **reading: Unpack[Reading],
    ) -> pa.RecordBatchReader:
        """Return a ``pyarrow.RecordBatchReader`` over the records of a topic, which pandas, Polars and DuckDB read
        as it is: ``log.read_arrow("orders").read_pandas()``. Start and end are looked up before this returns; the
        records are read as the reader is. ``progress``: show a progress bar on stderr. The other arguments, and the
        errors, are those of ``tidelog.Log.read_arrow``."""
        from tidelog.sync.arrow import record_batch_reader

        inner = self._portal.log.read_arrow(
            topic,
            start=start,
            end=end,
            partitions=partitions,
            columns=columns,
            values=values,
            keys=keys,
            schema=schema,
            on_invalid=on_invalid,
            options=options,
            **reading,
        )
        return record_batch_reader(self._portal, inner, progress)

    def transaction(
        self, app: str, *, timeout_s: float = TRANSACTION_TIMEOUT_S, options: ProducerOptions | None = None
    ) -> Transaction:
        """Return a transaction that begins with the block ``with log.transaction("billing") as tx`` and is committed
        at its end: all its records become visible together. If the block raises, the transaction is aborted. The end
        of the block raises the first failure of a record or of the commit. Arguments are those of
        ``tidelog.Log.transaction``."""
        from tidelog.sync.transactions import Transaction

        return Transaction(self._portal, self._portal.log.transaction(app, timeout_s=timeout_s, options=options))

    def stage(
        self,
        app: str,
        *,
        name: str = "",
        owner: str = "",
        timeout_s: float = TRANSACTION_TIMEOUT_S,
        options: ProducerOptions | None = None,
    ) -> Transaction:
        """Return a transaction that is prepared at the end of its ``with`` block, but not committed. ``commit``
        commits it by its ``id``, together with others. If the block raises, the transaction is aborted. Arguments are
        those of ``tidelog.Log.stage``."""
        from tidelog.sync.transactions import Transaction

        opening = self._portal.log.stage(app, name=name, owner=owner, timeout_s=timeout_s, options=options)
        return Transaction(self._portal, opening)

    def commit(self, app: str, batch: int, staged: Iterable[str], *, alone: bool = False) -> bool:
        """Commit these staged transactions together, as batch number ``batch`` of the application. Returns True if
        this call committed them, False if that batch was committed before. Raises ``UNKNOWN_TRANSACTION`` if one of
        them is not prepared or has expired: none is committed. See ``tidelog.Log.commit``."""
        return self._portal.run(partial(self._portal.log.commit, app, batch, tuple(staged), alone=alone))

    def wait_visible(self, app: str, *, timeout_s: float = TRANSACTION_TIMEOUT_S) -> None:
        """Wait until readers see everything that the application has committed. Raises ``REQUEST_TIMED_OUT`` after
        ``timeout_s`` seconds; the commit stays in force."""
        self._portal.run(partial(self._portal.log.wait_visible, app, timeout_s=timeout_s))

    def abort(self, app: str, staged: Iterable[str]) -> None:
        """Drop these staged transactions, so that their records never become visible. Transactions that are committed
        or unknown are left alone."""
        self._portal.run(partial(self._portal.log.abort, app, tuple(staged)))

    def close(self) -> None:
        """Close the connection and end its background thread. Close producers first: records that they have not sent
        fail. Does nothing in a fork of the process that connected."""
        self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(
    urls: str | Iterable[str] = DEFAULT_URL,
    *,
    connect_timeout_s: float = 10.0,
    request_timeout_s: float = 30.0,
    tls: TlsOptions = NO_FILES,
    token: str = "",
    name: str = "client",
    tracing: Tracing | None = None,
    discover: bool = True,
    operator: bool = False,
) -> Log:
    """Connect to any of the gateways, and return the client when a connection is open. Use the client in a ``with``
    block, or ``close`` it. Arguments and errors are those of ``tidelog.connect``: ``Unreachable`` if no gateway can
    be reached within ``connect_timeout_s``, ``UNAUTHENTICATED`` if the token is invalid or missing, ``ConfigError``
    without a URL."""
    given: dict[str, Any] = {"connect_timeout_s": connect_timeout_s, "request_timeout_s": request_timeout_s}
    given |= {"tls": tls, "token": token, "name": name, "tracing": tracing, "discover": discover}
    given["operator"] = operator
    return Log(Portal(lambda: trio_loop.connect(urls, **given)))


def __getattr__(name: str) -> Any:
    if name in ("BackwardConsumer", "Consumer", "GroupConsumer"):
        return getattr(faces, name)
    if name in ("Pending", "Producer"):
        from tidelog.sync import producer

        return getattr(producer, name)
    if name == "Transaction":
        from tidelog.sync.transactions import Transaction

        return Transaction
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
