"""The history checker against histories with one planted fault each, and against sound ones."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tidelog.verify.anomalies import KINDS
from tidelog.verify.checker import check
from tidelog.verify.history import FAILED, OK, UNKNOWN, Latest, Loss, OperationHistory, ReadCall, Row, SendCall


def sound_history(seed: int, sends: int = 60) -> OperationHistory:
    """Two partitions, three producers (one not idempotent), two consumers that read everything; some sends are
    refused, some time out and landed, some time out and did not."""
    rng = random.Random(seed)
    history = OperationHistory(healthy=[(0.0, float(sends))])
    logs: dict[str, list[Row]] = {"a/0": [], "b/0": []}
    numbers: dict[tuple[str, str], int] = {}
    for step in range(sends):
        process, partition = rng.choice(["p1", "p2", "p3"]), rng.choice(["a/0", "b/0"])
        number = numbers[process, partition] = numbers.get((process, partition), -1) + 1
        result = rng.choices([OK, UNKNOWN, FAILED], [8, 2, 1])[0]
        values = tuple(f"{process}:{partition}:{number}:{i}".encode() for i in range(rng.randint(1, 3)))
        end = len(logs[partition])
        conditional = end if process == "p1" and rng.random() < 0.5 else -1
        if result == OK or (result == UNKNOWN and rng.random() < 0.5):
            logs[partition] += [(end + i, value) for i, value in enumerate(values)]
        start = float(step)
        history.operations.append(
            SendCall(
                process, partition, number, values, start, start + 0.5, result, end if result == OK else -1,
                idempotent=process != "p3", expected_offset=conditional,
            )
        )  # fmt: skip
        end = len(logs[partition])
        history.operations.append(Latest("k1", partition, end, start + 0.6, start + 0.7, linearizable=True))
    for consumer in ("k1", "k2"):
        for partition, rows in logs.items():
            position = 0
            while position < len(rows):
                taken = tuple(rows[position : position + rng.randint(1, 9)])
                history.operations.append(ReadCall(consumer, partition, position, taken, 900.0, 901.0))
                position += len(taken)
    history.final = logs
    history.dumps = {node: {p: list(rows) for p, rows in logs.items()} for node in ("r1", "r2")}
    return history


def kinds(history: OperationHistory) -> set[str]:
    return {anomaly.kind for anomaly in check(history)}


def sends(history: OperationHistory, result: str = OK) -> list[int]:
    """Places of the sends of several records to a/0 with that result."""
    return [
        place
        for place, op in enumerate(history.operations)
        if isinstance(op, SendCall) and op.result == result and op.partition == "a/0"
    ]


def without_reads(history: OperationHistory) -> None:
    history.operations = [op for op in history.operations if not isinstance(op, ReadCall)]


def drop_tail(history: OperationHistory, count: int) -> None:
    history.final["a/0"] = history.final["a/0"][:-count]
    for dump in history.dumps.values():
        dump["a/0"] = dump["a/0"][:-count]


def plant_lost_write(history: OperationHistory) -> None:
    without_reads(history)
    drop_tail(history, 12)


def plant_phantom(history: OperationHistory) -> None:
    rows = history.final["a/0"]
    rows.append((len(rows), b"nobody sent this"))


def plant_wrong_bytes(history: OperationHistory) -> None:
    """Every copy of a record has changed, after readers were shown it."""
    for rows in (history.final["a/0"], *(dump["a/0"] for dump in history.dumps.values())):
        rows[2] = (2, b"other bytes")


def plant_vanished(history: OperationHistory) -> None:
    """A consumer saw a record of an unknown send that the log does not hold at the end."""
    end = len(history.final["a/0"])
    history.operations.append(SendCall("p9", "a/0", 0, (b"p9",), 950.0, 951.0, UNKNOWN))
    history.operations.append(ReadCall("k9", "a/0", end, ((end, b"p9"),), 952.0, 953.0))


def plant_failed_seen(history: OperationHistory) -> None:
    place = sends(history)[-1]
    op = history.operations[place]
    assert isinstance(op, SendCall)
    history.operations[place] = replace(op, result=FAILED, offset=-1)


def plant_conflict_of_replicas(history: OperationHistory) -> None:
    history.dumps["r2"]["a/0"][3] = (3, b"other bytes")


def plant_conflict_of_ack(history: OperationHistory) -> None:
    place = sends(history)[0]
    op = history.operations[place]
    assert isinstance(op, SendCall)
    history.operations[place] = replace(op, offset=op.offset + 1, expected_offset=-1)
    history.operations = [o for i, o in enumerate(history.operations) if i <= place or not isinstance(o, Latest)]


def plant_order_of_one_producer(history: OperationHistory) -> None:
    """A later unknown send of an idempotent producer stands before an earlier one."""
    end = len(history.final["b/0"])
    history.operations.append(SendCall("p9", "b/0", 0, (b"p9 first",), 950.0, 951.0, UNKNOWN))
    history.operations.append(SendCall("p9", "b/0", 1, (b"p9 second",), 950.0, 951.0, UNKNOWN))
    history.final["b/0"] += [(end, b"p9 second"), (end + 1, b"p9 first")]


def plant_order_in_real_time(history: OperationHistory) -> None:
    end = len(history.final["b/0"])
    history.operations.append(SendCall("p8", "b/0", 0, (b"p8",), 950.0, 951.0, OK, end + 1))
    history.operations.append(SendCall("p9", "b/0", 0, (b"p9",), 952.0, 953.0, OK, end))
    history.final["b/0"] += [(end, b"p9"), (end + 1, b"p8")]


def plant_consumer_back(history: OperationHistory) -> None:
    rows = history.final["a/0"]
    history.operations.append(ReadCall("k1", "a/0", 2, tuple(rows[2:4]), 960.0, 961.0))


def plant_consumer_skip(history: OperationHistory) -> None:
    rows = history.final["a/0"]
    history.operations.append(ReadCall("k9", "a/0", 0, (rows[0], rows[2]), 960.0, 961.0))


def plant_duplicate(history: OperationHistory) -> None:
    rows = history.final["a/0"]
    value = next(value for _, value in rows if value.startswith(b"p1"))
    rows.append((len(rows), value))


def plant_stale_latest(history: OperationHistory) -> None:
    history.operations.append(Latest("k9", "a/0", 1, 970.0, 971.0, linearizable=True))


def plant_gap(history: OperationHistory) -> None:
    """Offsets are skipped, all records are there."""
    rows = history.final["a/0"]
    history.operations.append(SendCall("p9", "a/0", 0, (b"p9",), 950.0, 951.0, UNKNOWN))
    rows.append((len(rows) + 1, b"p9"))


def plant_wrong_partition(history: OperationHistory) -> None:
    history.operations.append(SendCall("p9", "a/0", 0, (b"p9",), 950.0, 951.0, UNKNOWN))
    rows = history.final["b/0"]
    rows.append((len(rows), b"p9"))


def plant_no_progress(history: OperationHistory) -> None:
    history.healthy = [(1000.0, 1040.0)]
    for number in range(8):
        start = 1000.0 + 5 * number
        history.operations.append(SendCall("p9", "a/0", number, (b"%d" % number,), start, start + 5, UNKNOWN))


def plant_double_win(history: OperationHistory) -> None:
    end = len(history.final["a/0"])
    history.operations.append(SendCall("p8", "a/0", 0, (b"p8",), 950.0, 952.0, OK, end, expected_offset=end))
    history.operations.append(SendCall("p9", "a/0", 0, (b"p9",), 950.0, 952.0, OK, end, expected_offset=end))
    history.final["a/0"] += [(end, b"p8"), (end + 1, b"p9")]


PLANTS = [
    (plant_lost_write, "lost_write"),
    (plant_phantom, "phantom"),
    (plant_wrong_bytes, "phantom"),
    (plant_vanished, "vanished"),
    (plant_failed_seen, "failed_seen"),
    (plant_conflict_of_replicas, "conflict"),
    (plant_conflict_of_ack, "conflict"),
    (plant_order_of_one_producer, "order"),
    (plant_order_in_real_time, "order"),
    (plant_consumer_back, "consumer_skip"),
    (plant_consumer_skip, "consumer_skip"),
    (plant_duplicate, "duplicate"),
    (plant_stale_latest, "stale_latest"),
    (plant_gap, "gap"),
    (plant_wrong_partition, "wrong_partition"),
    (plant_no_progress, "no_progress"),
    (plant_double_win, "double_win"),
]


@pytest.mark.parametrize(("plant", "kind"), PLANTS, ids=lambda p: getattr(p, "__name__", p))
def test_planted_fault_is_flagged_with_exactly_its_kind(plant, kind):
    for seed in range(5):
        history = sound_history(seed)
        plant(history)
        assert kinds(history) == {kind}


def test_every_kind_has_a_plant():
    letters = {f"A{number}" for number in range(1, 14)}
    assert {kind for _, kind in PLANTS} == {kind for kind, row in KINDS.items() if row.letter in letters}


def test_sound_histories_are_not_flagged():
    for seed in range(1000):
        assert check(sound_history(seed, sends=30)) == []


def test_long_healthy_span_without_attempts_is_no_anomaly():
    history = sound_history(1)
    history.healthy = [(2000.0, 2100.0)]
    assert check(history) == []


def test_a_send_that_hangs_from_before_while_others_succeed_is_no_anomaly():
    history = sound_history(1)
    history.operations.append(SendCall("p9", "a/0", 0, (b"p9",), 1.0, 59.0, UNKNOWN))
    assert check(history) == []


def lost_tail(history: OperationHistory, epoch: int) -> int:
    """The last records of a/0, all acked in that leader epoch, are gone; where they began."""
    history.operations = [
        replace(op, epoch=epoch) if isinstance(op, SendCall) and op.result == OK else op for op in history.operations
    ]
    history.operations = [
        replace(op, epochs=(epoch,) * len(op.rows)) if isinstance(op, ReadCall) else op for op in history.operations
    ]
    drop_tail(history, 12)
    return len(history.final["a/0"])


def test_an_unclean_election_may_lose_exactly_the_reported_records():
    for seed in range(20):
        history = sound_history(seed)
        start = lost_tail(history, epoch=4)
        assert {"lost_write", "vanished"} <= kinds(history)
        history.losses = [Loss("a/0", 4, start)]
        assert "lost_write" in kinds(history), "the loss came before those records"
        history.losses = [Loss("a/0", 5, start + 1)]
        assert kinds(history), "the loss begins behind the first of them"
        history.losses = [Loss("b/0", 5, start)]
        assert "lost_write" in kinds(history), "another partition's loss"
        history.losses = [Loss("a/0", 5, start)]
        assert kinds(history) == set()


def test_other_records_may_stand_where_lost_ones_were_shown():
    history = sound_history(3)
    start = lost_tail(history, epoch=4)
    history.losses = [Loss("a/0", 5, start)]
    history.operations.append(SendCall("p9", "a/0", 0, (b"p9",), 950.0, 951.0, OK, start, epoch=5))
    history.operations.append(ReadCall("k9", "a/0", start, ((start, b"p9"),), 952.0, 953.0, (5,)))
    history.final["a/0"].append((start, b"p9"))
    assert kinds(history) == set()


def test_each_loss_at_an_offset_may_have_shown_another_record_but_one_leader_epoch_shows_one():
    history = sound_history(3)
    start = lost_tail(history, epoch=4)
    history.losses = [Loss("a/0", 5, start), Loss("a/0", 6, start)]
    history.operations.append(SendCall("p9", "a/0", 0, (b"p9",), 950.0, 951.0, OK, start, epoch=5))
    history.operations.append(ReadCall("k9", "a/0", start, ((start, b"p9"),), 952.0, 953.0, (5,)))
    assert kinds(history) == set(), "shown in epoch 4 and in epoch 5, and both are lost"
    history.operations.append(SendCall("p8", "a/0", 0, (b"p8",), 950.0, 951.0, UNKNOWN))
    history.operations.append(ReadCall("k8", "a/0", start, ((start, b"p8"),), 954.0, 955.0, (5,)))
    assert kinds(history) == {"conflict"}


def test_records_of_a_deleted_topic_are_gone_by_right_but_not_changed():
    history = sound_history(1)
    del history.final["a/0"]
    for dump in history.dumps.values():
        del dump["a/0"]
    history.deleted = {"a/0"}
    assert kinds(history) == set()
    history.operations.append(ReadCall("k9", "a/0", 0, ((0, b"other"),), 952.0, 953.0))
    assert "conflict" in kinds(history)


def test_a_linearizable_answer_covers_every_earlier_one():
    history = sound_history(2)
    end = len(history.final["a/0"])
    history.operations.append(Latest("k8", "a/0", end, 970.0, 971.0, linearizable=True))
    assert kinds(history) == set()
    history.operations.append(Latest("k9", "a/0", end + 1, 972.0, 973.0, linearizable=True))
    history.operations.append(Latest("k8", "a/0", end, 972.5, 973.5, linearizable=True))
    assert kinds(history) == set(), "they overlap in time"
    history.operations.append(Latest("k8", "a/0", end, 974.0, 975.0, linearizable=True))
    assert kinds(history) == {"stale_latest"}


def test_offsets_that_the_cluster_took_itself_are_no_gap():
    history = sound_history(4)
    end = len(history.final["a/0"])
    history.operations.append(SendCall("p9", "a/0", 0, (b"p9",), 950.0, 951.0, OK, end + 2))
    history.operations.append(ReadCall("k9", "a/0", end, ((end + 2, b"p9"),), 952.0, 953.0))
    for rows in (history.final["a/0"], *(dump["a/0"] for dump in history.dumps.values())):
        rows.append((end + 2, b"p9"))
    assert {"gap", "consumer_skip"} <= kinds(history)
    history.control = {"a/0": {end, end + 1}}
    assert kinds(history) == set()


def test_records_that_only_the_leader_acked_may_be_gone():
    history = sound_history(1)
    without_reads(history)
    drop_tail(history, 12)
    assert kinds(history) == {"lost_write"}
    history.operations = [
        replace(op, level="leader") if isinstance(op, SendCall) else op for op in history.operations
    ]  # fmt: skip
    assert kinds(history) == set()
