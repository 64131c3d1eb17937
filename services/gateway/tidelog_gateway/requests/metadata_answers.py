"""Answers ``metadata`` requests: topics and servers as the gateway knows them, and the offsets that leaders report.

An answer may have 10,000 partitions, and any client may ask for it again and again. Therefore:

- a name counts once, however often it is given;
- what the metadata says of a partition is encoded once, until it changes (``_Encoded``);
- an answer is built a page at a time, and other tasks run in between. One answer is built at a time, and principals
  are served in turn (``shared_requests.Seats``);
- equal requests of one principal at the same time share one answer (``shared_requests.SingleFlight``);
- look-ups of offsets are shared by all principals, bounded, and fair (``requests/offset_lookups.py``);
- offsets that need not be proved are asked for with one request to each server (``requests/log_bounds.py``).

The rights of the principal are checked for each answer. No answer for one principal is given to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import trio
from tidelog.errors import TidelogError, refuse
from tidelog.types import NodeId, PartitionState, TopicPartition, TopicState
from tidelog.wire.cbor import map_head
from tidelog.wire.codec import EncodedAnswer, encode_array, encode_fields, encode_part
from tidelog.wire.messages import ListOffset, Message, Metadata, OffsetAnswer, PartitionInfo, ServerInfo

from tidelog_gateway.requests.log_bounds import LogBoundsQuery
from tidelog_gateway.requests.offset_lookups import PER_SERVER, Lookup, Lookups, Offsets, Want
from tidelog_gateway.shared_requests import Seats, SingleFlight, Steps
from tidelog_gateway.shell import GatewayShell

OFFSETS_TIMEOUT_S = 2.0
"""Offsets that a leader does not report in this time are unknown (-1) in the answer. An answer waits as long for
partitions without a leader, too."""
ANSWER_TIMEOUT_S = 10.0
"""Offsets that are not known after this time are unknown (-1) in the answer."""
MAX_NAMES = 10_000
"""Most topics that one request may name."""
CONSISTENCIES = ("linearizable", "eventual")
"""How fresh a request may want its offsets."""
LOOKED_UP_AT_ONCE = PER_SERVER
"""Partitions of one request that are looked up at a time."""
SENT_AT_ONCE = 16
"""After so many look-ups other tasks run."""
SILENCE = frozenset({"REQUEST_TIMED_OUT", "UNREACHABLE"})
"""Codes of errors that mean that a server is silent. Any other error is an answer of the server."""
SEATS, SEATS_EACH = 32, 4
"""Requests for offsets that are served at a time: of all principals, and of one."""


class MetadataView(Protocol):
    """The rights of a client to see topics and servers, by which an answer to ``metadata`` is filtered."""

    @property
    def principal(self) -> str: ...
    def of_topic(self, name: str) -> bool: ...
    @property
    def of_servers(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class NamedTopics:
    """The topics that a request names, by name and by id."""

    topics: tuple[str, ...] = ()
    topic_ids: tuple[str, ...] = ()


@dataclass(slots=True)
class _Encoded:
    """An encoded topic without offsets. It is valid while the metadata contain the very object ``topic``."""

    topic: TopicState
    head: bytes
    partitions: list[bytes]


class MetadataAnswers:
    """The part that answers the ``metadata`` requests of all clients, with its cache of encoded topics and its
    look-ups of offsets. There is one for each gateway."""

    def __init__(self, shell: GatewayShell) -> None:
        self._shell = shell
        self._single_flight = SingleFlight(shell.nursery)
        self._building = Seats(1, 1)
        self._asking = Seats(SEATS, SEATS_EACH)
        self._lookups = Lookups()
        self._log_bounds = LogBoundsQuery(shell)
        self._waiting: dict[Want, trio.Event] = {}
        self._sending = False
        self._encoded: dict[str, _Encoded] = {}

    async def answer(self, asked: Metadata, view: MetadataView) -> Message:
        """Return the answer to a ``metadata`` request, encoded: the topics and servers that ``view`` may see and, if
        asked for, the offsets that the leaders report. Unknown topics are left out; offsets that no leader reports in
        time are -1. Raises ``MALFORMED`` if the request names too many topics or an unknown consistency."""
        names = names_of(asked)
        question = (view.principal, asked.all_topics, asked.offsets, asked.consistency, names)

        async def work() -> Message:
            if not asked.offsets:
                async with self._building.seat(view.principal):
                    return await self._build(asked, names, view, None)
            async with self._asking.seat(view.principal):
                found = await self._find_offsets(asked, names, view)
                async with self._building.seat(view.principal):
                    return await self._build(asked, names, view, found)

        return await self._single_flight.get(question, work)

    # --- answers ---------------------------------------------------------------------------------------------

    async def _build(
        self,
        asked: Metadata,
        names: NamedTopics,
        view: MetadataView,
        found: dict[TopicPartition, Offsets | None] | None,
    ) -> EncodedAnswer:
        """Encode an answer to a ``metadata`` request; other tasks run in between. ``found``: the offsets by
        partition; None if they were not asked for. Every client is told of the gateways."""
        image = self._shell.cluster.image
        steps = Steps()
        topics = []
        for topic in self._topics(asked, names):
            await steps.advance()
            if view.of_topic(topic.name):
                topics.append(await self._topic(topic, found, steps))
        servers = [
            encode_part(ServerInfo(s.node, s.url, s.broker_epoch, s.fenced, s.rack, s.draining))
            for s in (image.servers if view.of_servers else ())
        ]
        content = [
            encode_fields(cluster=image.cluster, index=image.index),
            encode_array("topics", topics),
            encode_array("servers", servers),
        ]
        if gateways := self._shell.cluster.gateways:
            content.append(encode_array("gateways", [encode_part(gateway) for gateway in gateways]))
            return EncodedAnswer(5, b"".join(content))
        return EncodedAnswer(4, b"".join(content))

    def _topics(self, asked: Metadata, names: NamedTopics) -> Sequence[TopicState]:
        """Return the topics that a request names, each once, or all topics. Names and ids without a topic are left
        out."""
        cluster = self._shell.cluster
        if asked.all_topics:
            return cluster.image.topics
        found = (*map(cluster.topic_named, names.topics), *map(cluster.topic, names.topic_ids))
        return list({topic.topic_id: topic for topic in found if topic is not None}.values())

    async def _topic(
        self, topic: TopicState, found: dict[TopicPartition, Offsets | None] | None, steps: Steps
    ) -> bytes:
        """Return one topic of an answer, encoded. Without offsets it comes from the cache."""
        if found is None:
            known = await self._encode(topic, steps)
            return b"".join([known.head, encode_array("partitions", known.partitions)])
        partitions: list[bytes] = []
        for number, state in enumerate(topic.partitions):
            await steps.advance()
            offsets = found.get(TopicPartition(topic.topic_id, number))
            partitions.append(encode_part(_partition_info(number, state, offsets)))
        return b"".join([_topic_head(topic), encode_array("partitions", partitions)])

    async def _encode(self, topic: TopicState, steps: Steps) -> _Encoded:
        """Return the encoding of a topic without offsets, from the cache if the topic has not changed. Only
        partitions that have changed are encoded again."""
        known = self._encoded.get(topic.topic_id)
        if known is not None and known.topic is topic:
            return known
        before = [] if known is None else known.partitions
        old = () if known is None else known.topic.partitions
        partitions: list[bytes] = []
        for number, state in enumerate(topic.partitions):
            if number < len(old) and old[number] is state:
                partitions.append(before[number])
                continue
            await steps.advance()
            partitions.append(encode_part(_partition_info(number, state, None)))
        known = self._encoded[topic.topic_id] = _Encoded(topic, _topic_head(topic), partitions)
        if len(self._encoded) > 2 * len(self._shell.cluster.image.topics):
            self._forget_deleted()
        return known

    def _forget_deleted(self) -> None:
        """Remove deleted topics from the cache."""
        for topic_id in [id for id in self._encoded if self._shell.cluster.topic(id) is None]:
            del self._encoded[topic_id]

    # --- offsets ---------------------------------------------------------------------------------------------

    async def _find_offsets(
        self, asked: Metadata, names: NamedTopics, view: MetadataView
    ) -> dict[TopicPartition, Offsets | None]:
        """Ask the leaders for the offsets of all partitions of the answer, and return those reported within
        ``ANSWER_TIMEOUT_S``, by partition. A partition whose offsets are not known is missing or has None."""
        want = Want(view.principal)
        began = trio.current_time()
        steps = Steps()
        try:
            with trio.move_on_at(began + ANSWER_TIMEOUT_S):
                wait_until = began + OFFSETS_TIMEOUT_S
                if asked.consistency == "eventual":
                    await self._find_unproved(asked, names, view, want)
                    wait_until = began
                for topic in self._topics(asked, names):
                    await steps.advance()
                    for number in range(len(topic.partitions) if view.of_topic(topic.name) else 0):
                        key = TopicPartition(topic.topic_id, number)
                        if key not in want.found:
                            await self._until(want, LOOKED_UP_AT_ONCE - 1)
                            await self._look_up(key, want, wait_until)
                await self._until(want, 0)
        finally:
            want.given_up = True
        return want.found

    async def _find_unproved(self, asked: Metadata, names: NamedTopics, view: MetadataView, want: Want) -> None:
        """Add the offsets to ``want`` that leaders report without a proof that they still lead. Partitions of servers
        that do not know this request, and those whose leader has changed, are left for look-ups with a proof."""
        keys = [
            TopicPartition(topic.topic_id, number)
            for topic in self._topics(asked, names)
            if view.of_topic(topic.name)
            for number in range(len(topic.partitions))
        ]
        found, failed = await self._log_bounds.find(keys, view.principal)
        want.found.update(found)
        want.silent.update((node, None) for node, error in failed.items() if error.code in SILENCE)

    async def _look_up(self, key: TopicPartition, want: Want, leader_until: float) -> None:
        """Wait until the partition has a leader, at most until ``leader_until`` (trio's clock), and queue a look-up
        of its offsets for ``want``. Queues nothing if there is no leader, or if its server did not answer for another
        partition."""
        with trio.move_on_at(leader_until):
            while (leader := self._leader(key)) is None and trio.current_time() < leader_until:
                await self._shell.wait_change()
        if leader and leader not in want.silent:
            self._lookups.want(want, key, leader)
            self._send()

    def _leader(self, key: TopicPartition) -> NodeId | None:
        """Return the leader of a partition; None if it has none now, "" if the partition was deleted."""
        state = self._shell.cluster.state(*key)
        return "" if state is None else state.leader

    async def _until(self, want: Want, left: int) -> None:
        """Wait until at most ``left`` look-ups of ``want`` are queued or under way."""
        while want.left > left:
            event = self._waiting[want] = trio.Event()
            try:
                await event.wait()
            finally:
                del self._waiting[want]

    def _send(self) -> None:
        """Start a task that sends queued look-ups, after all requests of this turn of the event loop have added
        theirs. Does nothing if the task is about to run."""
        if not self._sending:
            self._sending = True
            self._shell.nursery.start_soon(self._send_all)

    async def _send_all(self) -> None:
        """Send the look-ups that may be under way now; other tasks run in between."""
        self._sending = False
        for number, lookup in enumerate(list(self._lookups.next_to_send()), 1):
            self._start(lookup)
            if number % SENT_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()

    def _start(self, lookup: Lookup) -> None:
        """Ask the leader of a partition for its earliest and latest offsets, and process the two answers together
        when both have come."""
        answers: dict[str, Message | TidelogError] = {}

        def on_answer(at: str, answer: Message | TidelogError) -> None:
            answers[at] = answer
            if len(answers) == 2:
                self._on_offsets(lookup, answers["earliest"], answers["latest"])

        for at in ("earliest", "latest"):
            request = ListOffset(*lookup.key, at, isolation="uncommitted")
            self._shell.ask_leader(request, OFFSETS_TIMEOUT_S, lambda answer, at=at: on_answer(at, answer))  # type: ignore[misc]

    def _on_offsets(self, lookup: Lookup, earliest: Message | TidelogError, latest: Message | TidelogError) -> None:
        """End a look-up with the answers of the leader, wake the requests that wait for it, and send the next
        look-ups."""
        both = None
        if isinstance(earliest, OffsetAnswer) and isinstance(latest, OffsetAnswer):
            both = Offsets(earliest, latest)
        silent = any(isinstance(one, TidelogError) and one.code in SILENCE for one in (earliest, latest))
        for want in self._lookups.on_answer(lookup, both, silent=silent):
            if (event := self._waiting.get(want)) is not None:
                event.set()
        self._send()


def _topic_head(topic: TopicState) -> bytes:
    """Return the beginning of an encoded topic, a map of four keys: everything but its last key, ``partitions``."""
    fields = encode_fields(topic_id=topic.topic_id, name=topic.name, config=topic.config.texts())
    return map_head(4) + fields


def _partition_info(index: int, state: PartitionState, offsets: Offsets | None) -> PartitionInfo:
    """Return the part of an answer about one partition. ``offsets`` None: they are unknown, or were not asked for
    (-1)."""
    return PartitionInfo(
        index,
        state.replicas,
        state.isr,
        state.leader or "",
        state.leader_epoch,
        state.epoch,
        log_start=-1 if offsets is None else offsets.earliest.offset,
        high_watermark=-1 if offsets is None else offsets.latest.offset,
        elr=state.elr,
        doubtful=state.doubtful,
        learners=state.learners,
        successor=state.successor or "",
        target=state.target,
        read_only=state.read_only,
        paused=state.paused,
        sealing=state.sealing,
        stable=None if offsets is None else offsets.latest.stable,
        bytes=-1 if offsets is None else offsets.earliest.bytes,
    )


def names_of(asked: Metadata) -> NamedTopics:
    """Return the topics that a ``metadata`` request names, each once; none if it is for all topics. Raises
    ``MALFORMED`` if it names more than ``MAX_NAMES``, or a consistency that offsets do not have."""
    if asked.consistency not in CONSISTENCIES:
        text = f"consistency is one of {', '.join(CONSISTENCIES)}, not {asked.consistency!r}"
        raise refuse("MALFORMED", text)
    if asked.all_topics:
        return NamedTopics()
    names = NamedTopics(tuple(dict.fromkeys(asked.topics)), tuple(dict.fromkeys(asked.topic_ids)))
    if (count := len(names.topics) + len(names.topic_ids)) > MAX_NAMES:
        raise refuse("MALFORMED", f"the request names {count} topics; at most {MAX_NAMES} at a time")
    return names
