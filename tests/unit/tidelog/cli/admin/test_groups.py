"""``tidelog groups`` and ``tidelog consume --group`` as a user types them, and the blocking members."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import tidelog.sync
from click.testing import CliRunner, Result
from support.fake_gateway import FakeCluster
from support.gateway_thread import served
from tidelog.cli.main import main
from tidelog.types import Position, TopicPartition
from tidelog.wire.messages import JoinGroup


@contextmanager
def filled() -> Iterator[tuple[FakeCluster, str]]:
    """Ten records in each of two partitions, at 0, 1, 2, … s; everything is for the instance ``i1``."""
    with served(partitions=2) as (cluster, url):
        with tidelog.sync.connect(url) as log, log.producer("orders") as producer:
            for n in range(20):
                producer.submit(b"%d" % (n // 2), partition=n % 2, timestamp_ms=1000 * (n // 2))
        topic_id = cluster.topics["orders"].topic_id
        cluster.group.give("i1", [TopicPartition(topic_id, 0), TopicPartition(topic_id, 1)])
        yield cluster, url


def run(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--gateway", url])


def described(url: str) -> dict[int, tuple[int, int, str]]:
    """Partition -> position, lag, member."""
    done = run(url, "groups", "describe", "g", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["partitions"]
    return {one["partition"]: (one["offset"], one["lag"], one["member"]) for one in found}


def test_a_group_goes_on_where_it_was_and_says_how_far_it_is() -> None:
    with filled() as (cluster, url):
        member = ("consume", "orders", "--group", "g", "--instance", "i1")
        first = run(url, *member, "--max", "5")
        assert (first.exit_code, len(first.stdout.split())) == (0, 5), first.output
        positions = described(url)
        assert sum(offset for offset, _, _ in positions.values()) == 5
        assert all(offset + lag == 10 and not member for offset, lag, member in positions.values())
        rest = run(url, *member, "--to-end")
        assert sorted(first.stdout.split() + rest.stdout.split()) == sorted([str(n) for n in range(10)] * 2)
        assert described(url) == {0: (10, 0, ""), 1: (10, 0, "")}
        joins = [message for message in cluster.seen if isinstance(message, JoinGroup)]
        assert len({join.member for join in joins}) == 2
        assert all(left.keep for left in cluster.group.left)


def test_reset_shows_what_it_would_do_and_does_it() -> None:
    with filled() as (cluster, url):
        reset = ("groups", "reset", "g", "--topic", "orders", "--to")
        would = run(url, *reset, "1970-01-01T00:00:04+00:00", "--partition", "1", "--dry-run", "--json")
        assert json.loads(would.stdout) == {
            "group": "g",
            "dry_run": True,
            "partitions": [{"topic": "orders", "partition": 1, "before": -1, "after": 4}],
        }
        beyond = run(url, *reset, "11")
        assert beyond.exit_code == 2 and "orders/0 ends at 10: no group can go on at 11" in beyond.output
        assert cluster.group.positions == {}
        assert run(url, *reset, "latest").exit_code == 0
        assert described(url) == {0: (10, 0, ""), 1: (10, 0, "")}
        done = run(url, "groups", "reset", "g", "--to", "7", "--json")
        assert [(p["before"], p["after"]) for p in json.loads(done.stdout)["partitions"]] == [(10, 7)] * 2
        rest = run(url, "consume", "orders", "--group", "g", "--instance", "i1", "--to-end")
        assert sorted(rest.stdout.split()) == sorted(["7", "8", "9"] * 2)
        assert run(url, "groups", "list").stdout.split()[-4:] == ["g", "empty", "0", "r1"]
        assert run(url, "groups", "delete", "g", "--yes").exit_code == 0
        assert described(url) == {}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ("groups describe other", 1, "tidelog groups list"),
        ("groups reset g --to latest", 2, "name a --topic"),
        ("groups reset g --to never", 2, "--to"),
        ("groups reset g --topic nosuch --to latest", 1, "UNKNOWN_TOPIC"),
        ("groups reset g --topic orders --partition 7 --to 0", 1, "partitions 0 to 1, not 7"),
        ("consume orders --group g --reverse", 2, "--group does not go with"),
        ("consume orders --instance i1", 2, "--instance is for members"),
        ("consume nosuch --group g", 1, "UNKNOWN_TOPIC"),
    ],
)
def test_errors_are_printed_with_the_next_step(arguments: str, code: int, words: str) -> None:
    with filled() as (_, url):
        done = run(url, *arguments.split())
        assert done.exit_code == code and words in done.output


def test_while_it_has_members_a_group_is_neither_reset_nor_deleted() -> None:
    with (
        filled() as (_, url),
        tidelog.sync.connect(url) as log,
        log.consume("orders", group="g", instance="i1") as member,
    ):
        next(member)
        for command in ("groups reset g --topic orders --to 0", "groups delete g --yes"):
            done = run(url, *command.split())
            assert done.exit_code == 1
            assert "GROUP_NOT_EMPTY" in done.output and "End its consumers first" in done.output
        assert [name for _, _, name in described(url).values()] == ["i1", "i1"]


def test_a_blocking_member_commits_and_its_hooks_run_where_they_may_block() -> None:
    with filled() as (cluster, url), tidelog.sync.connect(url) as log:
        told: list[tuple[str, int]] = []
        threads: list[threading.Thread] = []

        def on_assigned(partitions: list[tuple[str, int]]) -> None:
            threads.append(threading.current_thread())
            told.extend(partitions)
            log.topics.list()

        hooks = tidelog.Hooks(on_assigned=on_assigned)
        by_hand = tidelog.GroupOptions(auto_commit_s=None)
        with log.consume("orders", group="g", instance="i1", hooks=hooks, group_options=by_hand) as member:
            seen = [next(member) for _ in range(7)]
            member.commit()
            assert sum(at.offset for at in member.positions.values()) == 7
            assert member.assignment == [("orders", 0), ("orders", 1)]
            next(member)
        assert told == [("orders", 0), ("orders", 1)]
        assert threads[0] is not threading.main_thread() and threads[0].name != "tidelog"
        assert sum(at.offset for at in cluster.group.positions.values()) == 7 == len(seen)
        progress = log.groups.progress("g")
        assert sum(one.lag for one in progress) == 13
        log.groups.reset("g", "orders", {0: 3, 1: Position(4, 5)})
        assert [one.offset for one in log.groups.progress("g")] == [3, 5]
        assert [one.group for one in log.groups.list()] == ["g"]
        assert log.groups.describe("g").state == "empty"
        log.groups.delete("g")
        assert log.groups.progress("g") == ()


def test_a_blocking_member_hands_nothing_out_of_a_partition_that_it_gave_up() -> None:
    with filled() as (cluster, url), tidelog.sync.connect(url) as log:
        with log.consume("orders", group="g", instance="i1") as member:
            first = next(member)
            key = TopicPartition(cluster.topics["orders"].topic_id, first.partition)
            cluster.group.give("i2", [key])
            while len(member.assignment) == 2:
                log.topics.list()
            assert {next(member).partition for _ in range(10)} == {1 - first.partition}
        assert cluster.group.positions[key].offset == 1
