"""Refused requests are recorded in the timeline and in histories with the principal that asked, and no client can
fill the timeline with them."""

from __future__ import annotations

import random

from support.controller_network import ControllerNet
from support.timeline_cluster import Pen, TimelineLog, cluster, happen, present
from tidelog.errors import refuse
from tidelog.sansio.effects import Call
from tidelog.timeline.records import decode, encode, subject_of
from tidelog.timeline.replay import past_after
from tidelog.types import TopicPartition
from tidelog.wire.messages import (
    ConfirmLeader,
    CreateTopic,
    DeleteTopic,
    Heartbeat,
    Hello,
    History,
    HistoryAnswer,
    ListOffset,
    Produce,
    ProduceAck,
    Produced,
    Reassign,
    Register,
    ReportLeader,
    ReportLoss,
    TransferLeader,
)
from tidelog_controller.active.refusal_log import (
    BURST,
    KEPT,
    KINDS,
    READY,
    REFILL_S,
    REPEAT_FIRST_S,
    TEXT,
    Refusal,
    RefusalLog,
    refusal_of,
)
from tidelog_controller.active.timeline_records import refused_record
from tidelog_controller.active.timeline_writer import ToServer
from tidelog_controller.metadata.state import MetadataState

STATE = MetadataState("test")


def refusal(number: int = 0, **fields: object) -> Refusal:
    values = {"op": "create_topic", "code": "TOPIC_EXISTS", "asker": "shell at 10.0.0.1:7", "topic": f"t{number}"}
    return Refusal(1000 + number, **{**values, **fields})  # type: ignore[arg-type]


def taken(refusals: RefusalLog) -> list[Refusal]:
    """Remove and return the refusals that are ready to be written."""
    return [refusals.pop_ready() for _ in range(len(refusals.ready))]


# --- how many --------------------------------------------------------------------------------------------


def test_the_first_refusal_of_a_kind_is_recorded_at_once_and_repeats_are_counted() -> None:
    refusals = RefusalLog()
    for number in range(5):
        again = refusal(0, asker=f"shell at 10.0.0.1:{number}", message=f"try {number}")
        refusals.record(again, STATE, float(number))
    assert [one.message for one in taken(refusals)] == ["try 0"]
    refusals.on_tick(REPEAT_FIRST_S - 0.1)
    assert not refusals.ready
    assert refusals.deadline() == REPEAT_FIRST_S
    refusals.on_tick(REPEAT_FIRST_S)
    (told,) = taken(refusals)
    assert (told.count, told.message, told.since_ms) == (4, "try 4", 1000)


def test_repeated_refusals_are_recorded_less_and_less_often_and_then_forgotten() -> None:
    refusals, now, told = RefusalLog(), 0.0, []
    while now < 86_400:
        refusals.record(refusal(), STATE, now)
        refusals.on_tick(now)
        told += [(now, one.count) for one in taken(refusals)]
        now += 5.0
    assert 24 <= len(told) < 32 and sum(count for _, count in told) > 16_000
    for _ in range(3):
        refusals.on_tick(refusals.deadline())
    assert taken(refusals)[0].count > 1
    assert refusals.deadline() == float("inf")
    refusals.record(refusal(), STATE, now)
    assert len(taken(refusals)) == 1, "a new one"


def test_many_kinds_of_refusals_are_recorded_together() -> None:
    refusals = RefusalLog()
    for number in range(3 * KINDS):
        refusals.record(refusal(number), STATE, 0.0)
    assert len(taken(refusals)) == BURST
    refusals.on_tick(REFILL_S)
    told = taken(refusals)
    assert (told[-1].op, told[-1].count) == ("others", 3 * KINDS - BURST)


def test_a_client_that_does_its_worst_writes_a_bounded_number_of_records() -> None:
    refusals, dice, now, told, asked = RefusalLog(), random.Random(1), 0.0, 0, 0
    while now < 7200:
        for _ in range(20):
            asked += 1
            refusals.record(refusal(dice.getrandbits(30), asker=f"{dice.random()}"), STATE, now)
        refusals.on_tick(now)
        assert refusals.deadline() > now
        told += len(taken(refusals))
        now += 2.0
    assert asked > 70_000 and told <= BURST + 7200 / REFILL_S + 1


def test_a_bounded_number_of_repeated_refusals_is_remembered() -> None:
    refusals = RefusalLog()
    for number in range(KINDS + 50):
        for kind in range(number + 1):
            refusals.record(refusal(kind), STATE, number * REFILL_S)
        refusals.on_tick(number * REFILL_S)
        taken(refusals)
    assert len(refusals._repeated) <= KINDS


def test_while_nothing_can_be_written_few_wait() -> None:
    refusals = RefusalLog()
    for number in range(10 * READY):
        refusals.record(refusal(number), STATE, number * REFILL_S)
        refusals.on_tick(number * REFILL_S)
        assert refusals.deadline() > number * REFILL_S
    assert len(refusals.ready) == READY


def test_refusals_for_the_state_of_the_controller_are_not_recorded() -> None:
    refusals = RefusalLog()
    for code in ("NOT_ACTIVE_CONTROLLER", "NO_QUORUM", "OVERLOADED"):
        refusals.record(refusal(code=code), STATE, 0.0)
    assert not refusals.ready


def test_a_long_text_is_cut() -> None:
    message = CreateTopic("x" * 5000, asker="y" * 5000)
    told = refusal_of(message, refuse("INVALID_TOPIC", "z" * 5000, why="v" * 5000), STATE, 0)
    assert len(encode(refused_record(told, STATE.timeline))) < 3000


def test_words_of_strangers_are_printable_and_bounded_wherever_they_stand() -> None:
    """A controller takes hellos and requests of anybody who reaches its port, to refuse them."""
    forged = "\x1b[2K\n\u202egone" + "\U0001f600" * 70_000
    peer = f"{forged} at 10.0.0.9:1"
    error = refuse("INVALID_TOPIC", forged, why=forged)
    requests = (
        CreateTopic(forged, asker=forged),
        TransferLeader(forged, 0, forged),
        Reassign(forged, 0, (forged,)),
        ListOffset(forged, 0, forged),
        Register(forged, forged),
        ReportLeader(forged, 1, forged, forged, ()),
        Hello(1, forged, forged, forged),
        Hello(1, "replica", forged, forged),
    )
    for request in requests:
        told = refusal_of(request, error, STATE, 0, peer)
        words = (told.message, told.asker, told.topic, told.topic_id, told.node, *told.evidence.values())
        assert all(len(text) <= TEXT and text.isprintable() for text in words), request.OP
        assert len(told.evidence) < 10
        record = refused_record(told, STATE.timeline)
        assert len(encode(record)) < 64 * TEXT and record["words"].isprintable(), request.OP


# --- the timeline ----------------------------------------------------------------------------------------


def test_refusals_stand_between_the_events_and_change_nothing() -> None:
    log, there = cluster(), TimelineLog()
    pen = Pen(log, there)
    pen.write()
    error = refuse("NOT_REPLICA", "r9 is no replica", leader="r1")
    wish = TransferLeader("__timeline", 0, "r9", asker="ann at 10.0.0.1:7")
    pen.timeline_writer.refusals.record(refusal_of(wish, error, log.state, 77_000), log.state, pen.now)
    happen(log, 2)
    pen.write()
    happen(log, 1)
    pen.write()
    (at,) = [i for i, record in enumerate(there.records()) if record["type"] == "refused"]
    told = there.records()[at]
    assert told["words"] == (
        "ann at 10.0.0.1:7 asked for transfer_leader for __timeline/0 and was refused: r9 is no replica (NOT_REPLICA)"
    )
    assert (told["op"], told["cause"], told["count"]) == ("transfer_leader", "NOT_REPLICA", 1)
    assert told["evidence"] == {"leader": "r1"} and subject_of(told) == "__timeline/0"
    assert there.numbers() == list(range(1, log.state.timeline.last + 1))
    assert past_after(there.records()).image() == present(log.state)
    assert decode(encode(told)) == told


def test_the_next_scribe_goes_on_behind_a_refusal() -> None:
    log, there = cluster(), TimelineLog()
    first = Pen(log, there)
    first.write()
    first.timeline_writer.refusals.record(refusal(), log.state, first.now)
    first.write()
    assert there.records()[-1]["type"] == "refused"
    happen(log, 3)
    Pen(log, there).write()
    assert there.numbers() == list(range(1, log.state.timeline.last + 1))


def test_a_refusal_whose_append_failed_is_appended_later_but_never_after_an_unknown_outcome() -> None:
    for unknown, times in ((False, 1), (True, 0)):
        log, there = cluster(), TimelineLog()
        pen = Pen(log, there)
        pen.write()
        pen.timeline_writer.refusals.record(refusal(), log.state, pen.now)
        (effect,) = pen.timeline_writer.act(log.state, pen.now, 0)
        assert isinstance(effect, ToServer) and isinstance(effect.message, Produce)
        error = refuse("OFFLINE", "not now", unknown_outcome=unknown).to_info()
        pen.timeline_writer.on_produced(Produced((ProduceAck(effect.message.parts[0].id, error=error),)), pen.now)
        pen.write()
        assert sum(record["type"] == "refused" for record in there.records()) == times
        assert not any(isinstance(one, Call) for one in pen.timeline_writer.act(log.state, pen.now, 0))


# --- the controller --------------------------------------------------------------------------------------


class Cluster(ControllerNet):
    """One controller, and after ``begin`` one server and one topic."""

    def begin(self) -> None:
        self.to = self.link(self.elect())
        self.answer(self.to, Register("r1", "ws://r1"))
        self.answer(self.to, CreateTopic("orders"))

    @property
    def told(self) -> list[Refusal]:
        return list(self.nodes["c1"].timeline_writer.refusals.ready)


def test_every_kind_of_refusal_is_recorded_with_its_principal() -> None:
    net = Cluster(1)
    net.begin()
    core = net.nodes["c1"]
    net.refusal(net.to, CreateTopic("orders", asker="ann at home"))
    net.refusal(net.to, DeleteTopic("__timeline", asker="bob at work"))
    net.refusal(net.to, Heartbeat("r1", 99))
    core.on_request(net.to, 900, Reassign("orders", 0, ("r1", "r1")), net.now, peer="g1")
    # a server's message goes through the log, and is refused when it is applied
    net.refusal(net.to, ReportLoss("r1", core.state.servers["r1"].broker_epoch, "t", 0, 0, 0, 1))
    assert [(one.op, one.code, one.asker, one.topic) for one in net.told] == [
        ("create_topic", "TOPIC_EXISTS", "ann at home", "orders"),
        ("delete_topic", "FORBIDDEN", "bob at work", "__timeline"),
        ("heartbeat", "FENCED_BROKER_EPOCH", "r1", ""),
        ("reassign", "INVALID_REPLICAS", "g1", "orders"),
        ("record_loss", "UNKNOWN_TOPIC", "r1", ""),
    ]


def test_a_refused_read_is_recorded_with_its_time_and_in_the_history_of_its_partition() -> None:
    net = Cluster(1)
    net.begin()
    core = net.nodes["c1"]
    key = TopicPartition(core.state.names["orders"], 0)
    life = core.state.servers["r1"].broker_epoch
    net.now += 1.0
    assert net.refusal(net.to, ConfirmLeader("r1", life, *key, 7)).code == "FENCED_LEADER_EPOCH"
    core.on_request(net.to, 901, History("no such topic", 0), net.now, wall_ms=5000, peer="g1")
    assert [(one.op, one.code, one.asker, one.topic, one.time_ms) for one in net.told] == [
        ("confirm_leader", "FENCED_LEADER_EPOCH", "r1", "orders", int(net.now * 1000)),
        ("history", "UNKNOWN_TOPIC", "g1", "", 5000),
    ]
    assert net.told[0].evidence == {"broker_epoch": str(life), "leader_epoch": "7"}
    answer = net.answer(net.to, History(*key))
    assert isinstance(answer, HistoryAnswer)
    assert (answer.entries[-1].event, answer.entries[-1].evidence["op"]) == ("refused", "confirm_leader")


def test_refused_hellos_are_recorded_by_role_and_not_by_the_names_that_they_try() -> None:
    net = Cluster(1)
    net.begin()
    core, error = net.nodes["c1"], refuse("WRONG_CLUSTER", "this is another cluster")
    for number in range(KEPT):
        hello = Hello(1, "replica", f"r{number}", "elsewhere")
        core.on_refused(hello, error, net.now, wall_ms=9, peer=f"r{number} at 10.0.0.1:{number}")
    core.on_refused(Hello(1, "x" * 999, "r1"), error, net.now, wall_ms=9, peer="r1 at 10.0.0.2:3")
    first, second = net.told
    assert (first.op, first.asker, first.node) == ("hello", "a replica at 10.0.0.1:0", "")
    assert first.evidence == {"node": "r0", "cluster": "elsewhere"}
    assert refused_record(first, core.state.timeline)["words"] == (
        "a replica at 10.0.0.1:0 asked for hello and was refused: this is another cluster (WRONG_CLUSTER)"
    )
    assert second.asker == "a stranger at 10.0.0.2:3"


def test_the_history_of_a_partition_holds_the_latest_refusals() -> None:
    net = Cluster(1)
    net.begin()
    key = TopicPartition(net.nodes["c1"].state.names["orders"], 0)
    for number in range(KEPT + 5):
        net.refusal(net.to, TransferLeader("orders", 0, f"r{number + 7}", asker="ann at home"))
    answer = net.answer(net.to, History(*key))
    assert isinstance(answer, HistoryAnswer)
    assert [entry.event for entry in answer.entries] == ["created"] + ["refused"] * KEPT
    last = answer.entries[-1]
    assert (last.cause, last.evidence["op"], last.evidence["asked_by"]) == (
        "UNKNOWN_SERVER", "transfer_leader", "ann at home",
    )  # fmt: skip


def test_a_controller_that_is_not_active_records_no_refusals() -> None:
    net = Cluster(3)
    active = net.elect()
    other = next(node for node in net.urls if node != active)
    net.refusal(net.link(other), CreateTopic("orders"))
    assert not net.nodes[other].timeline_writer.refusals.ready
