"""Sends requests about consumer groups, transactions and streams to their coordinators, and retries while these
change.

The coordinator is the leader of the partition of ``__groups`` that the group's name falls on, and for an application
that of ``__transactions``, for a stream that of ``__streams``. Retriable errors are retried until ``TIMEOUT_S`` is
over, so a failover shows as latency. All these requests are idempotent (a member, and a transaction, has a name that
it chose itself), except an append to a stream without a producer: that is not repeated if it may have been done.
Each topic is created when it is first needed.

A replica server handles one request after the other, and produced batches wait meanwhile. So a tenant has few
requests at a time with the coordinators of a server: ``LARGE_EACH`` of those that may ask for much, and of the others
``SMALL_EACH`` for groups and ``TRANSACTIONS_EACH`` for transactions. The rest wait here
(``shared_requests.PendingRequest``). A request holds its seat while it is with the server, and gives it back before a
retry."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import trio
from tidelog.client.core.partitioner import partition_of
from tidelog.errors import TidelogError, refuse
from tidelog.net.link import burst
from tidelog.types import GROUPS, STREAMS, TRANSACTIONS, NodeId, TopicState
from tidelog.wire.codec import payload_size
from tidelog.wire.messages import (
    AbortStaged,
    AppendStream,
    BeginTransaction,
    CommitOffsets,
    CommitStaged,
    CreateStream,
    DeleteGroup,
    DeleteStream,
    DescribeGroup,
    DescribeStream,
    Done,
    EndTransaction,
    FetchOffsets,
    GroupHeartbeat,
    GroupInfo,
    InitTaskProducer,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    ListGroupsAnswer,
    ListTransactions,
    ListTransactionsAnswer,
    Message,
    PrepareGroups,
    PrepareStreams,
    PrepareTransaction,
    PrepareTransactions,
    ReadStream,
    TransactionInfo,
)

from tidelog_gateway.limits.heavy_requests import cost_of
from tidelog_gateway.limits.server_limits import Tenant
from tidelog_gateway.shared_requests import PendingRequest, Seats
from tidelog_gateway.shell import OWN, RETRY_S, GatewayShell

TIMEOUT_S = 10.0
"""Seconds for which a request is retried."""
TRY_S = 3.0
"""Seconds after which a request without an answer is sent again, to the server that is the coordinator then."""
PAGE = 500
"""Groups or transactions in one answer of a coordinator, so that neither end is busy with it for long."""

OWN_TENANT: Tenant = "", OWN
LARGE, LARGE_EACH = 16, 2
"""Requests that may ask for much and are with the coordinators of one server at a time: in all, and of one tenant.
They have more than 100 positions or names, or concern all that a group has (``WHOLE``), or many groups."""
WHOLE = (JoinGroup, LeaveGroup, DescribeGroup, DeleteGroup, ListGroups, ListTransactions)
"""Requests whose cost depends on the state of groups and transactions, not on the size of the request."""
SMALL, SMALL_EACH = 64, 4
"""Other requests for groups at the coordinators of one server at a time: in all, and of one tenant."""
TRANSACTIONS_AT_ONCE, TRANSACTIONS_EACH = 256, 16
"""Requests for transactions at the coordinators of one server at a time: in all, and of one tenant. A coordinator may
let one wait for markers or for an earlier transaction. So a tenant has more of these, and waiting ones do not hold up
its others."""

STREAMS_AT_ONCE, STREAMS_EACH = 1024, 256
"""Requests for streams at the coordinators of one server at a time, apart from reads that wait and large appends.
Many together share a flush of the disk."""
LARGE_BYTES = 256 << 10
"""Payload from which on a request is a large one."""
WAITING_READS, WAITING_READS_EACH = 8192, 2048
"""Reads that wait for an append at the coordinators of one server at a time."""
PREPARE = {GROUPS: PrepareGroups, TRANSACTIONS: PrepareTransactions, STREAMS: PrepareStreams}
"""By the name of an internal topic, the request that creates it."""

Info = TypeVar("Info", GroupInfo, TransactionInfo)

OF_TRANSACTIONS = (
    BeginTransaction,
    EndTransaction,
    PrepareTransaction,
    CommitStaged,
    AbortStaged,
    InitTaskProducer,
    ListTransactions,
)
OF_STREAMS = (CreateStream, AppendStream, ReadStream, DescribeStream, DeleteStream)
KINDS = (
    *OF_TRANSACTIONS,
    *OF_STREAMS,
    JoinGroup,
    GroupHeartbeat,
    LeaveGroup,
    CommitOffsets,
    FetchOffsets,
    DescribeGroup,
    DeleteGroup,
    ListGroups,
)


class CoordinatorClient:
    """The sender of requests about groups and transactions to their coordinators. It finds the coordinator, waits for
    a seat there, and retries. ``numbered`` adds client session and number to a request that goes to the controllers.
    """

    def __init__(self, shell: GatewayShell, numbered: Callable[[Message], Message]) -> None:
        self._shell = shell
        self._numbered = numbered
        self._preparing = trio.Lock()
        self._seats: dict[tuple[NodeId, str], Seats] = {}
        """Seats by server and kind of request."""

    def seats_for(self, message: Message) -> Seats | None:
        """Return the seats of the server that coordinates a request, in whose queue the request waits; None if no
        coordinator is known now."""
        name, key = _place_of(message)
        topic = self._shell.cluster.topic_named(name)
        leader = topic and topic.partitions[partition_of(key, len(topic.partitions))].leader
        return self._seats_at(leader, message) if leader else None

    def _seats_at(self, server: NodeId, message: Message) -> Seats:
        """Return the seats for requests of this kind at a server: those of large requests, of waiting reads, of
        transactions, streams or groups. They are created when they are first needed."""
        if _is_large(message):
            return self._seats.setdefault((server, ""), Seats(LARGE, LARGE_EACH))
        if _wait_s(message):
            return self._seats.setdefault((server, "waiting"), Seats(WAITING_READS, WAITING_READS_EACH))
        name, _ = _place_of(message)
        most, each = {
            GROUPS: (SMALL, SMALL_EACH),
            TRANSACTIONS: (TRANSACTIONS_AT_ONCE, TRANSACTIONS_EACH),
            STREAMS: (STREAMS_AT_ONCE, STREAMS_EACH),
        }[name]
        return self._seats.setdefault((server, name), Seats(most, each))

    async def answer(self, message: Message, pending: PendingRequest | None = None) -> Message:
        """Send a request to its coordinator, or a list request to all coordinators, and return the answer. Retriable
        errors are retried until the request's time is over. Raises the coordinator's refusal, or the error of the
        last try, as ``TidelogError``. ``pending``: the request of a client; None: the gateway asks for itself."""
        if pending is None:
            pending = PendingRequest(OWN_TENANT, trio.current_time() + TIMEOUT_S)
        if isinstance(message, ListGroups):
            groups = await self._ask_all(partial(self._groups_of, message), GROUPS, pending)
            return ListGroupsAnswer(tuple(sorted(groups, key=lambda info: info.group)))
        if isinstance(message, ListTransactions) and not message.app:
            of = partial(self._transactions_of, message.producer_id)
            found = await self._ask_all(of, TRANSACTIONS, pending)
            return ListTransactionsAnswer(tuple(sorted(found, key=lambda info: (info.app, info.staged))))
        name, key = _place_of(message)
        topic = await self._topic(name, PREPARE[name](), pending.until)
        return await self._ask(message, topic.topic_id, partition_of(key, len(topic.partitions)), pending)

    async def _groups_of(
        self, asked: ListGroups, topic_id: str, partition: int, pending: PendingRequest
    ) -> list[GroupInfo]:
        """Return all groups of one coordinator, which it lists page by page, with their positions in the partition
        that ``asked`` names. Raises ``TidelogError``."""
        groups: list[GroupInfo] = []
        more = True
        while more:
            after = groups[-1].group if groups else ""
            page = replace(asked, partition=partition, after=after, most=PAGE)
            answer = await self._ask(page, topic_id, partition, pending)
            assert isinstance(answer, ListGroupsAnswer)
            groups += answer.groups
            more = answer.more and bool(answer.groups)
        return groups

    async def _transactions_of(
        self, producer_id: int, topic_id: str, partition: int, pending: PendingRequest
    ) -> list[TransactionInfo]:
        """Return all transactions of one coordinator, which it lists page by page; of one producer id if that is not
        0. Raises ``TidelogError``."""
        found: list[TransactionInfo] = []
        more = True
        while more:
            page = ListTransactions("", partition, found[-1].app if found else "", PAGE, producer_id)
            answer = await self._ask(page, topic_id, partition, pending)
            assert isinstance(answer, ListTransactionsAnswer)
            found += answer.transactions
            more = answer.more and bool(answer.transactions)
        return found

    async def _ask_all(
        self, of: Callable[[str, int, PendingRequest], Awaitable[list[Info]]], name: str, pending: PendingRequest
    ) -> list[Info]:
        """Ask the coordinators of all partitions of the topic ``name`` at the same time by ``of``, and return what
        they list, in one list; an empty list if the topic does not exist. If any of them fails, raises its error,
        since the list would be incomplete."""
        topic = self._shell.cluster.topic_named(name)
        infos: list[Info] = []
        errors: list[TidelogError] = []

        async def ask(topic_id: str, partition: int) -> None:
            try:
                infos.extend(await of(topic_id, partition, PendingRequest(pending.tenant, pending.until)))
            except TidelogError as error:
                errors.append(error)

        if topic is not None:
            async with trio.open_nursery() as nursery:
                for partition in range(len(topic.partitions)):
                    nursery.start_soon(ask, topic.topic_id, partition)
        if errors:
            raise errors[0]
        return infos

    async def _topic(self, name: str, prepare: Message, until: float) -> TopicState:
        """Return the topic whose leaders are the coordinators. If there is none, have the controllers create it by
        the request ``prepare``, and wait for it. Raises the last error if it does not exist by ``until`` (trio's
        clock)."""
        shell = self._shell
        last: TidelogError = refuse("NOT_COORDINATOR", f"there is no topic {name} yet")
        if (topic := shell.cluster.topic_named(name)) is not None:
            return topic
        async with self._preparing:
            while (topic := shell.cluster.topic_named(name)) is None:
                if (left_s := until - trio.current_time()) <= 0:
                    raise last
                try:
                    await shell.controllers.call(self._numbered(prepare), left_s)
                except TidelogError as error:
                    if not error.retriable and error.code != "TOPIC_EXISTS":
                        raise
                    last = error
                with trio.move_on_after(RETRY_S):
                    await shell.wait_change()
        return topic

    async def _ask(self, message: Message, topic_id: str, partition: int, pending: PendingRequest) -> Message:
        """Send a request to a partition's coordinator, repeat it after retriable errors until the request's time is
        over, and return the answer. Raises the last error, with ``unknown_outcome`` if any try may have taken effect.
        """
        in_doubt = False
        while True:
            answer = await self._try(message, topic_id, partition, pending)
            left_s = pending.until - trio.current_time()
            if not isinstance(answer, TidelogError):
                return answer
            if answer.code == "UNKNOWN_GROUP" and isinstance(message, DeleteGroup) and in_doubt:
                return Done()  # an earlier try did it
            if answer.code == "UNKNOWN_STREAM" and isinstance(message, DeleteStream) and in_doubt:
                return Done()
            in_doubt = in_doubt or answer.unknown_outcome
            if answer.unknown_outcome and isinstance(message, AppendStream) and not message.producer:
                raise answer
            may_pass = answer.retriable or self._knows_better(message, answer.code)
            if not may_pass or left_s <= RETRY_S:
                answer.unknown_outcome = in_doubt
                raise answer
            with trio.move_on_after(RETRY_S):
                await self._shell.wait_change()

    def _knows_better(self, message: Message, code: str) -> bool:
        """Return whether the coordinator refuses a commit of positions only because it does not know the partitions
        yet, which this gateway does. False for every other request."""
        if not isinstance(message, CommitOffsets):
            return False
        cluster = self._shell.cluster
        return all(cluster.knows_better(at.topic_id, at.partition, code) for at in message.positions)

    async def _try(
        self, message: Message, topic_id: str, partition: int, pending: PendingRequest
    ) -> Message | TidelogError:
        """Wait for a seat, send the request to the partition's leader once, and return the answer or the error.
        Returns ``NOT_COORDINATOR`` if there is no leader. The seat is given back when the request has ended (answer,
        timeout or lost link), even if the client is gone."""
        state = self._shell.cluster.state(topic_id, partition)
        if state is None or state.leader is None:
            return refuse("NOT_COORDINATOR", f"nobody leads coordinator partition {partition} now")
        try:
            seat = await pending.wait(self._seats_at(state.leader, message))
        except TidelogError as error:
            return error
        answered = trio.Event()
        answers: list[Message | TidelogError] = []

        def done(answer: Message | TidelogError) -> None:
            seat.leave()
            answers.append(answer)
            answered.set()

        with burst():
            timeout_s = min(TRY_S + _wait_s(message), max(pending.until - trio.current_time(), 0.0))
            self._shell.peers.start_call(state.leader, message, timeout_s, done)
        await answered.wait()
        return answers[0]


def _is_large(message: Message) -> bool:
    """Return whether answering the request may cost a coordinator much: it names many things, has a large payload, or
    concerns the whole state of a group, or all groups or transactions."""
    if isinstance(message, CreateStream | AppendStream) and payload_size(message.payload) > LARGE_BYTES:
        return True
    if isinstance(message, FetchOffsets) and not message.parts:
        return True
    return isinstance(message, WHOLE) or cost_of(message) > 1


def _wait_s(message: Message) -> float:
    """Return for how many seconds a read of a stream may wait for an append; 0 for every other request."""
    return message.max_wait_ms / 1000 if isinstance(message, ReadStream) else 0.0


def _place_of(message: Message) -> tuple[str, bytes]:
    """Return the topic whose leaders coordinate the request, and the key (group, application or path) that chooses
    the partition."""
    if isinstance(message, OF_STREAMS):
        return STREAMS, message.path.encode()
    if isinstance(message, OF_TRANSACTIONS):
        return TRANSACTIONS, message.app.encode()
    return GROUPS, getattr(message, "group", "").encode()
