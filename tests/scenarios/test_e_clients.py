"""E. Clients: the meaning of a position and of an acknowledged offset, whatever happens to the servers."""

from __future__ import annotations

import pytest
from tidelog.batch.format import decode_batch, split
from tidelog.client.core.consumer import ConsumerCore, Open
from tidelog.errors import TidelogError
from tidelog.types import Position
from tidelog.verify.history import OK
from tidelog.wire.messages import Delivery, Produce, Produced, Read, ReadAnswer

from scenarios.stage import Stage


def read(stage: Stage, node: str, position: Position) -> ReadAnswer | TidelogError:
    at = Read(*stage.key, position.offset, position.leader_epoch, any_replica=node != stage.leader)
    answer = stage.ask(node, at)
    assert isinstance(answer, ReadAnswer | TidelogError)
    return answer


@pytest.mark.parametrize("copied", [0, 2, 4])
def test_E2_with_many_batches_in_flight_a_new_leader_keeps_their_order_and_sees_no_gap(copied: int):
    """Of six batches without an ack the followers have some, others only the leader, and the last are in flight to it
    when it dies."""
    stage = Stage(min_insync_replicas="2")
    stage.send(b"m", by="writer", window=6)
    stage.until(lambda: stage.hw(stage.first) == 1)
    old = stage.first
    stage.hold(lambda sender, receiver, message: sender == old and isinstance(message, Produced))
    batches = [stage.send(b"%d" % number, by="writer") for number in range(copied)]
    stage.until(lambda: stage.hw(old) == 1 + copied)
    stage.cut(old, *stage.others)
    batches += [stage.send(b"%d" % number, by="writer") for number in range(copied, 4)]
    stage.until(lambda: stage.end(old) == 5)
    stage.hold(lambda sender, receiver, message: receiver == old and isinstance(message, Produce))
    batches += [stage.send(b"%d" % number, by="writer") for number in range(4, 6)]
    stage.kill(old)
    stage.until(lambda: all(batch.result for batch in batches))
    assert [(batch.result, batch.offset) for batch in batches] == [(OK, 1 + number) for number in range(6)]
    assert not [error for batch in batches for error in batch.errors if "SEQUENCE" in error]
    stage.restart(old)
    stage.settle()
    assert all(stage.values(node) == [b"m", *(b"%d" % number for number in range(6))] for node in stage.replicas)


@pytest.mark.parametrize("copied", [True, False], ids=["copied", "on the old leader only"])
def test_E3_of_two_writers_with_the_same_expected_offset_one_wins_whatever_the_failover(copied: bool):
    """The leader takes one writer's record and dies before its ack; the other writer's record has not come yet. Both
    try again at the next leader. If the first record was replicated, its copy gets an ack; if not, the first to
    arrive wins. The other writer is refused with the log end."""
    stage = Stage(min_insync_replicas="2")
    stage.put(b"m0", by="one")
    stage.put(b"m1", by="two")
    old = stage.first
    stage.hold(lambda sender, receiver, message: sender == old and isinstance(message, Produced))
    stage.hold(lambda sender, receiver, message: sender == "two" and receiver == old and isinstance(message, Produce))
    if not copied:
        stage.cut(old, *stage.others)
    writers = {name: stage.send(name.encode(), by=name, expected=2) for name in ("one", "two")}
    stage.until(lambda: stage.end(old) == 3)
    if copied:
        stage.until(lambda: stage.hw(old) == 3)
    stage.kill(old)
    stage.until(lambda: stage.leader in stage.others and stage.leads(stage.leader))
    assert stage.end(stage.leader) == (3 if copied else 2)
    stage.until(lambda: all(writer.result for writer in writers.values()))
    (winner,) = [name for name, writer in writers.items() if writer.result == OK]
    (loser,) = set(writers) - {winner}
    assert winner == "one" or not copied
    assert (writers[winner].offset, writers[loser].errors[-1]) == (2, "UNEXPECTED_OFFSET")
    stage.settle()
    assert all(stage.values(node) == [b"m0", b"m1", winner.encode()] for node in stage.replicas)


def test_E4_a_committed_position_beyond_the_end_after_an_unclean_election_is_an_error_and_no_reset():
    """A consumer has read and committed up to 3; then a server with one record must lead. The consumer gets the
    offset of the divergence, at the new end as well as when others have written there, and keeps its position."""
    stage = Stage(min_insync_replicas="1", flush="os", unclean_election="true")
    stage.put(b"m0")
    first, (second, third) = stage.first, stage.others
    stage.cut(first, second, third)
    stage.put(b"lost", b"lost too")
    committed = Position(0, 3)
    consumer = ConsumerCore("t", {0: committed}, {}, 1000, 0.1, lambda: 1)
    assert [type(effect) for effect in consumer.on_link_up({}, 0.0)] == [Open]
    stage.kill(first)
    stage.until(lambda: stage.leader in stage.others and stage.leads(stage.leader))
    for written in range(3):
        answer = read(stage, stage.leader, committed)
        assert isinstance(answer, TidelogError) and answer.code == "LOG_TRUNCATED", written
        assert (answer.detail["end_offset"], answer.detail["leader_epoch"]) == (1, 0)
        stage.put(b"n%d" % written, by="other")
    consumer.on_delivery(Delivery(1, error=answer.to_info()), 0.0)
    for _ in range(2):
        with pytest.raises(TidelogError, match="t/0 at offset 3") as told:
            consumer.take_batch()
    assert (told.value.code, told.value.detail["end_offset"]) == ("LOG_TRUNCATED", 1)
    assert consumer.positions == {0: committed}
    assert consumer.on_tick(1e6) == [] and not consumer.is_finished
    stage.settle()


def test_E5_an_acknowledged_offset_is_where_every_read_finds_the_record():
    """On every server, before and after changes of the leader, each record of a batch is at the offset of the ack."""
    stage = Stage(min_insync_replicas="2")
    acked: dict[int, bytes] = {}

    def put(*values: bytes) -> None:
        batch = stage.put(*values)
        acked.update({batch.offset + n: value for n, value in enumerate(values)})

    def everybody_agrees() -> None:
        for offset, value in acked.items():
            for node in stage.replicas:
                answer = read(stage, node, Position(-1, offset))
                assert isinstance(answer, ReadAnswer) and not isinstance(answer.payload, list)
                found = {r.offset: r.value for _, data in split(answer.payload) for r in decode_batch(data)}
                assert found[offset] == value

    put(b"a")
    put(b"b", b"c")
    for _ in range(2):
        leader = stage.leader
        stage.kill(leader)
        stage.until(lambda old=leader: stage.leader not in ("", old) and stage.leads(stage.leader))
        put(b"after " + leader.encode(), b"and more after " + leader.encode())
        stage.restart(leader)
        stage.until(stage.in_sync)
        stage.until(lambda: len({stage.hw(node) for node in stage.replicas}) == 1)
        everybody_agrees()
    assert len(acked) == 7
    stage.settle()
