"""The commands and the program of docs/tutorials/jobs.md do what the page says, typed one after another."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
import tidelog.sync
from pages.place import ROOT, Place, blocks
from pages.terminal import Terminal, terminal

pytestmark = pytest.mark.real
PAGE = (ROOT / "docs" / "tutorials" / "jobs.md").read_text()
DEV, BY_HAND, TRIES, ADD, SLOW, KILL, QUICK, LOOK = blocks(PAGE, "sh")
(WORKER,) = blocks(PAGE, "python")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A place with the cluster that the page starts first, and its program."""
    place = Place(tmp_path_factory.mktemp("jobs"))
    (place.folder / "worker.py").write_text(place.own(WORKER))
    with terminal(place) as first:
        first.run(f"{DEV.strip()} &")
        first.wait("Ctrl-C ends it.")
        yield place


@pytest.fixture
def typed(place: Place) -> Iterator[Terminal]:
    """The second terminal. The topics that are made there are deleted."""
    with terminal(place) as second:
        yield second
    with tidelog.sync.connect(place.url) as log:
        for name in {topic.name for topic in log.topics.list()} & {"tries", "jobs"}:
            log.topics.delete(name)


def test_one_of_two_appends_that_expect_the_same_offset_wins(typed: Terminal) -> None:
    said = typed.run(BY_HAND)
    assert said.count('"offset":0') == 1
    assert all(words in said for words in ('"status":412', "UNEXPECTED_OFFSET", "the log ends at 1, not 0"))
    assert typed.run(TRIES) == "ada was first\n"


def test_each_job_is_done_once_though_a_worker_is_killed(place: Place, typed: Terminal) -> None:
    typed.run(ADD)
    typed.run(SLOW)
    typed.wait("ada has resize-1\n")
    typed.run(KILL)
    said = typed.run(QUICK)
    assert said.count(" ends: every job is done") == 2  # two processes may mix up the ends of their lines
    assert typed.run(LOOK).endswith("\n6\n")

    claimed: dict[str, list[str]] = {}
    done = {}
    with tidelog.sync.connect(place.url) as log:
        for record in log.consume("jobs", start="earliest", end="latest"):
            event = json.loads(record.value or b"")
            if event["what"] == "claimed":
                assert event["job"] not in done
                claimed.setdefault(event["job"], []).append(event["by"])
            elif event["what"] == "done":
                assert event["job"] not in done and event["by"] == claimed[event["job"]][-1]
                done[event["job"]] = event["by"]
    assert done.keys() == claimed.keys() == {f"resize-{n}" for n in range(1, 7)}
    first, *others = claimed["resize-1"]
    assert first == "ada" and others and "ada" not in done.values()


def test_no_two_workers_have_the_same_job(place: Place, typed: Terminal) -> None:
    """Four workers want the same 60 jobs, which take no time. Here no claim becomes too old."""
    assert "LEASE_S = 5 " in WORKER
    (place.folder / "patient.py").write_text(place.own(WORKER).replace("LEASE_S = 5 ", "LEASE_S = 1000 "))
    jobs = [f"resize-{n}" for n in range(100, 160)]
    typed.run(ADD.replace(" 1 2 3 4 5 6", "".join(job.replace("resize-", " ") for job in jobs)))
    said = typed.run("".join(f"python patient.py w{n} 0 &\n" for n in range(4)) + "wait")
    assert sorted(re.findall(r"has (resize-\d+)", said)) == sorted(re.findall(r"has done (resize-\d+)", said)) == jobs


def test_a_worker_that_is_too_slow_finds_the_claim_of_another(place: Place, typed: Terminal) -> None:
    """The worker's claim is the second record of the list, and the other's is appended while it works."""
    typed.run(ADD.replace(" 1 2 3 4 5 6", " 1"))
    typed.run("python worker.py ada 5 &")
    typed.wait("ada has resize-1\n")
    other = json.dumps({"what": "claimed", "job": "resize-1", "by": "grace"})
    with tidelog.sync.connect(place.url) as log:
        with log.producer("jobs") as producer:
            taken = producer.send(other.encode(), partition=0, expected_offset=2)
        said = typed.wait("ada ", 30)
        said += typed.wait("resize-1\n")
        assert "was too slow: another worker has" in said
        events = [record.value for record in log.consume("jobs", start=taken.offset + 1, end="latest")]
    assert not any(b"done" in (value or b"") for value in events)
