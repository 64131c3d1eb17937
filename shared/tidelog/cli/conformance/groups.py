"""Members of a group share its partitions, and continue where the group has come in each."""

from __future__ import annotations

from tidelog.cli.conformance.cases import Chapter
from tidelog.cli.conformance.client import Json
from tidelog.cli.conformance.library import Library, expect, numbered, record, refusal, until

GROUPS = Chapter("groups")
PARTITIONS = 4
ALL = set(range(PARTITIONS))


def _some(name: str, count: int) -> list[Json]:
    """Return ``count`` records for each partition, with the values ``name`` + number."""
    return [record(b"%s%d" % (name.encode(), n), partition=p) for n in range(count) for p in range(PARTITIONS)]


def _contents(name: str, count: int, partitions: set[int]) -> list[tuple[int, bytes | None]]:
    return sorted((p, b"%s%d" % (name.encode(), n)) for n in range(count) for p in partitions)


def _committed(library: Library, group: str) -> list[tuple[int, int]]:
    """Return partition and offset of each committed position."""
    positions = library.do("describe_group", group=group)["positions"]
    return sorted((partition, offset) for _, partition, offset, _ in positions)


@GROUPS.case("Members share the partitions, and continue where the group has come.", needs="groups")
def members_share_the_partitions(library: Library) -> None:
    topic = library.topic(partitions=PARTITIONS)
    group = f"{topic}.group"
    library.write(topic, *_some("a", 10))
    one = library.member(group, topic)
    expect("the records of the only member", sorted(one.read(40)), _contents("a", 10, ALL))
    one.commit()

    two = library.member(group, topic)
    half = PARTITIONS // 2
    until(
        "two members have half of the partitions each", lambda: len(one.partitions()) == len(two.partitions()) == half
    )
    expect("the partitions of both", one.partitions() | two.partitions(), ALL)
    library.write(topic, *_some("b", 10))
    for member in (one, two):
        expect("the records of a member", sorted(member.read(20)), _contents("b", 10, member.partitions()))
        member.commit()

    two.close()
    library.write(topic, *_some("c", 5))
    expect("the records of the member that is left", sorted(one.read(20)), _contents("c", 5, ALL))
    one.commit()
    one.close()
    described = library.do("describe_group", group=group)
    expect("state and members", (described["state"], described["members"]), ("empty", 0))
    expect("the positions of the group", _committed(library, group), [(p, 25) for p in range(PARTITIONS)])


@GROUPS.case("A member pauses, resumes and seeks.", needs="groups")
def a_member_pauses_resumes_and_seeks(library: Library) -> None:
    topic = library.topic(partitions=PARTITIONS)
    group = f"{topic}.group"
    library.write(topic, *_some("a", 10))
    member = library.member(group, topic)
    first = member.read(1)[0][0]
    member.pause((topic, first))
    expect("the records while it is paused", sorted(member.read(30)), _contents("a", 10, ALL - {first}))
    member.resume()
    expect("the records of the resumed partition", member.read(9), [(first, b"a%d" % n) for n in range(1, 10)])

    member.seek(at="earliest", partitions=[(topic, first)])
    expect("the records from the earliest on", member.read(3), [(first, b"a%d" % n) for n in range(3)])
    member.seek(positions=[(topic, first, (-1, 8))])
    expect("the records from a position on", member.read(2), [(first, b"a8"), (first, b"a9")])
    member.seek(at=9, partitions=[])
    member.commit()
    member.close()
    expect("the positions of the group", _committed(library, group), [(p, 9) for p in range(PARTITIONS)])
    member = library.member(group, topic)
    refusal("UNKNOWN_TOPIC", lambda: member.pause((topic, PARTITIONS)))
    member.close()


@GROUPS.case("Records that were not committed are delivered again.", needs="groups")
def uncommitted_records_are_delivered_again(library: Library) -> None:
    topic = library.topic(partitions=PARTITIONS)
    group = f"{topic}.group"
    library.write(topic, *numbered(0, 10, partition=0))
    first = library.member(group, topic)
    expect("the records that are committed", first.values(5), [b"%d" % n for n in range(5)])
    first.commit()
    first.read(3)
    first.close()  # the last record was returned, and nothing shows that it was processed
    again = library.member(group, topic)
    expect("the records of the next member", again.values(3), [b"7", b"8", b"9"])
    again.close()


@GROUPS.case("A group outlives its coordinator.", needs="groups", disturbs=True)
def a_group_outlives_its_coordinator(library: Library) -> None:
    topic = library.topic(partitions=PARTITIONS, replication_factor=3)
    group = f"{topic}.group"
    library.write(topic, *_some("a", 5))
    member = library.member(group, topic)
    expect("the records before", sorted(member.read(20)), _contents("a", 5, ALL))
    member.commit()
    library.local.kill(library.do("describe_group", group=group)["coordinator"])
    library.write(topic, *_some("b", 5))
    expect("the records after it", sorted(member.read(20)), _contents("b", 5, ALL))
    member.commit()
    member.close()
    expect("the positions of the group", _committed(library, group), [(p, 10) for p in range(PARTITIONS)])
