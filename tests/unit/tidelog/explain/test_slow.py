"""What ``tidelog why slow`` makes of pages of metrics. Tests ``tidelog.explain.slow``."""

from __future__ import annotations

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
)
from tidelog.wire.messages import PartitionInfo, TopicInfo

TOPIC = TopicInfo(
    "abc",
    "orders",
    {"flush": "fsync"},
    (PartitionInfo(0, ("r1", "r2", "r3"), ("r1", "r2"), "r1", 3, 7), PartitionInfo(1, ("r2",), ("r2",), "r2", 3, 7)),
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


def told(
    pages: dict[str, str], first: dict[str, str] | None = None, *, partitions: tuple[int, ...] = (0,)
) -> Explanation:
    return explain_slow(evidence_of(TOPIC, partitions, "orders/0", first or {}, pages, 1.0))


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
    found = told(pages(ack, r1=server(10, **leader), r2=server(10, **follower)))
    stations = found.facts["stations_ms"]
    assert max(stations, key=stations.get) == station and abs(sum(stations.values()) - ack) < 0.01
    assert found.sentences[0].startswith(f"Most of the time of an ack of orders/0 goes to {words}")
    assert found.next_steps


def test_the_times_between_two_looks() -> None:
    first = {"": histogram(ACKS, 100, 80), "r1": server(100, commit=70)}
    later = {
        "": f"{ACKS}_sum 8.02\n{ACKS}_count 110\n",
        "r1": f"{COMMITS}_sum 7.01\n{COMMITS}_count 110\n",
    }
    found = told(later, first)
    assert found.facts["acks"]["count"] == 10 and found.facts["acks"]["mean_ms"] == 2
    assert found.facts["servers"]["r1"]["commit"]["mean_ms"] == 1 and found.facts["interval_s"] == 1
    assert "in the last 1.0 s." in found.sentences[2]


def test_without_acks_between_two_looks_all_since_the_start_count() -> None:
    both = pages(50, r1=server(10, commit=5))
    found = told(both, both)
    assert found.facts["interval_s"] == 0 and found.facts["acks"]["mean_ms"] == 50
    assert "since the start of each process." in found.sentences[2]


def test_without_any_ack_nothing_is_known() -> None:
    assert told({"": "", "r1": ""}).sentences[0].startswith("No batch has been acked through this gateway")


def test_each_server_and_what_held_batches_up() -> None:
    gateway = histogram(ACKS, 10, 50) + f'{HOLDS}{{principal="alice"}} 3\n{RETRIES}{{code="NOT_LEADER"}} 2\n'
    found = told({"": gateway, "r1": server(10, commit=5, flush=2), "r2": server(10, fetch=3, flush=2, late=0.3)})
    text = " ".join(found.sentences)
    assert "Leader r1, from append to commit: 5 ms on average, 99 of 100 within 10 ms (10 times); a flush of" in text
    assert "Follower r2: a fetch 3 ms on average" in text
    assert (
        "r2 is busy, or does not run all the time: in the last 30 s its work had to wait for 30 % of the time."
        in text
    )
    assert "The gateway held batches 3 times" in text and "repeated tries that failed: 2 NOT_LEADER." in text
    assert "1 partition of it lacks replicas in sync." in text
    assert found.next_steps[0].startswith("Give r2 more CPU")


def test_a_process_that_was_started_again_counts_from_its_start() -> None:
    assert Times(5, 1.0).since(Times(9, 3.0)) == Times(5, 1.0)
