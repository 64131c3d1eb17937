"""Asks replica servers for the offsets of many partitions that they lead, in one request to each server.

A leader that answers such a request does not prove that it still leads, so the answer may be older than its question:
as old as the time for which a server may serve clients without hearing that another leads. Proofs are what a look-up
of a single partition (``offset_lookups.py``) costs most: a notification to each follower, and a fetch of each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import trio
from tidelog.errors import TidelogError
from tidelog.types import NodeId, TopicPartition
from tidelog.wire.messages import DescribeLogs, DescribeLogsAnswer, LogBounds, Message, OffsetAnswer, TopicShare

from tidelog_gateway.requests.offset_lookups import Offsets
from tidelog_gateway.shared_requests import Seats
from tidelog_gateway.shell import GatewayShell

PER_REQUEST = 1000
"""Most partitions in one request to a server."""
TIMEOUT_S = 2.0
"""Time in seconds after which a server that has not answered is left out."""
SEATS, SEATS_EACH = 4, 1
"""Requests under way at one server: of all principals, and of one."""


class LogBoundsQuery:
    """The requests of a gateway for the offsets of many partitions. There is one for each gateway."""

    def __init__(self, shell: GatewayShell) -> None:
        self._shell = shell
        self._seats: defaultdict[NodeId, Seats] = defaultdict(lambda: Seats(SEATS, SEATS_EACH))

    async def find(
        self, keys: Iterable[TopicPartition], principal: str
    ) -> tuple[dict[TopicPartition, Offsets], dict[NodeId, TidelogError]]:
        """Ask the leaders of these partitions, all servers at the same time. Return the offsets by partition, and the
        error of each server that gave no answer. Partitions without a leader, and those that a server has left out of
        its answer, are missing."""
        led: dict[NodeId, list[TopicPartition]] = {}
        for key in keys:
            state = self._shell.cluster.state(*key)
            if state is not None and state.leader:
                led.setdefault(state.leader, []).append(key)
        found: dict[TopicPartition, Offsets] = {}
        failed: dict[NodeId, TidelogError] = {}
        async with trio.open_nursery() as nursery:
            for node, of_node in led.items():
                nursery.start_soon(self._ask_server, node, of_node, principal, found, failed)
        return found, failed

    async def _ask_server(
        self,
        node: NodeId,
        keys: list[TopicPartition],
        principal: str,
        found: dict[TopicPartition, Offsets],
        failed: dict[NodeId, TidelogError],
    ) -> None:
        """Ask one server for its partitions, ``PER_REQUEST`` at a time, and add what it answers to ``found``. After
        an error nothing more is asked, and the error is added to ``failed``."""
        for first in range(0, len(keys), PER_REQUEST):
            async with self._seats[node].seat(principal):
                answer = await self._ask(node, DescribeLogs(shares_of(keys[first : first + PER_REQUEST])))
            if not isinstance(answer, DescribeLogsAnswer):
                assert isinstance(answer, TidelogError)
                failed[node] = answer
                return
            found.update((TopicPartition(one.topic_id, one.partition), offsets_of(one)) for one in answer.logs)

    async def _ask(self, node: NodeId, message: DescribeLogs) -> Message | TidelogError:
        """Send a request to a server, and return its answer or the error."""
        answered = trio.Event()
        answers: list[Message | TidelogError] = []

        def done(answer: Message | TidelogError) -> None:
            answers.append(answer)
            answered.set()

        self._shell.peers.start_call(node, message, TIMEOUT_S, done)
        await answered.wait()
        return answers[0]


def shares_of(keys: Iterable[TopicPartition]) -> tuple[TopicShare, ...]:
    """Return these partitions by topic, as a request names them."""
    numbers: dict[str, list[int]] = {}
    for topic_id, number in keys:
        numbers.setdefault(topic_id, []).append(number)
    return tuple(TopicShare(topic_id, tuple(sorted(some))) for topic_id, some in numbers.items())


def offsets_of(bounds: LogBounds) -> Offsets:
    """Return the offsets of a log in the form in which look-ups of single partitions have them."""
    earliest = OffsetAnswer(bounds.log_start, bytes=bounds.bytes)
    return Offsets(earliest, OffsetAnswer(bounds.high_watermark, stable=bounds.stable))
