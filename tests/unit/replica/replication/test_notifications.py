"""Notices to idle followers: they carry what is new, and lost, doubled, late or overlapping ones do no harm (B16).
Tests ``replication/idle_followers.py`` and ``effects.py``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.replica_network import KEY, Net, cluster
from tidelog.sansio.effects import CONTROLLER, Call, Post
from tidelog.types import TopicConfig
from tidelog.wire.messages import Fetch, Message, Notify, NotifyPart
from tidelog_replica.config import ReplicaSettings
from tidelog_replica.effects import NOTICE_MAX_BYTES, Effects


def notices_of(net: Net, deaf: str = "") -> list[tuple[str, Notify]]:
    """From now on, every notice that is sent, with its receiver, before it arrives; none arrives at ``deaf``."""
    notices: list[tuple[str, Notify]] = []
    post = net._post

    def watch(source: int, message: Message) -> None:
        if isinstance(message, Notify):
            notices.append((net.names[source], message))
            if net.names[source] == deaf:
                return
        post(source, message)

    net._post = watch  # type: ignore[method-assign]
    return notices


def give(net: Net, name: str, notice: Notify) -> None:
    """Bring a notice to a follower."""
    net._take(name, net.nodes[name].on_request(0, None, notice, net.now))
    net.run()


def idle() -> tuple[Net, list[tuple[str, Notify]]]:
    """A cluster whose followers have fetched and idle."""
    net = cluster()
    net.send("r1", b"first")
    net.advance(1)
    return net, notices_of(net)


def test_an_idle_follower_is_sent_the_batches_and_its_next_fetch_acks_them() -> None:
    net, notices = idle()
    net.hold = lambda name, call: call.to != CONTROLLER
    net.send("r1", b"a")
    assert [(name, len(notice.parts)) for name, notice in notices] == [("r2", 1), ("r3", 1)]
    part = notices[0][1].parts[0]
    assert part.size > 0 and part.high_watermark == 1
    assert net.values("r2") == net.values("r3") == [b"first", b"a"]
    assert [call.message.parts[0].offset for _, call in net.held if isinstance(call.message, Fetch)] == [2, 2]


def test_a_single_record_costs_each_follower_a_notice_and_two_fetches() -> None:
    """One that says where it is now, and waits there; one that acks when the record is durable."""
    net, notices = idle()
    before = len(net.messages(Fetch))
    net.send("r1", b"a")
    assert len(notices) == 2
    assert len(net.messages(Fetch)) - before == 4


def test_where_appends_are_durable_at_once_one_fetch_does() -> None:
    net = cluster(config=TopicConfig(min_insync_replicas=2, flush="os"))
    net.send("r1", b"first")
    net.advance(1)
    before = len(net.messages(Fetch))
    assert net.acks[net.send("r1", b"a")].offset == 1
    assert len(net.messages(Fetch)) - before == 2


def test_the_high_watermark_comes_with_the_notice() -> None:
    net, _ = idle()
    behind = min(net.partition(name).high_watermark for name in ("r2", "r3"))
    assert behind == 0, "one of them has not heard of the commit yet"
    net.hold = lambda name, call: call.to != CONTROLLER
    net.send("r1", b"a")
    assert [net.partition(name).high_watermark for name in ("r2", "r3")] == [1, 1]


def test_B16_a_lost_notice_costs_an_idle_wait() -> None:
    net, _ = idle()
    net.drop_notify = True
    id = net.send("r1", b"a", timeout_ms=60_000)
    assert id not in net.acks
    net.drop_notify = False
    net.advance(3.4)
    assert net.acks[id].offset == 1


def test_B16_doubled_and_late_notices_change_nothing_and_cost_a_fetch_each() -> None:
    net, notices = idle()
    net.send("r1", b"a")
    net.send("r1", b"b")
    net.advance(1)
    before = len(net.messages(Fetch, "r2"))
    late = [notice for name, notice in notices if name == "r2"]
    for notice in late + late:
        give(net, "r2", notice)
    assert net.values("r2") == [b"first", b"a", b"b"]
    assert len(net.messages(Fetch, "r2")) - before <= 2 * len(late)
    assert not net.happened("fetched_data_refused")


def test_B16_a_notice_that_overtakes_the_answer_to_a_fetch_makes_that_too_late() -> None:
    net, notices = idle()
    net.hold = lambda name, call: name == "r2" and call.to != CONTROLLER
    net.drop_notify = True
    net.send("r1", b"a")
    net.drop_notify = False
    give(net, "r2", Notify((NotifyPart(*KEY, 0),)))
    ((name, fetch),) = net.held
    assert fetch.message.parts[0].offset == 1  # type: ignore[attr-defined]
    give(net, "r2", next(notice for name, notice in notices if name == "r2"))
    assert net.values("r2") == [b"first", b"a"]
    net.hold = lambda name, call: False
    net.deliver(name, fetch)
    net.run()
    net.send("r1", b"b")
    assert net.values("r2") == net.values("r1") == [b"first", b"a", b"b"]


def test_B16_a_notice_with_a_gap_before_it_is_not_taken() -> None:
    net = cluster()
    net.send("r1", b"first")
    net.advance(1)
    notices = notices_of(net, deaf="r2")
    net.send("r1", b"a")
    net.send("r1", b"b")
    assert net.values("r2") == [b"first"]
    net.hold = lambda name, call: name == "r2"
    give(net, "r2", [notice for name, notice in notices if name == "r3"][-1])
    assert net.values("r2") == [b"first"]
    assert len(net.held) == 1, "it asks for what it lacks"


def test_R6_a_notice_of_another_leader_epoch_is_ignored() -> None:
    net, notices = idle()
    net.send("r1", b"a")
    old = next(notice for name, notice in notices if name == "r3")
    net.lead("r2", "r1 r2 r3")
    net.advance(1)
    before = len(net.messages(Fetch, "r3"))
    (part,) = old.parts
    give(net, "r3", old)
    give(net, "r3", replace(old, parts=(replace(part, leader_epoch=9),)))
    assert len(net.messages(Fetch, "r3")) == before
    assert net.values("r3") == [b"first", b"a"]


def test_nothing_is_taken_from_a_notice_before_a_fetch_has_shown_that_the_logs_agree() -> None:
    net, notices = idle()
    net.hold = lambda name, call: name == "r2" and isinstance(call.message, Fetch)
    net.stop("r2")
    net.start("r2")
    net.send("r1", b"a")
    give(net, "r2", next(notice for name, notice in notices if name == "r3"))
    assert net.values("r2") == [b"first"]


def test_damaged_batches_in_a_notice_are_refused_and_fetched_again() -> None:
    net, notices = idle()
    net.drop_notify = True
    net.send("r1", b"a")
    notice = notices[0][1]
    payload = notice.payload
    assert isinstance(payload, list)
    damaged = bytearray(b"".join(payload))
    damaged[-1] ^= 1
    give(net, "r2", replace(notice, payload=bytes(damaged)))
    assert net.happened("fetched_data_refused")
    assert net.values("r2") == [b"first", b"a"]


def test_a_batch_too_large_for_a_notification_is_fetched() -> None:
    net = cluster(settings=ReplicaSettings(notify_max_bytes=500))
    net.send("r1", b"first")
    net.advance(1)
    notices = notices_of(net)
    net.send("r1", b"x" * 1000)
    assert [part.size for _, notice in notices for part in notice.parts] == [0, 0]
    assert net.values("r2") == [b"first", b"x" * 1000]


def test_one_notice_holds_a_bounded_number_of_bytes_for_all_partitions() -> None:
    outbox = Effects()
    batch = b"x" * (NOTICE_MAX_BYTES // 2)
    for number in range(3):
        outbox.notify("r2", 7, NotifyPart("t", number, 0, 5, len(batch)), [batch])
    (post,) = outbox.drain()
    assert isinstance(post, Post) and isinstance(post.message, Notify)
    assert [part.size for part in post.message.parts] == [len(batch), len(batch), 0]
    assert post.message.payload == [batch, batch]


def test_many_partitions_in_one_notice_are_asked_for_in_one_fetch() -> None:
    net = cluster(partitions=3)
    net.send("r1", b"first")
    net.advance(1)
    held: list[Any] = []

    def hold(name: str, call: Call) -> bool:
        held.append(call)
        return name == "r2" and isinstance(call.message, Fetch)

    net.hold = hold
    parts = tuple(NotifyPart(KEY.topic_id, number, 0) for number in range(3))
    give(net, "r2", Notify(parts))
    assert [len(call.message.parts) for call in held] == [3]
