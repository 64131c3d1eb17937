"""What ``tidelog why slow`` makes of pages of metrics. Tests ``tidelog.explain.slow``."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidelog.explain.explanation import Explanation
from tidelog.explain.slow import (
    ACKS,
    COMMITS,
    FETCHES,
    FLUSHES,
    HOLDS,
    LATE,
    RETRIES,
    Times,
    evidence_of,
    explain_slow,
    look_again,
    look_at,
)
from tidelog.wire.messages import MetricsAnswer, PartitionInfo, TopicInfo

TOPIC = TopicInfo(
    "abc",
    "orders",
    {"flush": "fsync", "min_insync_replicas": "2", "commit_rule": "isr"},
    (
        PartitionInfo(0, ("r1", "r2", "r3"), ("r1", "r2"), "r1", 3, 7),
        PartitionInfo(1, ("r2", "r3"), ("r2", "r3"), "r2", 3, 7),
    ),
)


def histogram(name: str, count: int, mean_ms: float) -> str:
    """A histogram whose times are all the same."""
    seconds = mean_ms / 1000
    lines = [f'{name}_bucket{{le="{at}"}} {count if seconds <= at else 0}' for at in (0.001, 0.01, 0.1)]
    return "\n".join(
        [*lines, f'{name}_bucket{{le="+Inf"}} {count}', f"{name}_sum {count * seconds}", f"{name}_count {count}\n"]
    )


def server(count: int, *, commit: float = 0, fetch: float = 0, flush: float = 0, late: float = 0) -> str:
    times = ((COMMITS, commit), (FETCHES, fetch), (FLUSHES, flush))
    return "".join(histogram(name, count, ms) for name, ms in times if ms) + f"{LATE} {late}\n"


def explain(*answers: dict[str, MetricsAnswer], topic: TopicInfo = TOPIC) -> Explanation:
    """Return the explanation of what processes answered, by name, when they were asked once or twice."""
    looks = {node: look_at(answer) for node, answer in answers[0].items()}
    for again in answers[1:]:
        looks |= {node: look_again(looks[node], answer, 1.0) for node, answer in again.items()}
    return explain_slow(evidence_of(topic, (0,), "orders/0", looks))


def answers(
    pages: dict[str, str], recent: dict[str, str] | None = None, recent_ms: int = 7000
) -> dict[str, MetricsAnswer]:
    """Return answers with these pages of metrics. Without ``recent`` they are those of an earlier release."""
    if recent is None:
        return {node: MetricsAnswer(page) for node, page in pages.items()}
    return {
        node: MetricsAnswer(page, recent=recent[node], recent_ms=recent_ms + len(node))
        for node, page in pages.items()
    }


def pages(ack: float, **servers: str) -> dict[str, str]:
    return {"": histogram(ACKS, 10, ack), **servers}


@pytest.mark.parametrize(
    ("ack", "leader", "follower", "station", "words"),
    [
        (50, {"commit": 5, "flush": 2}, {"fetch": 1, "flush": 1}, "gateway", "the gateway and the way to the leader"),
        (
            50,
            {"commit": 48, "flush": 40},
            {"fetch": 1, "flush": 4},
            "leader_disk",
            "the disk of the leader (flush): 40 ms",
        ),
        (
            50,
            {"commit": 48, "flush": 4},
            {"fetch": 1, "flush": 40},
            "follower_disk",
            "the disk of a follower (flush): 40 ms",
        ),
        (
            50,
            {"commit": 48, "flush": 4},
            {"fetch": 30, "flush": 4},
            "replication",
            "the followers' fetches and the leader",
        ),
    ],
)
def test_the_station_that_takes_the_most(
    ack: float, leader: dict[str, float], follower: dict[str, float], station: str, words: str
) -> None:
    found = explain(answers(pages(ack, r1=server(10, **leader), r2=server(10, **follower))))
    stations = found.facts["stations_ms"]
    assert max(stations, key=stations.get) == station and abs(sum(stations.values()) - ack) < 0.01
    assert found.sentences[0].startswith(f"Most of the time of an ack of orders/0 goes to {words}")
    assert found.next_steps


def test_the_times_of_the_last_seconds_and_how_many_these_are() -> None:
    whole = {"": histogram(ACKS, 100, 80), "r1": server(100, commit=70), "r2": server(100, fetch=60)}
    recent = {"": histogram(ACKS, 10, 2), "r1": server(10, commit=1), "r2": server(10, fetch=1)}
    found = explain(answers(whole, recent))
    assert found.facts["acks"]["count"] == 10 and found.facts["acks"]["mean_ms"] == 2
    servers = found.facts["servers"]
    assert servers["r1"]["commit"]["mean_ms"] == 1 and servers["r2"]["fetch"]["mean_ms"] == 1
    assert (found.facts["interval_s"], servers["r1"]["interval_s"]) == (7, 7.002)
    assert "in the last 7.0 s." in found.sentences[2]
    assert found.sentences[3].startswith("Leader r1, from append to commit, in the last 7.0 s: 1 ms on average")


def test_processes_of_an_earlier_release_count_between_two_looks() -> None:
    first = answers({"": histogram(ACKS, 100, 80), "r1": server(100, commit=70)})
    later = answers({"": f"{ACKS}_sum 8.02\n{ACKS}_count 110\n", "r1": f"{COMMITS}_sum 7.01\n{COMMITS}_count 110\n"})
    found = explain(first, later)
    assert found.facts["acks"]["count"] == 10 and found.facts["acks"]["mean_ms"] == 2
    assert found.facts["servers"]["r1"]["commit"]["mean_ms"] == 1 and found.facts["interval_s"] == 1
    assert "in the last 1.0 s." in found.sentences[2]


def test_only_one_server_of_an_earlier_release_counts_between_two_looks() -> None:
    pages = {"": histogram(ACKS, 100, 80), "r1": server(100, commit=70)}
    first = answers(pages, {"": histogram(ACKS, 10, 2), "r1": server(10, commit=1)}) | answers(
        {"r2": server(100, fetch=60)}
    )
    found = explain(first, answers({"r2": f"{FETCHES}_sum 6.005\n{FETCHES}_count 101\n"}))
    assert found.facts["interval_s"] == 7 and found.facts["servers"]["r2"]["interval_s"] == 1
    assert found.facts["servers"]["r2"]["fetch"]["mean_ms"] == 5
    unanswered = explain(first)
    assert "Follower r2, since its start: a fetch 60 ms on average" in unanswered.sentences[4]


@pytest.mark.parametrize("older", [False, True])
def test_without_recent_acks_all_since_the_start_count(older: bool) -> None:
    both = pages(50, r1=server(10, commit=5))
    found = (
        explain(answers(both), answers(both))
        if older
        else explain(answers(both, {"": "", "r1": server(1, commit=9)}))
    )
    assert found.facts["interval_s"] == 0 and found.facts["acks"]["mean_ms"] == 50
    assert found.facts["servers"]["r1"]["commit"]["mean_ms"] == 5
    assert "since the start of each process." in found.sentences[2]


def with_partition(**changes: object) -> TopicInfo:
    return replace(TOPIC, partitions=(replace(TOPIC.partitions[0], **changes), TOPIC.partitions[1]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words", "step"),
    [
        ({"leader": "", "isr": ()}, "Nobody leads orders/0: no batch gets an ack there.", "'tidelog why orders/0'"),
        ({"isr": ("r1",)}, "orders/0 has too few replicas in sync for acks 'all': such", "'tidelog why orders/0'"),
        ({"paused": True}, "orders/0 is paused: no batch gets an ack there.", "'tidelog topics resume orders'"),
        ({"read_only": True}, "orders/0 is read-only: batches are refused", "'tidelog topics set-readonly orders"),
    ],
)
def test_a_partition_that_takes_no_batches_comes_first_and_no_station_is_named(
    changes: dict[str, object], words: str, step: str
) -> None:
    """The acks that the gateway counts are those of other partitions."""
    found = explain(answers(pages(7, r1=server(10, commit=5, flush=2))), topic=with_partition(**changes))
    assert found.sentences[0].startswith(words) and found.next_steps[0].startswith(step)
    assert found.sentences[1].startswith("No station is named") and not found.facts["stations_ms"]
    assert "goes to" not in " ".join(found.sentences) and len(found.next_steps) == 1
    nothing = explain(answers({"": "", "r1": ""}), topic=with_partition(**changes))
    assert nothing.sentences[0].startswith(words) and "No batch has been acked" in nothing.sentences[1]


def test_leaders_that_have_counted_no_commit_lately_are_compared_since_the_start() -> None:
    whole = {"": histogram(ACKS, 100, 80), "r1": server(100, commit=70)}
    found = explain(answers(whole, {"": histogram(ACKS, 10, 2), "r1": ""}))
    assert found.sentences[0] == "In the last 7.0 s no ack was counted by r1, where orders/0 is led."
    assert found.facts["acks"]["mean_ms"] == 80 and found.facts["servers"]["r1"]["commit"]["mean_ms"] == 70
    assert found.sentences[1].startswith("Most of the time of an ack of orders/0 goes to the followers' fetches")


@pytest.mark.parametrize(("commits", "words"), [(0, "no ack"), (9, "only 9 acks of 100")])
def test_leaders_of_few_of_the_acks_are_not_compared_with_the_gateway(commits: int, words: str) -> None:
    whole = {"": histogram(ACKS, 100, 80), "r1": server(commits, commit=70)}
    found = explain(answers(whole, {"": histogram(ACKS, 10, 2), "r1": ""}))
    assert found.sentences[1] == (
        f"No station is named: r1 counted {words} since their start, so the times of the gateway are those of other"
        " leaders."
    )
    assert found.facts["stations_ms"] == {}
    assert found.next_steps == ("Ask again while records are written to orders/0.",)


def test_a_leader_that_did_not_answer() -> None:
    found = explain(answers({"": histogram(ACKS, 100, 80)}, {"": histogram(ACKS, 10, 2)}))
    assert found.sentences[0] == "No station is named: r1, where orders/0 is led, did not answer."


def test_without_any_ack_nothing_is_known() -> None:
    assert (
        explain(answers({"": "", "r1": ""})).sentences[0].startswith("No batch has been acked through this gateway")
    )


def test_each_server_and_what_held_batches_up() -> None:
    gateway = histogram(ACKS, 10, 50) + f'{HOLDS}{{principal="alice"}} 3\n{RETRIES}{{code="NOT_LEADER"}} 2\n'
    servers = {"r1": server(10, commit=5, flush=2), "r2": server(10, fetch=3, flush=2, late=0.3)}
    found = explain(answers({"": gateway, **servers}))
    text = " ".join(found.sentences)
    assert "Leader r1, from append to commit, since its start: 5 ms on average, 99 of 100 within 10 ms (10" in text
    assert "Follower r2, since its start: a fetch 3 ms on average" in text
    assert (
        "r2 is busy, or does not run all the time: in the last 10 s its work had to wait for 30 % of the time."
        in text
    )
    assert "The gateway held batches 3 times" in text and "repeated tries that failed: 2 NOT_LEADER." in text
    assert "1 partition of it lacks replicas in sync." in text
    assert found.next_steps[0].startswith("Give r2 more CPU")


def test_a_process_that_was_started_again_counts_from_its_start() -> None:
    assert Times(5, 1.0).since(Times(9, 3.0)) == Times(5, 1.0)
