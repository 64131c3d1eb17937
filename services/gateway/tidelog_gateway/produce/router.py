"""Routes produced batches to their leaders and brings each client its acks.

Theory. Every batch belongs to a produce queue (``produce/queues.py``). A batch is *sent* with the leader epoch that
the metadata names, so that a leader of another epoch refuses it, and it is *settled* by its ack. The rules:

- Order: the batches of a queue are sent in the order in which they came; a refused one goes back to its place and
  is sent before everything behind it that still waits. With an idempotent producer the leader refuses batches that
  overtook it (``OUT_OF_ORDER_SEQUENCE``), and they are retried in order. Without one, batches that were already in
  flight may overtake a refused batch, as in Kafka. No try can close a gap before the oldest batch of its queue: the
  client gets that error at once. It proves that no try of an earlier leader epoch is in the log, or ever will be; but
  not in a topic that may lose records (``lossy``): such a try may have been in a log, and may be again.
- Outcome: a try of unknown outcome (link lost, leader replaced, ``unknown_outcome``) is repeated only when the
  producer is idempotent, since then a second copy is impossible. Otherwise the client gets the error with
  ``unknown_outcome``. A timeout has ``unknown_outcome`` set if any try may have been written.
- Leader change: batches in flight under an older leader epoch are withdrawn and sent to the new leader when
  idempotent; for the others the old leader has ``fate_grace_s`` more to report
  their outcome.
- Authority: a batch under a producer id is taken only from a connection that holds the id at that epoch
  (``producer_tickets.py``).
- Bounds: bytes and batches in flight per replica server (beyond: the queue waits in the gateway, where waiting delays
  no follower); bytes and batches held per client, which its welcome announces, and bytes in all, which principals
  share fairly (beyond: ``OVERLOADED``, nothing is queued). The gateway goes on receiving from such a client: its
  heartbeats and credits come over the same connection.
- Deferred checks: the body of a batch that decompresses to much may be checked later (``check``). The batch keeps its
  place in its queue, its bytes count and its timeout runs. Neither the batch nor those behind it are sent before.
- Slow servers: a server whose acks are late has a limit, which principals share (``server_limits.py``). A queue whose
  client has used up its share waits. An ack to such a client says how long to pause (``throttle_ms``), so that
  the batches of a client that obeys wait in the client.
- Window: of an idempotent producer at most ``PRODUCER_WINDOW`` batches of a queue are unsettled (beyond:
  ``OVERLOADED``, nothing is queued). The leader remembers that many batches. So the gateway may repeat all of them,
  after a lost link or under another leader, and the leader recognises each copy. ``duplicate`` of an ack means that
  the batch was in the log before. It is not set where an earlier try of the gateway itself may have written it, that
  is, where one had an unknown outcome. A try that was refused has written nothing.

Inputs only record what happened; ``flush`` returns what is to be sent. The shell calls ``flush`` once per turn, so
that messages are merged: batches of many clients for one leader travel in one ``Produce``, acks of one client in one
``Produced``.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable

from tidelog.batch.format import BatchHeader, check_body, check_fields, declares_size, read_header
from tidelog.errors import CorruptBatch, TidelogError, refuse
from tidelog.feature_levels import VALIDATION
from tidelog.sansio.counters import count
from tidelog.sansio.effects import Event, Post, Send
from tidelog.sansio.timers import TimerWheel
from tidelog.types import INTERNAL_PREFIX, PRODUCER_WINDOW, Acks, NodeId, TopicPartition
from tidelog.wire.messages import ErrorInfo, Produce, ProduceAck, Produced, ProducePart

from tidelog_gateway.cluster_view import ClusterView
from tidelog_gateway.counters import RouterCounts
from tidelog_gateway.limits.fair_share import FairShare
from tidelog_gateway.limits.server_limits import ServerLimit, Tenant
from tidelog_gateway.produce.accumulators import AckAccumulator, ProduceAccumulator
from tidelog_gateway.produce.queues import ProduceQueue, QueuedBatch, QueueState, ServerWindow
from tidelog_gateway.rights.producer_tickets import ProducerTickets
from tidelog_gateway.settings import RouterSettings

GAP = "OUT_OF_ORDER_SEQUENCE"
RETRIED = frozenset(
    {
        "NOT_LEADER",
        "FENCED_LEADER_EPOCH",
        "UNKNOWN_LEADER_EPOCH",
        "UNREACHABLE",
        "OFFLINE",
        GAP,
        "OVERLOADED",
        "REQUEST_TIMED_OUT",
    }
)
"""Codes of refusals after which the gateway sends the batch again, so that its client does not see them. Every other
error is passed on to the client."""
UNFOLDS_TO = 64
"""A batch may decompress to its size times this number without a cost: text compresses so well."""
KEPT = 2
"""A queued batch keeps its whole message in memory if the message is at most so many times as large; otherwise the
batch is copied."""
RECORD_COST = 64
"""Checking a record takes at most as long as decompressing so many bytes."""
UNFOLDED_AT_ONCE = 4 << 20
"""When the batches of a message have decompressed to so many bytes that count, the others are checked later."""
CHECKED_AT_ONCE = 1 << 20
"""Bytes that one call of ``check`` decompresses, and one batch more."""


class Router:
    """All produce queues and server windows of a gateway: it sends each batch of a client to the partition's leader,
    repeats it if need be, and returns the ack to the client. Its methods record inputs, and ``flush`` returns what is
    to be sent. Times are seconds of the shell's clock."""

    def __init__(self, cluster: ClusterView, settings: RouterSettings, acks: AckAccumulator | None = None) -> None:
        self._cluster = cluster
        self._settings = settings
        self.tickets = ProducerTickets(cluster)
        self._queues: dict[int, dict[TopicPartition, ProduceQueue]] = {}
        self._by_partition: dict[TopicPartition, dict[int, ProduceQueue]] = {}
        self._windows: dict[NodeId, ServerWindow] = {}
        self._limited: dict[NodeId, ServerWindow] = {}
        """Windows of slow servers."""
        self._events: list[Event] = []
        self._tenants: dict[int, Tenant] = {}
        """By client: the tenant under which it shares the limit of a slow server."""
        self._owners: dict[int, Tenant] = {}
        """By client: the tenant under which it shares ``total_max_bytes``."""
        self._ready: deque[ProduceQueue] = deque()
        self._parked: dict[ProduceQueue, None] = {}
        self._relieved: dict[NodeId, None] = {}
        self._delayed: list[tuple[float, int, ProduceQueue]] = []
        self._expiry: TimerWheel[QueuedBatch] = TimerWheel()
        self._acks = AckAccumulator() if acks is None else acks
        self.counts = RouterCounts(errors=self._acks.errors)
        self.held: dict[int, int] = {}  # bytes by client; a client without an unsettled batch is absent
        self._held_batches: dict[int, int] = {}  # batches by client, likewise
        self._held = FairShare(settings.total_max_bytes, reserved=True)
        self.in_flight = 0
        """Batches that leaders have not acked yet."""
        self._arrivals = 0
        self._attempts = 0
        self._unfolded = 0
        """Bytes that the batches checked last decompress to; on arrival only those beyond ``UNFOLDS_TO`` count."""
        self._unchecked: dict[int, dict[QueuedBatch, None]] = {}
        """Unchecked batches by client, in order of arrival; empty where only the checks on arrival took long."""

    @property
    def limits(self) -> dict[NodeId, ServerLimit]:
        """Return the ``ServerLimit`` of each replica server to which a batch was sent or a link was opened, also of
        those that are not limited at present."""
        return {node: window.limit for node, window in self._windows.items()}

    @property
    def held_bytes(self) -> int:
        """Return the bytes of the batches of all clients that were neither acked nor failed yet."""
        return self._held.total

    @property
    def has_unfolded_much(self) -> bool:
        """Return whether the batches that the last call of ``on_produce`` or ``check`` decompressed came to more than
        ``UNFOLDED_AT_ONCE`` bytes. In ``on_produce`` only bytes beyond ``UNFOLDS_TO`` times a batch's size count."""
        return self._unfolded > UNFOLDED_AT_ONCE

    def has_unchecked(self, source: int) -> bool:
        """Return whether the shell has to call ``check`` for the client: some of its batches are not checked yet, or
        the checks on arrival took so long that the client pauses."""
        return source in self._unchecked

    # --- inputs ---------------------------------------------------------------------------------------------

    def on_link_opened(self, source: int, principal: str, *, named: bool, strangers_are_one: bool = False) -> None:
        """Register a client under the tenants for which its bytes count. ``named``: the client is authenticated as
        ``principal``. A client without a name is a tenant of its own. With ``strangers_are_one`` all such clients are
        one tenant for the total bytes, but not for the limit of a slow server."""
        self._tenants[source] = principal, 0 if named else source
        self._owners[source] = principal, 0 if named or strangers_are_one else source

    def on_produce(self, source: int, message: Produce, now: float, *, defer_all: bool = False) -> None:
        """Queue the batches of a client's message. A batch that is refused is not queued; its ack carries the error.
        Bodies that decompress to much are left for ``check``: those that come after ``UNFOLDED_AT_ONCE`` bytes, or
        all such bodies with ``defer_all``. ``source`` 0 is the gateway itself, whose batches are never deferred."""
        assert not isinstance(message.payload, list)
        payload = memoryview(message.payload)
        position = 0
        self._unfolded = 0
        for part in message.parts:
            batch = payload[position : position + part.size]
            position += part.size
            refusal, header = self._header_or_refusal(source, part, batch)
            is_unchecked = False
            if header is not None and self._cluster.validates(part.topic_id):
                try:
                    is_unchecked = not self._validate(source, header, batch, defer_all=defer_all)
                except CorruptBatch as error:
                    refusal = error
            if header is None or refusal is not None:
                assert refusal is not None
                self._acks.add(source, ProduceAck(part.id, error=refusal.to_info()), part)
                continue
            self.counts.on_batch(header.record_count, part.size)
            if KEPT * part.size < len(payload):
                batch = memoryview(bytes(batch))  # it may wait for long, and would keep the whole message
            self._enqueue(source, part, batch, header.producer_id, now, is_unchecked=is_unchecked)
        if self.has_unfolded_much and source:  # 0: this gateway itself
            self._unchecked.setdefault(source, {})

    def check(self, source: int) -> None:
        """Decompress and check the client's unchecked batches, in order of arrival, until ``CHECKED_AT_ONCE`` bytes
        are exceeded. A corrupt batch fails with ``CORRUPT_BATCH``; the others may now be sent. While
        ``has_unchecked`` is true the shell calls this method again after a pause. The first call without unchecked
        batches makes it false."""
        self._unfolded = 0
        unchecked = self._unchecked.get(source, {})
        if not unchecked:
            self._unchecked.pop(source, None)
        while unchecked and self._unfolded <= CHECKED_AT_ONCE:
            queued = next(iter(unchecked))
            self._mark_checked(queued)
            batch = memoryview(queued.batch)
            header = read_header(batch)
            self._unfolded += _unfolds_to(header)
            try:
                check_body(header, batch)
            except CorruptBatch as error:
                queued.queue.waiting.remove(queued)
                self._fail(queued, error.to_info())

    def on_produced(self, node: NodeId, message: Produced, now: float) -> None:
        """Process the acks of a replica server. The client of an acked batch gets the ack. A refused batch is put
        back for another try, or fails if it must not be sent again. Acks of withdrawn tries are ignored. The server's
        limit may begin, change or end."""
        window = self._window(node)
        for ack in message.acks:
            queued = window.in_flight.get(ack.id)
            if queued is None:
                continue
            self._end_try(queued)
            queue = queued.queue
            if ack.error is None:
                queue.retry_s = 0.0
                self.counts.acks.observe(now - queued.since)
                window.limit.on_ack(len(queued.batch), now - queued.sent_at if queued.part.acks else math.inf, now)
                pause_ms = self._throttle_ms(window, queue.source, now) if self._limited else 0
                duplicate = ack.duplicate and queued.doubt < 0
                self._finish(
                    queued,
                    ProduceAck(
                        queued.part.id, ack.offset, ack.leader_epoch, ack.durability, duplicate, throttle_ms=pause_ms
                    ),
                )
            elif ack.error.code == GAP and not ack.error.unknown_outcome and queue.is_oldest(queued):
                self._end_at_gap(queued, ack.error)
            elif not self._try_again(queued, ack.error, now):
                self._fail(queued, ack.error)
        if window.limit.is_due(now):
            self._end_interval(window, now)

    def on_metadata(self, changed: Iterable[TopicPartition], now: float) -> None:
        """Adapt to changed metadata. ``changed``: the partitions that have another leader or leader epoch, or were
        created or deleted. Batches in flight to a replaced leader are put back for the new one if their producer is
        idempotent; the others get ``fate_grace_s`` for their outcome. The next flush sends from the queues of these
        partitions and from all parked queues."""
        for key in changed:
            state = self._cluster.state(*key)
            epoch = state.leader_epoch if state is not None else -1
            for queue in list(self._by_partition.get(key, {}).values()):
                for queued in list(queue.sent.values()):
                    if queued.epoch != epoch:
                        self._supersede(queued, now)
                queue.retry_s = 0.0
                self._schedule(queue)
        for queue in list(self._parked):
            self._schedule(queue)

    def on_peer_up(self, node: NodeId) -> None:
        """Record that the link to a replica server is open, and let the next flush send from all queues that are
        parked."""
        self._window(node).up = True
        for queue in list(self._parked):
            self._schedule(queue)

    def on_peer_down(self, node: NodeId, now: float) -> None:
        """End all tries in flight to a replica server whose link broke, with an unknown outcome. Batches of
        idempotent producers are put back for another try; the others fail with ``UNREACHABLE``. The limit of the
        server ends."""
        window = self._window(node)
        window.up = False
        window.limit.lift()
        self._on_limit_ended(window, "the connection to it broke", now)
        lost = refuse("UNREACHABLE", f"the connection to {node} broke", unknown_outcome=True).to_info()
        for queued in list(window.in_flight.values()):
            self._end_try(queued)
            if not self._try_again(queued, lost, now):
                self._fail(queued, lost)

    def on_link_closed(self, source: int) -> None:
        """Forget a client that has disconnected: drop its waiting batches, its acks and its producer tickets. Batches
        in flight stay until their acks come, which are discarded."""
        for queue in self._queues.pop(source, {}).values():
            queue.closed = True
            while queue.waiting:
                self._finish(queue.waiting.popleft(), None)
            self._parked.pop(queue, None)
            siblings = self._by_partition[queue.key]
            del siblings[source]
            if not siblings:
                del self._by_partition[queue.key]
        self._unchecked.pop(source, None)
        self._acks.forget(source)
        self._tenants.pop(source, None)
        self._owners.pop(source, None)
        self.tickets.on_link_closed(source)

    def on_tick(self, now: float) -> None:
        """Do what is due at ``now``: fail the batches whose timeout has passed with ``REQUEST_TIMED_OUT``, let the
        next flush send from queues whose pause is over, and end measuring intervals of limited servers."""
        while self._delayed and self._delayed[0][0] <= now:
            _, _, queue = heapq.heappop(self._delayed)
            if queue.state is QueueState.DELAYED and queue.not_before <= now:
                self._schedule(queue)
        for queued in self._expiry.expired(now):
            if queued.attempt:
                self._end_try(queued)
                queued.doubt = queued.epoch
            else:
                queued.queue.waiting.remove(queued)
            reason = f" (last: {queued.last_error.code}: {queued.last_error.message})" if queued.last_error else ""
            self._fail(queued, refuse("REQUEST_TIMED_OUT", f"no ack within timeout_ms{reason}").to_info())
        for window in list(self._limited.values()):
            self._tick_server(window, now)

    def deadline(self) -> float | None:
        """Return when ``on_tick`` is to be called, in seconds of the shell's clock; None if nothing is due before
        another input."""
        while self._delayed and self._delayed[0][2].state is not QueueState.DELAYED:
            heapq.heappop(self._delayed)
        times = [self._delayed[0][0]] if self._delayed else []
        for window in self._limited.values():
            if (ends_at := window.limit.deadline(bool(window.in_flight))) is not None:
                times.append(ends_at)
        expiry = self._expiry.deadline()
        return min(times if expiry is None else [*times, expiry], default=None)

    # --- output ---------------------------------------------------------------------------------------------

    def pending(self) -> bool:
        """Return whether ``flush`` has anything to do: queues to send from, acks, or events for the log."""
        return bool(self._ready or self._acks or self._relieved or self._events)

    def flush(self, now: float) -> list[Send | Post | Event]:
        """Take the batches that may be sent now out of their queues, and return the effects in this order: batches
        merged by leader, acks merged by client, events for the log. An empty list if there is nothing to send."""
        produces = ProduceAccumulator(self._settings.merge_max_bytes)
        relieved, self._relieved = self._relieved, {}
        for node in relieved:
            self._unblock(self._windows[node], now, produces)
        while self._ready:
            queue = self._ready.popleft()
            if queue.state is QueueState.READY:
                self._send_queue(queue, now, produces)
        events, self._events = self._events, []
        return [*produces.close(), *self._acks.drain(), *events]

    def _unblock(self, window: ServerWindow, now: float, produces: ProduceAccumulator) -> None:
        """Send from the blocked queues of a window with room, the longest waiting first, until the window is full
        again."""
        while window.blocked:
            queue = window.blocked.popleft()
            if queue.state is QueueState.BLOCKED:
                self._send_queue(queue, now, produces, first=True)
                if queue.state is QueueState.BLOCKED:
                    return

    def _send_queue(
        self, queue: ProduceQueue, now: float, produces: ProduceAccumulator, *, first: bool = False
    ) -> None:
        """Send batches from the left of a queue, at most as many as fit in one message, and set the queue's next
        state. Without a leader or a link the queue is parked. If the window is full, or other queues are blocked by
        it, the queue waits behind these, or in front of them if it is the ``first``. If the partition is unknown, all
        batches of the queue fail with ``UNKNOWN_TOPIC``."""
        queue.state = QueueState.IDLE
        state = self._cluster.state(*queue.key)
        if state is None:
            while queue.waiting:
                gone = refuse("UNKNOWN_TOPIC", f"no partition {queue.key.topic_id}/{queue.key.partition}")
                self._fail(queue.waiting.popleft(), gone.to_info())
            return
        window = self._window(state.leader) if state.leader is not None else None
        if window is None or not window.up:
            if queue.waiting:
                queue.state = QueueState.PARKED
                self._parked[queue] = None
            return
        limits = self._settings
        taken = 0
        while queue.waiting and not queue.waiting[0].is_unchecked:
            size = len(queue.waiting[0].batch)
            if window.in_flight and (window.is_full(size, limits) or (window.blocked and not first)):
                queue.state = QueueState.BLOCKED
                (window.blocked.appendleft if first else window.blocked.append)(queue)
                return
            if taken and taken + size > limits.merge_max_bytes:
                self._schedule(queue)
                return
            if self._limited and self._waits_for_share(queue, window, now):
                return
            taken += size
            queued = queue.waiting.popleft()
            produces.add(window.node, self._launch(queued, window, state.leader_epoch, now), queued.batch)

    def _launch(self, queued: QueuedBatch, window: ServerWindow, leader_epoch: int, now: float) -> ProducePart:
        """Record a try of a batch as in flight to the window's server, and return the part of the message that
        carries it."""
        self._attempts += 1
        queued.attempt = self._attempts
        queued.sent_at = now
        if not window.in_flight:
            window.limit.on_empty(now)
        if window.limit.bytes_s is not None:
            window.limit.spend(self._tenant(queued.queue.source), len(queued.batch), now)
        queued.server = window.node
        queued.epoch = leader_epoch
        queued.queue.sent[queued.attempt] = queued
        window.in_flight[queued.attempt] = queued
        window.bytes += len(queued.batch)
        self.in_flight += 1
        part = queued.part
        timeout_ms = max(1, int((queued.deadline - now) * 1000))
        what = part.topic_id, part.partition, part.acks, timeout_ms, part.size, leader_epoch
        return ProducePart(queued.attempt, *what, part.expected_offset, part.transaction)

    # --- slow servers ---------------------------------------------------------------------------------------

    def _tenant(self, source: int) -> Tenant:
        return self._tenants.get(source, ("", source))

    def _owner(self, source: int) -> Tenant:
        return self._owners.get(source, ("", source))

    def _waits_for_share(self, queue: ProduceQueue, window: ServerWindow, now: float) -> bool:
        """Delay the queue until its client may send again, if the client has used up its share of a slow server.
        Return whether the queue is delayed."""
        tenant = self._tenant(queue.source)
        resumes_at = window.limit.hold(tenant, now)
        if resumes_at <= now:
            return False
        window.limit.on_wait(tenant)
        count(self.counts.holds, tenant[0])
        queue.not_before = resumes_at
        queue.state = QueueState.DELAYED
        heapq.heappush(self._delayed, (queue.not_before, queue.waiting[0].arrival, queue))
        return True

    def _throttle_ms(self, window: ServerWindow, source: int, now: float) -> int:
        """Return for how many milliseconds an ack asks the client to send nothing more for its partition; 0 if its
        share of the slow server is not used up. A pause is counted in the metrics and as demand for the server's
        limit."""
        tenant = self._tenant(source)
        pause_ms = math.ceil(1000 * window.limit.pause_s(tenant, now))
        if pause_ms:
            window.limit.on_wait(tenant)
            self.counts.on_throttle(tenant[0], pause_ms)
        return pause_ms

    def _tick_server(self, window: ServerWindow, now: float) -> None:
        """End the measuring interval of a limited server if it is due without further acks, so that the server's
        limit rises again."""
        deadline = window.limit.deadline(bool(window.in_flight))
        if deadline is not None and deadline <= now:
            window.limit.on_empty(now)
            self._end_interval(window, now)

    def _end_interval(self, window: ServerWindow, now: float) -> None:
        """End a measuring interval of a server: its limit begins, changes or ends. The begin and the end of a limit
        are logged."""
        window.limit.end_interval(window.bytes, now)
        if window.limit.bytes_s is None:
            self._on_limit_ended(window, "no producer has to wait for it", now)
        elif window.node not in self._limited:
            self._limited[window.node] = window
            window.limited_at = now
            fields = {"server": window.node, "bytes_per_s": round(window.limit.bytes_s)}
            self._events.append(Event("server_limited", fields))

    def _on_limit_ended(self, window: ServerWindow, reason: str, now: float) -> None:
        """Log that the limit of a server has ended, with its length and ``reason``. Does nothing if the server had
        none."""
        if self._limited.pop(window.node, None) is not None:
            fields = {"server": window.node, "seconds": round(now - window.limited_at, 1), "reason": reason}
            self._events.append(Event("server_limit_ended", fields))

    # --- one batch ------------------------------------------------------------------------------------------

    def _header_or_refusal(
        self, source: int, part: ProducePart, batch: memoryview
    ) -> tuple[TidelogError | None, BatchHeader | None]:
        """Check a batch without reading its body: its header, the bounds on bytes and batches, and whether the client
        may use the producer id. Return (None, header) if it may be queued, or (refusal, None)."""
        if len(batch) != part.size:
            return refuse("CORRUPT_BATCH", "the payload is shorter than its parts say"), None
        try:
            header = read_header(batch)
        except CorruptBatch as error:
            return error, None
        if header.batch_length != part.size:
            return refuse("CORRUPT_BATCH", f"batch declares length {header.batch_length}, has {part.size}"), None
        if header.is_control or (header.is_sparse and part.expected_offset < 0):
            return refuse("CORRUPT_BATCH", "a control batch, or a sparse one without an expected offset"), None
        if header.producer_id and source:  # 0: this gateway itself
            refusal = self.tickets.refuse_batch(source, header.producer_id, header.producer_epoch)
            if refusal is not None:
                return refusal, None
        if not Acks.NONE <= part.acks <= Acks.ALL:
            return refuse("MALFORMED", f"acks must be 0, 1 or 2, not {part.acks}"), None
        topic = self._cluster.topic(part.topic_id)
        if topic is None or not 0 <= part.partition < len(topic.partitions):
            return refuse("UNKNOWN_TOPIC", f"no partition {part.topic_id}/{part.partition}"), None
        if source and topic.name.startswith(INTERNAL_PREFIX):  # 0: this gateway itself
            return refuse("FORBIDDEN", f"{topic.name} is the cluster's own topic: it can only be read"), None
        if part.size > (limit := topic.config.max_batch_bytes):
            return refuse("BATCH_TOO_LARGE", f"the batch has {part.size} bytes, the limit is {limit}"), None
        refusal = self._refuse_beyond_limits(source, part.size)
        if refusal is not None:
            return refusal, None
        queue = self._queues.get(source, {}).get(TopicPartition(part.topic_id, part.partition))
        if queue is not None and queue.unsettled.get(header.producer_id, 0) >= PRODUCER_WINDOW:
            text = f"producer {header.producer_id} has {PRODUCER_WINDOW} batches in flight: wait for an ack"
            return refuse("OVERLOADED", text, window=PRODUCER_WINDOW), None
        return None, header

    def _refuse_beyond_limits(self, source: int, size: int) -> TidelogError | None:
        """Return ``OVERLOADED`` for a batch of ``size`` bytes with which a client would exceed a limit of its
        connection (``limit`` names it as the welcome does) or its share of what the gateway holds. Otherwise return
        None, as for a batch beyond ``client_max_bytes`` while no other of its client waits."""
        held, most = self.held.get(source, 0), self._settings.client_max_bytes
        if held and held + size > most:
            text = f"{held} bytes of this connection wait for their acks, and {most} may: wait for some"
            return refuse("OVERLOADED", text, limit="produce_bytes", most=most)
        if self._held_batches.get(source, 0) >= (most := self._settings.client_max_batches):
            text = f"{most} batches of this connection wait for their acks: wait for some"
            return refuse("OVERLOADED", text, limit="produce_batches", most=most)
        if self._held.total + size > self._held.plenty and not self._held.fits(self._owner(source), size):
            return refuse("OVERLOADED", "too many bytes of all clients wait for their acks: send less at a time")
        return None

    def _validate(self, source: int, header: BatchHeader, batch: memoryview, *, defer_all: bool) -> bool:
        """Check that readers can decode the batch (``docs/decisions/0021``); the leader checks the CRC. Return True
        if they can, or False if the body is left for ``check``: it decompresses to much, and other bodies took long
        or wait. Raises ``CorruptBatch`` if they cannot."""
        check_fields(header)
        if self._cluster.image.level < VALIDATION and not declares_size(header, batch):
            text = f"zstd frame does not declare its size, as readers need below feature level {VALIDATION}"
            raise CorruptBatch(text)
        if excess := _excess(header):
            if source and (
                defer_all or self.has_unfolded_much or source in self._unchecked
            ):  # 0: this gateway itself
                return False
            self._unfolded += excess
        check_body(header, batch)
        return True

    def _enqueue(
        self, source: int, part: ProducePart, batch: memoryview, producer_id: int, now: float, *, is_unchecked: bool
    ) -> None:
        """Append a batch to the queue of its client and partition, which is created if needed. Its bytes are held and
        its timeout runs from now on. An idle queue is sent from at the next flush."""
        key = TopicPartition(part.topic_id, part.partition)
        queues = self._queues.setdefault(source, {})
        queue = queues.get(key)
        if queue is None:
            queue = queues[key] = ProduceQueue(source, key, self._owner(source))
            self._by_partition.setdefault(key, {})[source] = queue
        self._arrivals += 1
        settings = self._settings
        timeout_s = part.timeout_ms / 1000 if part.timeout_ms >= 0 else settings.ack_timeout_s
        deadline = now + min(timeout_s, settings.produce_max_timeout_ms / 1000)
        queued = QueuedBatch(
            queue, self._arrivals, part, batch, producer_id, deadline, now, is_unchecked=is_unchecked
        )
        if is_unchecked:
            self._unchecked.setdefault(source, {})[queued] = None
        queue.occupy(producer_id)
        queued.bucket = self._expiry.add(queued, queued.deadline)
        self.held[source] = self.held.get(source, 0) + part.size
        self._held_batches[source] = self._held_batches.get(source, 0) + 1
        self._held.hold(queue.tenant, part.size)
        queue.waiting.append(queued)
        if queue.state is QueueState.IDLE:
            self._schedule(queue)

    def _mark_checked(self, queued: QueuedBatch) -> None:
        """Mark a batch as checked, so that it may be sent, and let the next flush send from its queue if the queue is
        idle."""
        queued.is_unchecked = False
        del self._unchecked[queued.queue.source][queued]
        if queued.queue.state is QueueState.IDLE:
            self._schedule(queued.queue)

    def _end_try(self, queued: QueuedBatch) -> None:
        """Take a batch out of those in flight, in its queue and in its server's window. If queues are blocked by the
        window, the next flush sends from them."""
        window = self._windows[queued.server]
        del window.in_flight[queued.attempt]
        del queued.queue.sent[queued.attempt]
        window.bytes -= len(queued.batch)
        self.in_flight -= 1
        if window.blocked:
            self._relieved[window.node] = None

    def _try_again(self, queued: QueuedBatch, error: ErrorInfo, now: float) -> bool:
        """Put a batch back into its queue after a failed try, and return True. Return False, and leave the batch out,
        if it must not be sent again: the client is gone, the error is final, or the outcome is unknown and the
        producer is not idempotent. While the leader stays the same the queue first pauses; the pause doubles with
        each refusal."""
        queued.last_error = error
        queue = queued.queue
        if error.unknown_outcome and error.code != GAP:
            queued.doubt = queued.epoch
        behind = self._cluster.knows_better(*queue.key, error.code)
        if queue.closed or not (error.code in RETRIED or behind):
            return False
        if error.unknown_outcome and not queued.producer_id:
            return False
        count(self.counts.retries, error.code)
        queue.put_back(queued)
        state = self._cluster.state(*queue.key)
        if state is None or state.leader_epoch != queued.epoch or not self._windows[queued.server].up:
            self._schedule(queue)  # the next flush sends it elsewhere, or parks it
        elif queue.state is not QueueState.DELAYED:
            queue.retry_s = min(max(queue.retry_s * 2, self._settings.retry_first_s), self._settings.retry_max_s)
            queue.not_before = now + queue.retry_s
            self._parked.pop(queue, None)
            queue.state = QueueState.DELAYED
            heapq.heappush(self._delayed, (queue.not_before, queued.arrival, queue))
        return True

    def _end_at_gap(self, queued: QueuedBatch, error: ErrorInfo) -> None:
        """Fail a batch behind a gap in its producer's sequence that no try can close. The error keeps its details, by
        which the client may renumber its batches, only if no lost try of this leader epoch may still arrive."""
        detail = error.detail
        if queued.doubt >= queued.epoch:
            detail = {}
        elif "lossy" not in detail:
            queued.doubt = -1
        self._fail(queued, ErrorInfo(error.code, error.message, False, detail))

    def _supersede(self, queued: QueuedBatch, now: float) -> None:
        """Handle a try in flight to a leader that was replaced. A batch of an idempotent producer is put back for the
        new leader. Any other batch stays in flight, and times out after ``fate_grace_s`` if its own timeout is later.
        """
        queued.doubt = queued.epoch
        if queued.producer_id:
            self._end_try(queued)
            queued.queue.put_back(queued)
        elif queued.deadline > now + self._settings.fate_grace_s:
            replaced = refuse("NOT_LEADER", f"{queued.server} was replaced as leader", unknown_outcome=True)
            queued.last_error = replaced.to_info()
            self._expiry.discard(queued, queued.bucket)
            queued.deadline = now + self._settings.fate_grace_s
            queued.bucket = self._expiry.add(queued, queued.deadline)

    def _fail(self, queued: QueuedBatch, error: ErrorInfo) -> None:
        """End a batch with an error for its client. ``unknown_outcome`` is set if an earlier try may have been
        written."""
        unknown = error.unknown_outcome or queued.doubt >= 0
        info = ErrorInfo(error.code, error.message, unknown, error.detail)
        self._finish(queued, ProduceAck(queued.part.id, error=info))

    def _finish(self, queued: QueuedBatch, ack: ProduceAck | None) -> None:
        """End a batch: its bytes and its place in the producer's window become free, and ``ack`` is sent at the next
        flush. Nothing is sent if ``ack`` is None or the client is gone."""
        source = queued.queue.source
        queued.queue.release(queued.producer_id)
        if queued.is_unchecked:
            self._mark_checked(queued)
        size = len(queued.batch)
        self._expiry.discard(queued, queued.bucket)
        self._held.release(queued.queue.tenant, size)
        held = self.held[source] - size
        if held:
            self.held[source] = held
            self._held_batches[source] -= 1
        else:
            del self.held[source], self._held_batches[source]
        if ack is not None and not queued.queue.closed:
            self._acks.add(source, ack, queued.part)

    # --- queues ---------------------------------------------------------------------------------------------

    def _window(self, node: NodeId) -> ServerWindow:
        """Return the window of a replica server; a new one, whose link is down, if there is none yet."""
        window = self._windows.get(node)
        if window is None:
            limit = ServerLimit(self._settings.throttle_target_s, self._settings.throttle_least_bytes_s)
            window = self._windows[node] = ServerWindow(node, limit)
        return window

    def _schedule(self, queue: ProduceQueue) -> None:
        """Make the queue ready, so that the next flush sends from it."""
        self._parked.pop(queue, None)
        if queue.state is not QueueState.READY:
            queue.state = QueueState.READY
            self._ready.append(queue)


def _unfolds_to(header: BatchHeader) -> int:
    """Return the cost of checking a batch, in bytes: those of the decompressed body, plus ``RECORD_COST`` for each
    record."""
    return header.body_length + RECORD_COST * header.record_count


def _excess(header: BatchHeader) -> int:
    """Return by how many bytes the cost of checking a batch exceeds ``UNFOLDS_TO`` times its size; 0 if it does
    not."""
    return max(0, _unfolds_to(header) - UNFOLDS_TO * header.batch_length)
