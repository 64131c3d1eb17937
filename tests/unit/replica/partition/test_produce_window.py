"""The window of a producer: as many batches in flight on a partition as its leaders remember, and not one more.
Tests ``partition/produce_admission.py`` and ``produce/router.py``."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from itertools import count

import pytest
from scenarios.two_logs import KEY, flush, leader_over, log_of
from tidelog.batch.format import NewRecord, encode_batch, read_header
from tidelog.errors import TidelogError, from_info, refuse
from tidelog.sansio.effects import Post
from tidelog.types import PRODUCER_WINDOW, Acks
from tidelog.wire.messages import ProduceAck, Produced, ProducePart
from tidelog_replica.partition.leader_replica import LeaderReplica
from tidelog_replica.replication.producer_state import ProducerState, SequenceRefusal

from unit.gateway.produce.test_router import CLIENT, OTHER, Bench, batch, parts, produce, sent_batches

WINDOW = [batch(sequence) for sequence in range(PRODUCER_WINDOW)]
DEATHS = 1000


# --- at the gateway --------------------------------------------------------------------------------------


def test_a_gateway_forwards_no_batch_beyond_the_window_of_its_producer() -> None:
    bench = Bench("r1", "r1")
    bench.router.on_produce(CLIENT, produce(*WINDOW, batch(PRODUCER_WINDOW)), bench.now)
    (send,), acks = bench.flush()
    assert sent_batches(send) == WINDOW
    (ack,) = acks[CLIENT]
    assert ack.error is not None and (ack.id, ack.error.code) == (PRODUCER_WINDOW + 1, "OVERLOADED")
    assert not ack.error.unknown_outcome and ack.error.detail == {"window": str(PRODUCER_WINDOW)}
    bench.router.on_produced("r1", Produced((ProduceAck(parts(send)[0].id, 0, 1, "all/os"),)), bench.now)
    bench.router.on_produce(CLIENT, produce(batch(PRODUCER_WINDOW), first_id=9), bench.now)
    (send,), _ = bench.flush()
    assert sent_batches(send) == [batch(PRODUCER_WINDOW)], "a settled batch makes room"


def test_the_window_is_that_of_one_producer_on_one_partition() -> None:
    bench = Bench("r1", "r1")
    bench.use(CLIENT, 8)
    bench.router.on_produce(CLIENT, produce(*WINDOW), bench.now)
    other_id, plain = batch(producer_id=8), [batch(producer_id=0)] * 9
    bench.router.on_produce(CLIENT, produce(other_id, *plain, first_id=20), bench.now)
    bench.router.on_produce(CLIENT, produce(*WINDOW, first_id=40, partition=1), bench.now)
    bench.router.on_produce(OTHER, produce(*WINDOW), bench.now)
    sends, acks = bench.flush()
    assert not acks
    assert sum(len(sent_batches(send)) for send in sends) == 3 * PRODUCER_WINDOW + 10


@pytest.mark.parametrize("repeated", [True, False])
def test_an_ack_says_duplicate_only_where_the_client_has_sent_the_batch_before(repeated: bool) -> None:
    bench = Bench("r1")
    bench.router.on_produce(CLIENT, produce(batch()), bench.now)
    (send,), _ = bench.flush()
    if repeated:
        bench.router.on_peer_down("r1", bench.now)
        bench.router.on_peer_up("r1")
        (send,), _ = bench.flush()
    ack = ProduceAck(parts(send)[0].id, 3, 1, "all/os", duplicate=True)
    bench.router.on_produced("r1", Produced((ack,)), bench.now)
    _, acks = bench.flush()
    assert [(ack.offset, ack.duplicate) for ack in acks[CLIENT]] == [(3, not repeated)]


# --- at the leader ---------------------------------------------------------------------------------------


def send(leading: LeaderReplica, source: int, sequence: int, acks: Acks, producer_id: int = 7) -> str:
    """Produce a batch; the code of its refusal, "" if it is taken."""
    data = batch(sequence, producer_id=producer_id)
    leading.produce(source, ProducePart(1, *KEY, acks, 0, len(data), leading.core.leader_epoch), data, 0.0)
    leading.write(0.0)
    acked = [ack for post in leading._effects.drain() if isinstance(post, Post) for ack in post.message.acks]  # type: ignore[union-attr]
    return next((ack.error.code for ack in acked if ack.error is not None), "")


@pytest.mark.parametrize("acks", [Acks.ALL, Acks.LEADER])
def test_a_leader_appends_no_batch_beyond_the_window_whatever_connections_bring_it(acks: Acks) -> None:
    leading = leader_over(log_of(), 1)
    for sequence in range(PRODUCER_WINDOW):
        assert send(leading, sequence % 2, sequence, acks) == ""
    assert send(leading, 2, PRODUCER_WINDOW, acks) == "OVERLOADED"
    assert leading.log_end == PRODUCER_WINDOW, "nothing was appended"
    assert send(leading, 2, 0, acks) == "", "a copy takes no place"
    assert send(leading, 2, 0, acks, producer_id=8) == "", "each producer has a window of its own"
    flush(leading._log)
    leading.settle(0.0)
    assert send(leading, 2, PRODUCER_WINDOW, acks) == "", "the oldest is acked"


def test_without_acks_there_is_no_window() -> None:
    leading = leader_over(log_of(), 1)
    assert [send(leading, 1, sequence, Acks.NONE) for sequence in range(3 * PRODUCER_WINDOW)] == [""] * (
        3 * PRODUCER_WINDOW
    )


# --- a gateway and a thousand leaders that die -----------------------------------------------------------


class Leaders:
    """A partition whose leader dies again and again. The next one has all that is committed, and some of the rest."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.log: list[bytes] = []
        self.committed = 0
        self.state = ProducerState()
        self.came: deque[tuple[ProducePart, bytes]] = deque()
        """On the link from the gateway."""
        self.acks: deque[ProduceAck] = deque()
        """On the link to the gateway."""
        self.waiting: list[tuple[int, int, bool]] = []
        """Acks that wait: end offset, id, whether the batch was in the log."""

    def run(self) -> list[ProduceAck]:
        """Take some of the batches that came, commit some, and acknowledge; the acks that arrive."""
        for _ in range(self.rng.randint(0, len(self.came))):
            self.produce(*self.came.popleft())
        self.committed = self.rng.randint(self.committed, len(self.log))
        due = [each for each in self.waiting if each[0] <= self.committed]
        self.waiting = [each for each in self.waiting if each[0] > self.committed]
        self.acks += [ProduceAck(id, end - 1, 1, "all/os", known) for end, id, known in due]
        return [self.acks.popleft() for _ in range(self.rng.randint(0, len(self.acks)))]

    def produce(self, part: ProducePart, data: bytes) -> None:
        """Take a batch as ``LeaderReplica`` does, or refuse it."""
        header = read_header(data)
        found = self.state.check(header)
        if found is None and self.state.would_push_out(header, self.committed):
            found = SequenceRefusal("OVERLOADED", "the window is full")
        if isinstance(found, SequenceRefusal):
            self.acks.append(ProduceAck(part.id, error=refuse(found.code, found.message).to_info()))
            return
        base = len(self.log) if found is None else found.base_offset
        if found is None:
            self.log.append(data)
            self.state.record(header, base)
        self.waiting.append((base + 1, part.id, found is not None))

    def lose_links(self) -> None:
        """What is on its way is lost."""
        self.came.clear()
        self.acks.clear()
        self.waiting.clear()

    def die(self) -> None:
        """Another replica leads."""
        del self.log[self.rng.randint(self.committed, len(self.log)) :]
        headers = [read_header(data)._replace(base_offset=offset) for offset, data in enumerate(self.log)]
        self.state = ProducerState(headers)
        self.lose_links()


class Sending:
    """A client that sends batch after batch under one id, ``window`` at a time, each once, but what was refused."""

    def __init__(self, bench: Bench, window: int) -> None:
        self.bench = bench
        self.window = window
        self.numbers: Iterator[int] = count(1)
        self.flight: dict[int, int] = {}
        """Sequences in flight, by the id of their part."""
        self.acked: dict[int, int] = {}
        """Offset of each acked sequence."""
        self.duplicates = 0
        self.errors: list[TidelogError] = []
        self.again: list[int] = []
        """Sequences that were refused: to be sent again when nothing is in flight."""
        self.repeats = False
        self.next = 0

    def send(self) -> None:
        """Fill the window. After a refusal: when nothing is in flight any more, and then what was refused alone."""
        if self.flight and (self.again or self.repeats):
            return
        self.repeats = bool(self.again)
        sequences = sorted(self.again) or range(self.next, self.next + self.window - len(self.flight))
        self.again = []
        for sequence in sequences:
            self.next = max(self.next, sequence + 1)
            number = next(self.numbers)
            self.flight[number] = sequence
            self.bench.router.on_produce(CLIENT, produce(numbered(sequence), first_id=number), self.bench.now)

    def on_acks(self, acks: list[ProduceAck]) -> None:
        for ack in acks:
            sequence = self.flight.pop(ack.id)
            if ack.error is None:
                self.acked[sequence] = ack.offset
                self.duplicates += ack.duplicate
            else:
                self.errors.append(from_info(ack.error))
                self.again.append(sequence)


def numbered(sequence: int) -> bytes:
    return encode_batch([NewRecord(b"%d" % sequence)], producer_id=7, base_sequence=sequence)


def leaders_die(window: int, seed: int) -> tuple[Sending, Leaders]:
    """A client behind a gateway whose leader dies a thousand times, each time in the middle of something."""
    rng = random.Random(seed)
    bench, leaders = Bench("r1"), Leaders(rng)
    client = Sending(bench, window)

    def forward() -> None:
        sends, acks = bench.flush()
        client.on_acks(acks.get(CLIENT, []))
        for send in sends:
            leaders.came.extend(zip(parts(send), sent_batches(send), strict=True))

    for death in range(2, DEATHS + 2):
        old, new = f"r{(death - 2) % 3 + 1}", f"r{(death - 1) % 3 + 1}"
        for _ in range(rng.randint(1, 5)):
            bench.advance(0.05)
            client.send()
            forward()
            bench.router.on_produced(old, Produced(tuple(leaders.run())), bench.now)
            forward()
            if rng.random() < 0.2:
                leaders.lose_links()
                bench.router.on_peer_down(old, bench.now)
                bench.router.on_peer_up(old)
        leaders.die()
        if rng.random() < 0.5:
            bench.router.on_peer_down(old, bench.now)
            bench.router.on_peer_up(old)
        bench.lead(death, new)
    return client, leaders


@pytest.mark.parametrize("window", [1, PRODUCER_WINDOW])
def test_no_batch_comes_back_unverified_or_as_a_copy_because_the_gateway_repeated_it(window: int) -> None:
    client, leaders = leaders_die(window, seed=window)
    assert len(client.acked) > DEATHS // 2 and not client.errors and not client.duplicates
    assert all(leaders.log[offset] == numbered(sequence) for sequence, offset in client.acked.items())
    assert leaders.log == [numbered(sequence) for sequence in range(len(leaders.log))], "each once, in order"


def test_a_client_that_does_not_know_the_window_is_refused_before_anything_is_in_doubt() -> None:
    client, leaders = leaders_die(PRODUCER_WINDOW + 4, seed=3)
    assert {error.code for error in client.errors} == {"OVERLOADED"}
    assert len(client.acked) > DEATHS and not client.duplicates
    assert leaders.log == [numbered(sequence) for sequence in range(len(leaders.log))], "each once, in order"
