"""The checker of transactions flags each anomaly as what it is, and nothing in a sound story."""

from __future__ import annotations

import random

import pytest
from tidelog.verify.check_transactions import ABORTED, COMMITTED, KINDS, UNKNOWN, Story, Try, check

PLACES = frozenset({"x/0", "x/1", "x/2"})


def sound(seed: int = 0, tries: int = 40) -> Story:
    """An application that moves its group, and a driver with several tries per batch; two readers."""
    rng = random.Random(seed)
    story = Story()
    logs: dict[str, list[str]] = {place: [] for place in sorted(PLACES)}
    position = batch = 0
    for number in range(tries):
        fate, known = rng.choice((COMMITTED, ABORTED)), rng.random() < 0.8
        moves = rng.random() < 0.5
        one = Try(f"try {number}", "mover" if moves else "driver", PLACES, fate=fate if known else UNKNOWN)
        one.asked = fate == COMMITTED or rng.random() < 0.5
        one.position, one.batch = (position, -1) if moves else (-1, batch)
        if fate == COMMITTED:
            position, batch = position + moves, batch + (not moves)
            for log in logs.values():
                log.append(one.label)
        story.tries.append(one)
    for reader in ("k1", "k2"):
        rows = [(place, offset, label) for place, log in logs.items() for offset, label in enumerate(log)]
        rng.shuffle(rows)
        story.seen[reader] = sorted(rows, key=lambda row: row[1])
        story.stable[reader] = [("x/0", end) for end in sorted(rng.choices(range(20), k=5))]
    story.moved["mover"] = position
    return story


def kinds(story: Story) -> set[str]:
    return {anomaly.kind for anomaly in check(story)}


def first(story: Story, **like: object) -> Try:
    """The first try that is seen and was so."""
    seen = {label for _, _, label in story.seen["k1"]}
    wanted = [one for one in story.tries if one.label in seen]
    return next(one for one in wanted if all(getattr(one, name) == value for name, value in like.items()))


def see_an_aborted_one(story: Story) -> None:
    one = next(one for one in story.tries if one.fate == ABORTED and one.position < 0)
    one.batch = -1
    story.seen["k1"] += [(place, 1000, one.label) for place in sorted(PLACES)]


def see_one_that_nobody_committed(story: Story) -> None:
    first(story, fate=UNKNOWN).asked = False


def see_a_part(story: Story) -> None:
    one = first(story, fate=UNKNOWN)
    story.seen["k2"] = [row for row in story.seen["k2"] if row[0] == "x/1" or row[2] != one.label]


def miss_one(story: Story) -> None:
    one = first(story, fate=COMMITTED, position=-1)
    for reader in story.seen:
        story.seen[reader] = [row for row in story.seen[reader] if row[2] != one.label]


def see_one_twice(story: Story) -> None:
    one = first(story)
    story.seen["k1"].append(("x/1", 1000, one.label))


def commit_a_batch_twice(story: Story) -> None:
    one = first(story, position=-1)
    again = Try("again", one.app, PLACES, asked=True, batch=one.batch)
    story.tries.append(again)
    story.seen["k1"] += [(place, 1000, again.label) for place in sorted(PLACES)]


def move_twice_from_one_position(story: Story) -> None:
    one = first(story, batch=-1)
    again = Try("again", one.app, PLACES, asked=True, position=one.position)
    story.tries.append(again)
    story.seen["k1"] += [(place, 1000, again.label) for place in sorted(PLACES)]


def lose_a_position(story: Story) -> None:
    story.moved["mover"] -= 1


def move_without_records(story: Story) -> None:
    story.moved["mover"] += 1


def show_something_behind_a_reader(story: Story) -> None:
    story.seen["k1"].append(("x/0", 0, "of no transaction"))


def take_the_stable_offset_back(story: Story) -> None:
    story.stable["k2"].append(("x/0", 0))


PLANTED = {
    see_an_aborted_one: "aborted_read",
    see_one_that_nobody_committed: "aborted_read",
    see_a_part: "torn",
    miss_one: "lost_commit",
    see_one_twice: "twice",
    commit_a_batch_twice: "twice",
    move_twice_from_one_position: "lost_update",
    lose_a_position: "lost_update",
    move_without_records: "lost_update",
    show_something_behind_a_reader: "went_back",
    take_the_stable_offset_back: "went_back",
}


def test_nothing_is_found_in_sound_stories():
    assert all(not check(sound(seed)) for seed in range(300))


def test_missing_records_are_an_anomaly_only_where_the_readers_have_seen_everything():
    story = sound(3)
    story.complete = False
    story.seen = {reader: rows[:5] for reader, rows in story.seen.items()}
    assert not check(story)


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
@pytest.mark.parametrize("seed", range(3))
def test_a_planted_anomaly_is_flagged_with_its_kind(plant, seed):
    story = sound(seed)
    plant(story)
    assert kinds(story) == {PLANTED[plant]}


def test_every_kind_is_planted():
    assert set(PLANTED.values()) == set(KINDS)
