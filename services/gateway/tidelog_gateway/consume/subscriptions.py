"""Subscriptions: batches are pushed to clients from a position on, as far as the clients have given credit.

Theory. A subscription is a position (last epoch, offset) and a credit in bytes. With credit it is served from the
partition's tail (``consume/tail_cache.py``) if its position continues there, and otherwise takes part in a *read* at
the partition's leader, or at another replica (below). Batches that arrive are delivered, move the position behind
the last one and use up credit. A single batch larger than the credit is delivered all the same and leaves a debt, so
that a small window is slow, never stuck.

A read is a *wait* or not. A read that is no wait is answered at once, and needs room in the window
(``server_read_window.py``). A wait is sent where the position may be the end of what is committed: the server answers
when there are new records, with these, or with an empty answer that announces them if they are large. A subscription
waits when it begins and when it has reached the HW; it reads when it is behind the HW or new records were announced.
The number of waits is bounded and shared fairly: a subscription that gets none reads again and again, with pauses.

- Subscriptions that stand at one position and ask for the same share a read: those at the end of a partition cost its
  leader one read for each batch, however many they are. The end of a read is its end for all that take part.
- Who may share: ``eventual`` subscriptions share reads and the tail. ``bounded`` ones share a read with those of the
  same bound: the bound holds for the moment of the answer, so a subscription that joins later gets no less; but
  batches of the tail have aged. ``linearizable`` ones share nothing: a read is confirmed after it was asked, and one
  that was asked before the subscription came, or batches read then, might lack what was committed in between.
- A client's single read that found nothing, and is to wait, takes part in a wait at the leader (a *poll*). It has
  had everything that was committed before it came, so a ``linearizable`` one waits as an ``eventual`` one does.
- A wait that has lost its last subscription goes on, since the server keeps it anyhow; the next subscription joins
  it.
- With ``read_from`` ``any`` a copy of the partition serves it (``consume/replica_selector.py``), the leader when
  there is none. It stays there until the copy fails it, by whatever error: the leader is asked at once, and for
  ``leader_stay_s``, since only its errors are final. The client's HW never goes back with such a change. A
  ``bounded`` subscription is asked again at least every ``max_staleness_ms``, so that no silent copy holds it up for
  longer.
- A retriable error, a lost link, or a leader that lags behind the metadata: asked again after a growing pause, and
  at once when the partition's leader changes, which also drops the tail. The position does not move, so nothing is
  skipped or repeated.
- ``OFFSET_OUT_OF_RANGE``, ``LOG_TRUNCATED``, ``UNKNOWN_TOPIC`` and every other final error end the subscription with
  a delivery that carries it: where to go on is the client's decision (KIP-320), never a silent reset.
- A slow client stalls only itself: it gives no credit, takes part in no read, and reads for itself when the tail has
  moved on. Credit is cut to ``credit_max_bytes``, so that no client can make the gateway hold more for it. The
  welcome announces that limit (``credit_bytes``): a client that counts on more than is kept would wait for ever.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from tidelog.errors import TidelogError, refuse
from tidelog.principal_bounds import refuse_excess
from tidelog.sansio.counters import count
from tidelog.sansio.effects import Answer, Call, Post
from tidelog.types import NodeId, PartitionState, TopicPartition
from tidelog.wire.messages import Credit, Delivery, Done, Message, Read, ReadAnswer, Subscribe, Unsubscribe

from tidelog_gateway.cluster_view import ClusterView
from tidelog_gateway.consume.replica_selector import ReplicaSelector
from tidelog_gateway.consume.tail_cache import BatchRun, RunSlice, SubscriberTailCache
from tidelog_gateway.counters import DeliveryCounts
from tidelog_gateway.refusals import NamesError, keep_error
from tidelog_gateway.settings import SubscriptionSettings

BOUNDED_MIN_WAIT_MS = 250
"""Least milliseconds between the reads of an idle bounded subscription, however close its bound is. A copy may take
so long to learn that it is fresh enough."""


@dataclass(frozen=True, slots=True)
class Polled:
    """Effect: a client's read that waited for new records, poll ``token``, has ended, and ``Polls`` answers the
    client. ``answer`` has the new records, or the error for which the client cannot wait. None: the wait timed out
    (``timed_out``), or the client's read is sent again, since new records were announced or the leader changed."""

    source: int
    token: int
    answer: ReadAnswer | TidelogError | None
    timed_out: bool = False


Effect = Answer | Call | Polled | Post


@dataclass(slots=True, eq=False)
class _Subscription:
    """A client's open subscription: its position, its credit in bytes, and where it reads. ``reading``: the read in
    flight whose answer it waits for; None if it waits for none."""

    source: int
    sub: int
    key: TopicPartition
    offset: int
    last_epoch: int
    credit: int
    any_replica: bool
    consistency: str
    max_staleness_ms: int
    isolation: str
    copy: NodeId | None = None
    """The replica other than the leader that serves it."""
    leader_until: float = -inf
    high_watermark: int = -1
    """The highest HW that was delivered to the client."""
    waits: bool = False
    """It has every record below the HW, and credit: the next batches count for the end-to-end latency."""
    at_end: bool = True
    """Its next read is a wait."""
    announced: bool = False
    """A wait has announced new records, and no read has found them yet."""
    reading: _ReadInFlight | None = None
    not_before: float = 0.0
    retry_s: float = 0.0
    ended: bool = False


@dataclass(slots=True, eq=False)
class _Poll:
    """A client's single read that found nothing and waits for new records until the time ``until`` (seconds)."""

    source: int
    token: int
    key: TopicPartition
    read: Read
    until: float
    reading: _ReadInFlight | None = None


class ReadKey(NamedTuple):
    """The properties of a read: partition, position, freshness, isolation, and whether it goes to a copy or waits.
    Subscriptions and polls with equal keys share one read."""

    key: TopicPartition
    offset: int
    last_epoch: int
    at_copy: bool
    consistency: str
    max_staleness_ms: int
    isolation: str
    leader_epoch: int
    waits: bool


@dataclass(slots=True, eq=False)
class _ReadInFlight:
    """A read that was sent and is not answered: the client (``source``) for which it was begun, and the subscriptions
    and polls that wait for its answer (``waiting``)."""

    token: int
    read_key: ReadKey
    source: int
    asked: float
    max_wait_s: float
    waiting: dict[_Subscription | _Poll, None] = field(default_factory=dict)

    def before(self, run: BatchRun) -> int:
        """Return the leader epoch of the record before ``run``, the records that this read brought; -1 if it is not
        known since the run does not begin at the read's offset."""
        return self.read_key.last_epoch if run.start == self.read_key.offset else -1


class Subscriptions:
    """All subscriptions and polls of a gateway, and the reads that they share. Its methods return effects, which the
    shell performs: answers and deliveries to clients, and reads to send to replica servers. Times are seconds of the
    shell's clock."""

    def __init__(
        self,
        cluster: ClusterView,
        settings: SubscriptionSettings,
        wall_ms: Callable[[], int] = lambda: 0,
        name_error: NamesError = keep_error,
    ) -> None:
        """``wall_ms``: the wall clock in milliseconds, for the age of delivered batches. ``name_error``: gives each
        error that ends a subscription an id."""
        self._name_error = name_error
        self._wall_ms = wall_ms
        self._cluster = cluster
        self._settings = settings
        self._open: dict[int, dict[int, _Subscription]] = {}
        self._principals: dict[int, str] = {}
        """The principal of each client."""
        self._counts: dict[str, int] = {}
        """Open subscriptions of each principal."""
        self._by_partition: dict[TopicPartition, dict[_Subscription, None]] = {}
        self._reads: dict[int, _ReadInFlight] = {}
        self._shared: dict[ReadKey, _ReadInFlight] = {}
        self._polls: dict[int, dict[int, _Poll]] = {}
        self._polls_by_partition: dict[TopicPartition, dict[_Poll, None]] = {}
        self._delayed: list[tuple[float, int, _Subscription | _Poll]] = []
        self._tokens = 0
        self.given_up: list[int] = []
        """Tokens of reads that no subscription or poll wants any more; the shell empties the list."""
        self.joined: list[tuple[int, int]] = []
        """Token and client for each client that joined a read of another; the shell empties the list."""
        self._replica_selector = ReplicaSelector(cluster)
        self.tails = SubscriberTailCache(settings.tail_cache_bytes, settings.tail_cache_max_age_s)
        self.counts = DeliveryCounts()
        self._delivery = Delivery(-1)
        """The last delivery. Subscriptions that get the same get this object, so that the shell encodes it once."""

    @property
    def open_count(self) -> int:
        """Return the number of open subscriptions."""
        return sum(map(len, self._open.values()))

    def topics_of(self, source: int) -> set[str]:
        """Return the ids of the topics to which a client has open subscriptions; empty for an unknown client."""
        return {one.key.topic_id for one in self._open.get(source, {}).values()}

    # --- the client -----------------------------------------------------------------------------------------

    def on_link_opened(self, source: int, principal: str) -> None:
        """Register the principal of a client that has connected, for the bound on its subscriptions."""
        self._principals[source] = principal

    def on_subscribe(self, source: int, id: int, message: Subscribe, now: float) -> list[Effect]:
        """Open a subscription and return its first effects: the answer ``Done``, then deliveries from the tail cache,
        a read, or both. If the request is malformed, a bound on subscriptions is reached, or the partition is
        unknown, open nothing and return an answer with the error."""
        subscriptions = self._open.setdefault(source, {})
        if message.sub in subscriptions:
            return [Answer(source, id, refuse("MALFORMED", f"subscription {message.sub} is open already"))]
        if len(subscriptions) >= self._settings.client_max_subscriptions:
            return [Answer(source, id, refuse("OVERLOADED", f"{len(subscriptions)} subscriptions are open"))]
        principal, most = self._principals.get(source, ""), self._settings.principal_max_subscriptions
        held = self._counts.get(principal, 0)
        over = refuse_excess(principal, "subscriptions", held, "principal_max_subscriptions", most)
        if over is not None:
            return [Answer(source, id, over)]
        key = TopicPartition(message.topic_id, message.partition)
        if self._cluster.state(*key) is None:
            return [Answer(source, id, refuse("UNKNOWN_TOPIC", f"no partition {key.topic_id}/{key.partition}"))]
        fault = _fault(message)
        if fault is not None:
            return [Answer(source, id, refuse("MALFORMED", fault))]
        credit = min(message.credit, self._settings.credit_max_bytes)
        one = _Subscription(
            source,
            message.sub,
            key,
            message.offset,
            message.last_epoch,
            credit,
            message.read_from == "any" and message.consistency != "linearizable",
            message.consistency,
            message.max_staleness_ms,
            message.isolation,
        )
        subscriptions[message.sub] = one
        self._counts[principal] = held + 1
        self._by_partition.setdefault(key, {})[one] = None
        return [Answer(source, id, Done()), *self._read(one, now)]

    def on_credit(self, source: int, message: Credit, now: float) -> list[Effect]:
        """Add credit to a subscription, up to ``credit_max_bytes`` in all, and return the deliveries and the read
        that it now allows; an empty list if it allows none. Credit for a subscription that is not open is ignored."""
        one = self._open.get(source, {}).get(message.sub)
        if one is None:
            return []
        one.credit = min(one.credit + message.bytes, self._settings.credit_max_bytes)
        return self._read(one, now)

    def on_unsubscribe(self, source: int, id: int, message: Unsubscribe) -> list[Effect]:
        """Close a subscription and return the answer ``Done``, after which nothing is delivered. The answer is
        ``Done`` for an unknown subscription, too."""
        one = self._open.get(source, {}).get(message.sub)
        if one is not None:
            self._close(one)
        return [Answer(source, id, Done())]

    def on_link_closed(self, source: int) -> None:
        """Close all subscriptions and polls of a client that has disconnected. The reads that no other client waits
        for are put on the list ``given_up``, which the shell empties, except for waits that others may still join."""
        for one in list(self._open.get(source, {}).values()):
            self._close(one)
        self._open.pop(source, None)
        self._principals.pop(source, None)
        for poll in list(self._polls.get(source, {}).values()):
            self._close_poll(poll)

    # --- a client's single reads that wait -----------------------------------------------------------------

    def on_poll(self, source: int, token: int, read: Read, until: float, now: float) -> list[Effect]:
        """Let a client's read that found no records wait for new ones, and return the effects: a read that waits at
        the leader, if none is in flight that it can share. The end of the wait comes as the effect ``Polled`` with
        ``token``, which the caller chooses, at the latest at ``until``."""
        poll = _Poll(source, token, TopicPartition(read.topic_id, read.partition), read, until)
        self._polls.setdefault(source, {})[token] = poll
        self._polls_by_partition.setdefault(poll.key, {})[poll] = None
        heapq.heappush(self._delayed, (until, self._next_token(), poll))
        return self._poll(poll, now)

    def _poll(self, poll: _Poll, now: float) -> list[Effect]:
        """Let a poll share a read that waits at the leader, or begin one. If the partition has no leader, the poll
        ends without an answer."""
        state, read = self._cluster.state(*poll.key), poll.read
        if state is None or state.leader is None:
            return self._end_poll(poll, None)
        consistency = "eventual" if read.consistency == "linearizable" else read.consistency
        bound = read.max_staleness_ms
        where = (poll.key, read.offset, read.last_epoch, False, consistency, bound, read.isolation)
        read_key = ReadKey(*where, state.leader_epoch, waits=True)
        return self._take_part(poll, read_key, state.leader, self._settings.read_max_bytes, now)

    def _end_poll(
        self, poll: _Poll, answer: ReadAnswer | TidelogError | None, *, timed_out: bool = False
    ) -> list[Effect]:
        """Close a poll and return the effect by which its client is answered."""
        self._close_poll(poll)
        return [Polled(poll.source, poll.token, answer, timed_out)]

    def _close_poll(self, poll: _Poll) -> None:
        """Remove a poll, and take it out of the read that it shares."""
        self._withdraw(poll)
        del self._polls[poll.source][poll.token]
        if not self._polls[poll.source]:
            del self._polls[poll.source]
        del self._polls_by_partition[poll.key][poll]
        if not self._polls_by_partition[poll.key]:
            del self._polls_by_partition[poll.key]

    # --- the leaders ----------------------------------------------------------------------------------------

    def on_answer(self, token: int, answer: Message | TidelogError, now: float) -> list[Effect]:
        """Process the answer to read ``token`` for all subscriptions and polls that share it, and return the effects.
        Records are delivered, and may be kept in the tail cache. After a retriable error the subscriptions read again
        after a pause; after an error of a copy they read from the leader at once; a final error ends them. An answer
        to a read that was given up is ignored."""
        reading = self._reads.pop(token, None)
        if reading is None:
            return []
        if self._shared.get(reading.read_key) is reading:
            del self._shared[reading.read_key]
        for any_one in reading.waiting:
            any_one.reading = None
        polls = [one for one in reading.waiting if isinstance(one, _Poll)]
        waiting = [one for one in reading.waiting if isinstance(one, _Subscription)]
        if isinstance(answer, TidelogError):
            poll_answer = answer if answer.code == "OVERLOADED" else None
            return [
                *(effect for poll in polls for effect in self._end_poll(poll, poll_answer)),
                *self._on_error(reading, waiting, answer, now),
            ]
        assert isinstance(answer, ReadAnswer) and not isinstance(answer.payload, list)
        key = reading.read_key.key
        self.tails.update_bounds(key, answer.high_watermark, answer.log_start)
        if not len(answer.payload):
            return self._on_nothing(reading, waiting, polls, now)
        effects = [effect for poll in polls for effect in self._end_poll(poll, answer)]
        try:
            run = BatchRun(answer.payload)
        except TidelogError as fault:
            why = fault
            return effects + self._each(waiting, lambda one: self._end(one, why))
        if len(self._by_partition.get(key, ())) > 1 and reading.read_key.isolation == "committed":
            self.tails.add(key, reading.before(run), run, now)
            self.tails.update_bounds(key, answer.high_watermark, answer.log_start)
        return effects + self._each(waiting, lambda one: self._serve(one, run, answer.high_watermark, now))

    def _on_nothing(
        self, reading: _ReadInFlight, waiting: list[_Subscription], polls: list[_Poll], now: float
    ) -> list[Effect]:
        """Process an answer without records. If the server answered a wait before half of its time was over, new
        records are announced: subscriptions read them, and polls end. Otherwise subscriptions and polls wait again. A
        subscription whose read found no announced records pauses first."""
        announced = reading.read_key.waits and now - reading.asked < reading.max_wait_s / 2
        in_vain = [one for one in waiting if one.announced and not reading.read_key.waits]
        for one in waiting:
            one.waits = True
            one.at_end = not announced
            one.announced = announced
        if announced:
            effects = [effect for poll in polls for effect in self._end_poll(poll, None)]
        else:
            effects = [effect for poll in polls for effect in self._poll(poll, now)]
        return effects + self._each(
            waiting, lambda one: self._delay(one, now) if one in in_vain else self._read(one, now)
        )

    def _on_error(
        self, reading: _ReadInFlight, waiting: list[_Subscription], error: TidelogError, now: float
    ) -> list[Effect]:
        """Process an error for the subscriptions that shared a read. After an error of a copy they read from the
        leader at once and for ``leader_stay_s``. After a retriable error they pause and read again. Any other error
        ends them and drops the partition's tail."""
        for one in waiting:
            one.at_end = False
        if reading.read_key.at_copy:
            for one in waiting:
                self._leave_copy(one)
                one.leader_until = now + self._settings.leader_stay_s
            return self._each(waiting, lambda one: self._read(one, now))
        key = reading.read_key.key
        if error.retriable or self._cluster.knows_better(*key, error.code):
            if waiting:
                count(self.counts.retries, error.code)
            return self._each(waiting, lambda one: self._delay(one, now))
        self.tails.drop(key)
        return self._each(waiting, lambda one: self._end(one, error))

    def on_metadata(self, changed: Iterable[TopicPartition], now: float) -> list[Effect]:
        """Drop the tails of the partitions in ``changed``, which have another leader or leader epoch or were created
        or deleted, and return the effects. Their subscriptions read again at once, or end with ``UNKNOWN_TOPIC`` if
        the topic was deleted; their polls end without an answer."""
        effects: list[Effect] = []
        for key in changed:
            self.tails.drop(key)
            concerned = list(self._by_partition.get(key, {}))
            for one in concerned:
                self._withdraw(one)
                one.not_before = now
                one.retry_s = 0.0
            effects.extend(self._each(concerned, lambda one: self._read(one, now)))
            for poll in list(self._polls_by_partition.get(key, {})):
                effects.extend(self._end_poll(poll, None))
        return effects

    # --- time -----------------------------------------------------------------------------------------------

    def on_tick(self, now: float) -> list[Effect]:
        """Let the subscriptions whose pause is over read again, and end the polls whose time is over. Return the
        effects; an empty list if nothing was due."""
        effects: list[Effect] = []
        while self._delayed and self._delayed[0][0] <= now:
            one = heapq.heappop(self._delayed)[2]
            if isinstance(one, _Subscription):
                effects.extend(self._read(one, now))
            elif one.token in self._polls.get(one.source, {}):
                effects.extend(self._end_poll(one, None, timed_out=True))
        return effects

    def deadline(self) -> float | None:
        """Return when ``on_tick`` is to be called, in seconds of the shell's clock; None if nothing is due before
        another input."""
        return self._delayed[0][0] if self._delayed else None

    # --- one subscription -----------------------------------------------------------------------------------

    def _each(self, them: list[_Subscription], act: Callable[[_Subscription], list[Effect]]) -> list[Effect]:
        """Return the effects of calling ``act`` for each of these subscriptions, in order."""
        return [effect for one in them for effect in act(one)]

    def _serve(self, one: _Subscription, run: BatchRun, high_watermark: int, now: float) -> list[Effect]:
        """Deliver as many of the batches of a read as the subscription's credit allows, then let the subscription
        read on. Return the effects."""
        one.retry_s = 0.0
        one.announced = False
        return [self._deliver(one, run.slice(0, one.credit), high_watermark), *self._read(one, now)]

    def _deliver(self, one: _Subscription, run_slice: RunSlice, high_watermark: int) -> Post:
        """Return the delivery of some batches to a subscription. Its position moves behind them, and its credit is
        reduced by their size; a batch larger than the credit leaves a debt."""
        size = len(run_slice.payload)
        one.offset = run_slice.offset
        one.last_epoch = run_slice.last_epoch
        one.credit -= size
        one.high_watermark = max(one.high_watermark, high_watermark)
        self.counts.deliveries += 1
        self.counts.records += run_slice.records
        self.counts.bytes += size
        if one.waits:
            self.counts.on_new_records(run_slice.timestamps, self._wall_ms())
        one.at_end = run_slice.offset >= one.high_watermark
        one.waits = one.at_end and one.credit > 0
        last = self._delivery
        if last.payload is not run_slice.payload or last.sub != one.sub or last.high_watermark != one.high_watermark:
            last = Delivery(one.sub, high_watermark=one.high_watermark, payload=run_slice.payload)
            self._delivery = last
        return Post(one.source, last)

    def _read(self, one: _Subscription, now: float) -> list[Effect]:
        """Deliver batches from the tail cache, and then wait for a read, as far as the subscription's credit allows.
        Return the effects: an empty list while the subscription waits for a read already, pauses, has no credit, or
        its partition has no leader. Ends the subscription with ``UNKNOWN_TOPIC`` if the topic was deleted."""
        if one.ended or one.reading is not None or one.credit <= 0 or now < one.not_before:
            return []
        state = self._cluster.state(*one.key)
        if state is None:
            return self._end(one, refuse("UNKNOWN_TOPIC", f"topic {one.key.topic_id} was deleted"))
        if state.leader is None:
            return []  # the next leader wakes it
        effects: list[Effect] = []
        if one.consistency == "eventual" and one.isolation == "committed" and not state.paused:
            while one.credit > 0 and (found := self._kept_for(one, now)) is not None:
                run, number, high_watermark = found
                effects.append(self._deliver(one, run.slice(number, one.credit), high_watermark))
        if one.credit > 0:
            effects.extend(self._join(one, state, now))
        return effects

    def _kept_for(self, one: _Subscription, now: float) -> tuple[BatchRun, int, int] | None:
        return self.tails.find(one.key, one.offset, one.last_epoch, now)

    def _join(self, one: _Subscription, state: PartitionState, now: float) -> list[Effect]:
        """Let the subscription share a read in flight with its ``ReadKey``, or begin a new read at the leader or at a
        copy. Return the effects."""
        at_copy = self._goes_to_copy(one, state, now)
        where = (one.key, one.offset, one.last_epoch, at_copy, one.consistency, one.max_staleness_ms, one.isolation)
        read_key = ReadKey(*where, state.leader_epoch, one.at_end)
        if at_copy and one.copy is None and read_key not in self._shared:
            one.copy = self._replica_selector.select(state)
        assert state.leader is not None
        max_bytes = min(one.credit, self._settings.read_max_bytes)
        return self._take_part(one, read_key, one.copy or state.leader, max_bytes, now)

    def _take_part(
        self, one: _Subscription | _Poll, read_key: ReadKey, node: NodeId, max_bytes: int, now: float
    ) -> list[Effect]:
        """Let a subscription or poll wait for the read in flight with this key, and return an empty list. If there is
        none, begin a new read at ``node`` and return its ``Call``. Linearizable reads are never shared."""
        reading = self._shared.get(read_key)
        effects: list[Effect] = []
        if reading is None:
            call = self._ask(self._next_token(), read_key, node, max_bytes)
            reading = _ReadInFlight(
                call.token, read_key, one.source, now, call.timeout_s - self._settings.read_grace_s
            )
            self._reads[reading.token] = reading
            if read_key.consistency != "linearizable":
                self._shared[read_key] = reading
            self.counts.reads += 1
            effects = [call]
        elif not read_key.waits:
            self.joined.append((reading.token, one.source))
        reading.waiting[one] = None
        one.reading = reading
        return effects

    def asked_for(self, token: int) -> tuple[int, bool] | None:
        """Return the client for which a read was begun, and whether the read waits at the server for new records.
        None if the read was given up or answered."""
        reading = self._reads.get(token)
        return None if reading is None else (reading.source, reading.read_key.waits)

    def _ask(self, token: int, read_key: ReadKey, node: NodeId, max_bytes: int) -> Call:
        """Return the effect that sends a read to ``node``, with the time that the server may wait for new records;
        none for a read that is no wait."""
        settings = self._settings
        max_wait_ms = settings.read_max_wait_ms if read_key.waits else 0
        if read_key.waits and read_key.consistency == "bounded":
            max_wait_ms = min(max_wait_ms, max(read_key.max_staleness_ms, BOUNDED_MIN_WAIT_MS))
        elif read_key.at_copy and read_key.consistency == "bounded":
            max_wait_ms = BOUNDED_MIN_WAIT_MS
        request = Read(
            *read_key.key,
            read_key.offset,
            last_epoch=read_key.last_epoch,
            leader_epoch=read_key.leader_epoch,
            max_bytes=max_bytes,
            max_wait_ms=max_wait_ms,
            consistency=read_key.consistency,
            max_staleness_ms=read_key.max_staleness_ms,
            any_replica=read_key.at_copy,
            isolation=read_key.isolation,
        )
        return Call(node, token, request, max_wait_ms / 1000 + settings.read_grace_s)

    def _next_token(self) -> int:
        self._tokens += 1
        return self._tokens

    def _withdraw(self, one: _Subscription | _Poll) -> None:
        """Let a subscription or poll wait no more for its read. A read that nobody waits for is put on the list
        ``given_up``, which the shell empties, unless it waits for new records and others may still join it. Does
        nothing if there is no read."""
        reading, one.reading = one.reading, None
        if reading is None:
            return
        del reading.waiting[one]
        shared = self._shared.get(reading.read_key) is reading
        if not reading.waiting and not (shared and reading.read_key.waits):
            del self._reads[reading.token]
            self.given_up.append(reading.token)
            if shared:
                del self._shared[reading.read_key]

    def _goes_to_copy(self, one: _Subscription, state: PartitionState, now: float) -> bool:
        """Return whether the subscription reads from a copy and not from the leader. If its copy may not serve
        readers any more, release the copy first."""
        if one.copy is not None and not self._replica_selector.is_fit(one.copy, state):
            self._leave_copy(one)
        if one.copy is not None:
            return True
        return one.any_replica and now >= one.leader_until and bool(self._cluster.copies(state))

    def _leave_copy(self, one: _Subscription) -> None:
        """Let the subscription read from its copy no more. Does nothing if it reads from the leader."""
        if one.copy is not None:
            self._replica_selector.release(one.copy)
            one.copy = None

    def _delay(self, one: _Subscription, now: float) -> list[Effect]:
        """Let the subscription pause before it reads again; the pause doubles up to ``retry_max_s``. Returns no
        effects."""
        one.retry_s = min(max(one.retry_s * 2, self._settings.retry_first_s), self._settings.retry_max_s)
        one.not_before = now + one.retry_s
        heapq.heappush(self._delayed, (one.not_before, self._next_token(), one))
        return []

    def _end(self, one: _Subscription, error: TidelogError) -> list[Effect]:
        """Close a subscription and return the delivery that carries the error to its client."""
        self._close(one)
        count(self.counts.ended, error.code)
        asked = Subscribe(one.sub, *one.key[:2], offset=one.offset, credit=0)
        info = self._name_error(one.source, Subscribe.OP, asked, error.to_info())
        return [Post(one.source, Delivery(one.sub, error=info))]

    def _close(self, one: _Subscription) -> None:
        """Remove a subscription and release its copy and its read. The partition's tail is dropped if this was its
        last subscription."""
        one.ended = True
        self._leave_copy(one)
        self._withdraw(one)
        del self._open[one.source][one.sub]
        principal = self._principals.get(one.source, "")
        self._counts[principal] -= 1
        if not self._counts[principal]:
            del self._counts[principal]
        del self._by_partition[one.key][one]
        if not self._by_partition[one.key]:
            del self._by_partition[one.key]
            self.tails.drop(one.key)


def _fault(message: Subscribe) -> str | None:
    """Return what is wrong with a ``Subscribe``, for its client; None if it is valid."""
    if message.read_from not in ("leader", "any"):
        return f"read_from is leader or any, not {message.read_from!r}"
    if message.isolation not in ("committed", "uncommitted"):
        return f"isolation is committed or uncommitted, not {message.isolation!r}"
    if message.consistency not in ("eventual", "bounded", "linearizable"):
        return f"consistency is eventual, bounded or linearizable, not {message.consistency!r}"
    if (message.consistency == "bounded") != (message.max_staleness_ms >= 0):
        return "max_staleness_ms belongs to bounded subscriptions, and to each of them"
    return None
