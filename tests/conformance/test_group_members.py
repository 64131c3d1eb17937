"""Members of a group share its partitions, and whoever gets one goes on where the group has come in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from drivers import Consumer, Library, Refused, record, unb64, until
from tidelog.cli.local.local_cluster import LocalCluster

pytestmark = pytest.mark.real

PARTITIONS = 4


class Member(Consumer):
    """A consumer that is a member of a group, and reads from the earliest record if the group has no position."""

    def __init__(self, library: Library, name: str, group: str, *topics: str, **options: object) -> None:
        super().__init__(library.driver, f"{group}.{name}")
        self._id = f"{group}.{name}"
        library.do("open_member", consumer=self._id, group=group, topics=topics, start="earliest", options=options)

    def commit(self) -> None:
        """Commit the positions after all records that this member has returned."""
        self._driver.do("commit", consumer=self._id)

    def partitions(self) -> set[int]:
        """Return the numbers of the partitions that are assigned to this member now."""
        return {partition for _, partition in self._driver.do("assignment", consumer=self._id)["assignment"]}

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Pause these (topic, partition) pairs: `read` returns none of their records."""
        self._driver.do("pause", consumer=self._id, partitions=partitions)

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Resume these paused (topic, partition) pairs, or all if none is given."""
        self._driver.do("resume", consumer=self._id, partitions=partitions)

    def seek(self, **where: object) -> None:
        """Move the position in some or all partitions, without a commit. The arguments are those of the driver's
        command ``seek``."""
        self._driver.do("seek", consumer=self._id, **where)

    def read(self, count: int) -> list[tuple[int, bytes | None]]:
        """Wait for ``count`` records, and return the partition and value of each."""
        return [(found["partition"], unb64(found["value"])) for found in self.next(count)[0]]


@pytest.fixture
def groups(needs: Callable[[str], None]) -> None:
    needs("groups")


def some(name: str, count: int) -> list[dict[str, Any]]:
    """Return ``count`` records for each partition, with the values ``name`` + number."""
    return [record(b"%s%d" % (name.encode(), n), partition=p) for n in range(count) for p in range(PARTITIONS)]


def contents(name: str, count: int, partitions: set[int]) -> list[tuple[int, bytes]]:
    return sorted((p, b"%s%d" % (name.encode(), n)) for n in range(count) for p in partitions)


ALL = set(range(PARTITIONS))


@pytest.mark.usefixtures("groups")
def test_members_share_the_partitions_and_go_on_where_the_group_has_come(library: Library) -> None:
    topic = library.topic(partitions=PARTITIONS)
    group = f"{topic}.group"
    library.write(topic, *some("a", 10))
    one = Member(library, "one", group, topic)
    assert sorted(one.read(40)) == contents("a", 10, ALL)
    one.commit()

    two = Member(library, "two", group, topic)
    until(lambda: len(one.partitions()) == len(two.partitions()) == PARTITIONS // 2)
    assert one.partitions() | two.partitions() == ALL
    library.write(topic, *some("b", 10))
    assert sorted(one.read(20)) == contents("b", 10, one.partitions())
    assert sorted(two.read(20)) == contents("b", 10, two.partitions())
    one.commit()
    two.commit()

    two.close()
    library.write(topic, *some("c", 5))
    assert sorted(one.read(20)) == contents("c", 5, ALL)
    one.commit()
    one.close()
    described = library.do("describe_group", group=group)
    assert (described["state"], described["members"]) == ("empty", 0)
    assert sorted((p, offset) for _, p, offset, _ in described["positions"]) == [(p, 25) for p in range(PARTITIONS)]


@pytest.mark.usefixtures("groups")
def test_a_member_pauses_resumes_and_seeks(library: Library) -> None:
    topic = library.topic(partitions=PARTITIONS)
    group = f"{topic}.group"
    library.write(topic, *some("a", 10))
    member = Member(library, "one", group, topic)
    first = member.read(1)[0][0]
    member.pause((topic, first))
    assert sorted(member.read(30)) == contents("a", 10, ALL - {first})
    member.resume()
    assert member.read(9) == [(first, b"a%d" % n) for n in range(1, 10)]

    member.seek(at="earliest", partitions=[(topic, first)])
    assert member.read(3) == [(first, b"a%d" % n) for n in range(3)]
    member.seek(positions=[(topic, first, (-1, 8))])
    assert member.read(2) == [(first, b"a8"), (first, b"a9")]
    member.seek(at=9, partitions=[])
    member.commit()
    member.close()
    positions = library.do("describe_group", group=group)["positions"]
    assert sorted((p, offset) for _, p, offset, _ in positions) == [(p, 9) for p in range(PARTITIONS)]
    member = Member(library, "two", group, topic)
    with pytest.raises(Refused) as refused:
        member.pause((topic, PARTITIONS))
    assert refused.value.code == "UNKNOWN_TOPIC"
    member.close()


@pytest.mark.usefixtures("groups")
def test_uncommitted_records_are_delivered_again(library: Library) -> None:
    topic = library.topic(partitions=PARTITIONS)
    group = f"{topic}.group"
    library.write(topic, *(record(b"%d" % n, partition=0) for n in range(10)))
    first = Member(library, "first", group, topic)
    assert first.values(5) == [b"%d" % n for n in range(5)]
    first.commit()
    first.read(3)
    first.close()  # of the last one nobody knows whether it was done
    again = Member(library, "again", group, topic)
    assert again.values(3) == [b"7", b"8", b"9"]
    again.close()


@pytest.mark.usefixtures("groups")
def test_a_group_outlives_its_coordinator(library: Library, local: LocalCluster) -> None:
    topic = library.topic(partitions=PARTITIONS, replication_factor=3)
    group = f"{topic}.group"
    library.write(topic, *some("a", 5))
    member = Member(library, "one", group, topic)
    assert sorted(member.read(20)) == contents("a", 5, ALL)
    member.commit()
    local.kill(library.do("describe_group", group=group)["coordinator"])
    library.write(topic, *some("b", 5))
    assert sorted(member.read(20)) == contents("b", 5, ALL)
    member.commit()
    member.close()
    positions = library.do("describe_group", group=group)["positions"]
    assert sorted((p, offset) for _, p, offset, _ in positions) == [(p, 10) for p in range(PARTITIONS)]
