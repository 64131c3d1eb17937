"""Who is to have which partitions: range and sticky, by example and by their rules."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog.types import TopicPartition
from tidelog_replica.coordinators.groups.assignors import Shares, assign_range, assign_sticky


def parts(topic: str, *numbers: int) -> set[TopicPartition]:
    return {TopicPartition(topic, number) for number in numbers}


def owners(shares: Shares) -> dict[TopicPartition, str]:
    owned = [(partition, name) for name, share in shares.items() for partition in share]
    assert len(owned) == len(dict(owned)), "a partition has two owners"
    return dict(owned)


def test_range_gives_neighbours_and_the_first_ones_one_more() -> None:
    shares = assign_range({"b": ("t", "u"), "a": ("t", "u"), "c": ("t",)}, {"t": 5, "u": 2}, {})
    assert shares == {
        "a": parts("t", 0, 1) | parts("u", 0),
        "b": parts("t", 2, 3) | parts("u", 1),
        "c": parts("t", 4),
    }


def test_range_leaves_out_topics_that_are_not_there() -> None:
    assert assign_range({"a": ("t", "gone")}, {"t": 1}, {}) == {"a": parts("t", 0)}


def test_sticky_keeps_assigned_partitions_when_a_member_joins() -> None:
    before = assign_sticky({"a": ("t",), "b": ("t",)}, {"t": 6}, {})
    after = assign_sticky({"a": ("t",), "b": ("t",), "c": ("t",)}, {"t": 6}, owners(before))
    assert sorted(map(len, after.values())) == [2, 2, 2]
    assert after["a"] < before["a"] and after["b"] < before["b"]


def test_sticky_lets_everybody_keep_all_when_one_goes() -> None:
    before = assign_sticky({"a": ("t",), "b": ("t",), "c": ("t",)}, {"t": 7}, {})
    after = assign_sticky({"a": ("t",), "b": ("t",)}, {"t": 7}, owners(before))
    assert after["a"] > before["a"] and after["b"] > before["b"]


def test_sticky_moves_along_a_chain_where_no_partition_fits_both_ends() -> None:
    """a and c have no topic in common: what evens them out goes by way of b."""
    had = owners({"a": parts("t", 0, 1, 2), "b": parts("u", 0), "c": set()})
    after = assign_sticky({"a": ("t",), "b": ("t", "u"), "c": ("u",)}, {"t": 3, "u": 1}, had)
    assert sorted(map(len, after.values())) == [1, 1, 2]
    assert after["c"] == parts("u", 0)


NAMES = ["a", "b", "c", "d", "e"]
COUNTS = st.dictionaries(st.sampled_from(["t", "u", "v"]), st.integers(1, 9), min_size=1)


@st.composite
def had(draw: st.DrawFn, counts: Mapping[str, int]) -> dict[TopicPartition, str]:
    """Who had what: anything, also by members that are gone, of partitions that are gone."""
    everything = sorted(p for topic, count in counts.items() for p in parts(topic, *range(count)))
    return {p: draw(st.sampled_from([*NAMES, "gone"])) for p in everything if draw(st.booleans())}


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_sticky_is_balanced_within_one_and_moves_no_more_than_it_must(data: st.DataObject) -> None:
    counts = data.draw(COUNTS)
    names = data.draw(st.sets(st.sampled_from(NAMES), min_size=1))
    before = data.draw(had(counts))
    shares = assign_sticky(dict.fromkeys(names, tuple(counts)), counts, before)
    after = owners(shares)
    assert len(after) == sum(counts.values()), "everything has an owner"
    sizes = sorted(map(len, shares.values()))
    assert sizes[-1] - sizes[0] <= 1
    # the most that can stay: everybody keeps up to a fair share, so many of them the larger one as there are such
    least, larger = divmod(len(after), len(names))
    kept_at_most, larger_left = 0, larger
    for size in sorted((sum(owner == name for owner in before.values()) for name in names), reverse=True):
        bonus = size > least and larger_left > 0
        larger_left -= bonus
        kept_at_most += min(size, least + bonus)
    assert sum(before.get(partition) == owner for partition, owner in after.items()) == kept_at_most


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_sticky_with_different_subscriptions_cannot_be_made_more_even(data: st.DataObject) -> None:
    counts = data.draw(COUNTS)
    topics = st.sets(st.sampled_from(sorted(counts))).map(lambda chosen: tuple(sorted(chosen)))
    subscriptions = data.draw(st.dictionaries(st.sampled_from(NAMES), topics, min_size=1))
    shares = assign_sticky(subscriptions, counts, data.draw(had(counts)))
    wanted = {t for chosen in subscriptions.values() for t in chosen}
    assert set(owners(shares)) == {p for t in wanted for p in parts(t, *range(counts[t]))}
    gives: dict[str, set[str]] = {
        name: {other for p in share for other in subscriptions if p.topic_id in subscriptions[other]}
        for name, share in shares.items()
    }
    for name, share in shares.items():
        assert {p.topic_id for p in share} <= set(subscriptions[name])
        reached, wave = {name}, [name]
        while wave:
            wave = [other for giver in wave for other in gives[giver] if other not in reached]
            reached.update(wave)
        assert all(len(shares[other]) >= len(share) - 1 for other in reached)


def test_a_thousand_members_of_ten_thousand_partitions_are_assigned_and_one_more_moves_nine() -> None:
    subscriptions = {f"m{number:04}": ("t",) for number in range(1000)}
    before = owners(assign_sticky(subscriptions, {"t": 10_000}, {}))
    after = owners(assign_sticky({**subscriptions, "new": ("t",)}, {"t": 10_000}, before))
    assert sum(before[partition] != owner for partition, owner in after.items()) == 9
