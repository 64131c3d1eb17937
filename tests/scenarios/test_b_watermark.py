"""B. The high watermark: what counts as committed, and who may know."""

from __future__ import annotations

from support.replica_network import Net, cluster, code
from tidelog.batch.format import NewRecord, encode_batch, read_header, stamp_prefix
from tidelog.errors import TidelogError
from tidelog.types import Acks, TopicConfig
from tidelog.wire.messages import Fetch, FetchAnswer, FetchedPart, ListOffset, Notify, OffsetAnswer, Read
from tidelog_replica.partition.follower_replica import FetchOutcome, RetryLater

from scenarios.stage import Stage
from scenarios.two_logs import agree, follower_over, headers, leader_over, log_of, take, values


def arrive_but_lose_the_answer(net: Net, name: str, call) -> None:
    """Deliver a call to its server and lose the answer."""
    source = net.names.index(name)
    effects = net.nodes[call.to].on_request(source, call.token, call.message, net.now)
    net._take(call.to, [effect for effect in effects if getattr(effect, "id", None) != call.token])
    net.run()


def new_leader_with_a_stale_hw() -> Net:
    """Let r2 lead with m0, m1 and m2, all committed, while it knows only that m0 is. r3, which was out of the ISR,
    has m0 and m1, and its next fetch is in flight."""
    net = cluster(3, config=TopicConfig(min_insync_replicas=2))
    net.send("r1", b"m0")
    net.advance(4)
    net.hold = lambda name, call: isinstance(call.message, Fetch) and call.message.parts[0].offset >= 2
    net.send("r1", b"m1", acks=Acks.LEADER)
    net.send("r1", b"m2", acks=Acks.LEADER)
    ((_, of_r2),) = [(name, call) for name, call in net.held if name == "r2"]
    net.held.clear()
    net.hold = lambda name, call: isinstance(call.message, Fetch) and call.message.parts[0].durable >= 3
    net.deliver("r2", of_r2)
    net.run()
    net.push(isr=("r1", "r2"))
    net.run()
    for name, call in net.held:
        arrive_but_lose_the_answer(net, name, call)
    net.held.clear()
    assert (net.partition("r1").high_watermark, net.partition("r2").high_watermark) == (3, 1)
    net.hold = lambda name, call: isinstance(call.message, Fetch) and name == "r3"
    net.stop("r1")
    net.lead("r2", "r2")
    assert net.values("r2") == [b"m0", b"m1", b"m2"]
    assert net.values("r3") == [b"m0", b"m1"]
    assert net.partition("r2").high_watermark == 1
    return net


def test_B3_past_a_stale_hw_but_not_past_the_start_of_the_epoch_nobody_joins():
    net = new_leader_with_a_stale_hw()
    ((name, fetch),) = [(name, call) for name, call in net.held if name == "r3" and call.to == "r2"]
    assert fetch.message.parts[0].durable == 2, "past the HW that r2 knows, short of the three records of its log"
    net.held.clear()
    before = len(net.proposals)
    net.deliver(name, fetch)
    net.run()
    net.advance(1.0)
    assert len(net.proposals) == before
    assert net.state().isr == ("r2",)
    for name, call in net.held:
        net.deliver(name, call)
    net.hold = lambda name, call: False
    net.run()
    net.advance(1.0)
    assert net.state().isr == ("r2", "r3")
    assert net.values("r3") == [b"m0", b"m1", b"m2"]
    assert net.partition("r2").high_watermark == 3


def test_B12_while_a_lagging_replica_joins_the_hw_never_goes_back():
    stage = Stage()
    first, (second, third) = stage.first, stage.others
    stage.put(b"m0")
    stage.until(lambda: stage.hw(second) == stage.hw(third) == 1)
    stage.cut(third, first)
    for number in range(30):
        stage.put(*(b"%d.%d" % (number, record) for record in range(300)))
    assert third not in stage.now.isr
    known: dict[str, list[int]] = {first: [], second: [], third: []}

    def look() -> None:
        for node, seen in known.items():
            seen.append(stage.hw(node))

    stage.always(look)
    stage.network.heal()
    for number in range(20):
        stage.put(b"more %d" % number)
    stage.until(lambda: third in stage.now.isr)
    stage.put(b"last")
    stage.until(lambda: stage.hw(third) == stage.hw(first) == 9022)
    assert all(seen == sorted(seen) for seen in known.values())
    assert known[third][0] == 1
    stage.settle()


def test_B13_a_hw_above_the_followers_log_end_counts_only_up_to_there():
    """The follower is far behind: each answer brings a part of the log, and the HW of all of it."""
    stage = Stage()
    first, (_, third) = stage.first, stage.others
    stage.cut(third, first)
    for number in range(30):
        stage.put(*(b"%d.%d" % (number, record) for record in range(1000)))
    told: list[tuple[int, int, int]] = []

    def watch(sender: str, receiver: str, message: object) -> bool:
        if receiver == third and isinstance(message, FetchAnswer):
            told.extend((part.high_watermark, stage.hw(third), stage.end(third)) for part in message.parts)
        return False

    stage.hold(watch)
    stage.network.heal()
    stage.until(lambda: stage.hw(third) == 30_000)
    early = [(hw, end) for leaders, hw, end in told if 0 < end < leaders]
    assert early and all(hw == end for hw, end in early)
    stage.settle()


def answered(part: FetchedPart, data: bytes):
    """Give a follower that holds m0 this answer to its fetch."""
    log = log_of((1, b"m0"))
    follower = follower_over(log, 1)
    agree(follower, leader_over(log_of((1, b"m0")), 1))
    return follower, log, take(follower, follower.fetch_request(), part, data)


def stamped(offset: int, value: bytes) -> bytes:
    """Return a batch as the leader of epoch 1 stores it at its offset."""
    batch = encode_batch([NewRecord(value)])
    return stamp_prefix(offset, 1, read_header(batch).crc32c) + bytes(batch[16:])


def test_B13_the_hw_of_one_answer_is_bounded_by_what_the_answer_brings():
    data = stamped(1, b"m1")
    follower, log, outcome = answered(FetchedPart("t", 0, 1, 100, 0, len(data)), data)
    assert outcome is FetchOutcome.FETCH_AGAIN
    assert values(log) == [b"m0", b"m1"]
    assert follower.high_watermark == 2


def test_B14_an_answer_that_starts_above_the_expected_offset_is_refused():
    data = stamped(2, b"m2")
    follower, log, outcome = answered(FetchedPart("t", 0, 1, 3, 0, len(data)), data)
    assert isinstance(outcome, RetryLater)
    assert headers(log) == [(0, 1)]
    assert follower.high_watermark == 0


def test_B15_a_leader_outside_the_isr_refuses_to_lead_and_says_so():
    net = cluster(3)
    net.send("r1", b"m0")
    net.lead("r2", "r1 r3")
    (event,) = [event for name, event in net.happened("leadership_refused") if name == "r2"]
    assert event.fields["isr"] == ["r1", "r3"]
    assert net.partition("r2").leading is None
    assert code(net.acks[net.send("r2", b"m1")]) == "NOT_LEADER"
    assert code(net.answers[net.read("r2", 0)]) == "NOT_LEADER"
    assert net.values("r2") == [b"m0"]
    assert "r2" not in net.state().isr, "and it never adds itself"
    net.lead("r1", "r1 r3")
    assert code(net.acks[net.send("r1", b"m2")]) == ""


def test_B17_readers_of_a_new_leader_that_does_not_know_the_hw_wait_and_never_see_the_end_go_back():
    stage = Stage(min_insync_replicas="2")
    first, (second, _) = stage.first, stage.others
    stage.put(b"m0")
    stage.until(lambda: stage.hw(second) == 1)
    stage.hold(
        lambda sender, receiver, m: (
            isinstance(m, FetchAnswer | Notify) and any(p.high_watermark == 2 for p in m.parts)
        )
    )
    stage.put(b"m1")
    latest = ListOffset(*stage.key, "latest")
    assert stage.ask(first, latest) == OffsetAnswer(2, 0)
    assert stage.hw(second) == 1
    unknown = stage.hold(lambda sender, receiver, m: receiver == second and isinstance(m, Fetch))
    stage.kill(first)
    stage.until(lambda: stage.leads(second))
    for question in (latest, Read(*stage.key, 2, 0), Read(*stage.key, 1, 0)):
        answer = stage.ask(second, question)
        assert isinstance(answer, TidelogError) and answer.code == "OFFSET_NOT_AVAILABLE" and answer.retriable
    known = stage.ask(second, Read(*stage.key, 0, -1))
    assert known.payload and known.high_watermark == -1, "what is committed is read, but no end is told"
    unknown.release()
    stage.until(lambda: stage.hw(second) == 2)
    assert stage.ask(second, latest).offset == 2
    stage.settle()
