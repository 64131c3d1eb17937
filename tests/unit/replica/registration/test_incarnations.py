"""What a data directory says of itself: whose it is, which lives it has seen, and whether all is there."""

from __future__ import annotations

import errno
import json
from random import Random

import pytest
from tidelog.errors import ConfigError
from tidelog.testing.hardware.disk import PowerLost, SimDisk
from tidelog_replica.registration.incarnations import IDS_AHEAD, KEPT, KEPT_OLDER, Incarnations


def begin(disk: SimDisk, name: str, *, boot: str = "monday", cluster: str = "c", node: str = "r1") -> Incarnations:
    """A process starts on this disk."""
    lives = Incarnations(disk, "/data", node, cluster, boot)
    lives.begin_incarnation(name)
    return lives


def registered(disk: SimDisk, name: str, boot: str = "monday") -> Incarnations:
    """One that was registered, too."""
    lives = begin(disk, name, boot=boot)
    lives.on_registered("c")
    return lives


def test_a_new_directory_knows_only_the_life_that_begins() -> None:
    lives = begin(SimDisk(), "a")
    assert (lives.names, lives.clean) == (("a",), False)


def test_every_life_that_began_since_the_last_registered_one_is_named() -> None:
    disk = SimDisk()
    registered(disk, "a")
    begin(disk, "b")
    lives = begin(disk, "d")
    assert lives.names == ("a", "b", "d")
    lives.on_registered("c")
    assert lives.names == ("d",)
    assert begin(disk, "e").names == ("d", "e")


def test_a_life_that_takes_another_name_is_as_clean_as_before() -> None:
    disk = SimDisk()
    registered(disk, "a").end_incarnation(all_flushed=True)
    lives = begin(disk, "b", boot="")
    lives.rename("d")
    assert (lives.names, lives.clean) == (("a", "b", "d"), True)
    disk.crash(Random(1))
    assert begin(disk, "e").names == ("a", "b", "d", "e")


def test_an_incarnation_is_on_the_disk_before_it_is_sent_to_anyone() -> None:
    disk = SimDisk()
    registered(disk, "a")
    begin(disk, "b")
    disk.crash(Random(1))
    assert begin(disk, "d").names == ("a", "b", "d")


def test_the_registered_life_stays_however_many_begin_after_it() -> None:
    disk = SimDisk()
    registered(disk, "a")
    for number in range(KEPT + 50):
        lives = begin(disk, str(number))
    assert len(lives.names) == KEPT
    assert (lives.names[0], lives.names[1], lives.names[-1]) == ("a", str(51), str(KEPT + 49))


def test_a_killed_process_has_lost_nothing_while_the_machine_runs() -> None:
    disk = SimDisk()
    registered(disk, "a")
    assert begin(disk, "b").clean


def test_a_life_after_a_restart_of_the_machine_is_not_clean() -> None:
    disk = SimDisk()
    registered(disk, "a")
    assert not begin(disk, "b", boot="tuesday").clean


def test_a_life_that_ended_in_order_leaves_a_clean_directory_to_one_life() -> None:
    disk = SimDisk()
    assert registered(disk, "a").end_incarnation(all_flushed=True)
    assert begin(disk, "b", boot="tuesday").clean
    assert not begin(disk, "d", boot="wednesday").clean, "the life b may have written, and lost it"


def test_a_life_that_was_clean_and_not_registered_passes_that_on() -> None:
    disk = SimDisk()
    registered(disk, "a").end_incarnation(all_flushed=True)
    begin(disk, "b", boot="tuesday")
    assert begin(disk, "d", boot="tuesday").clean, "killed; the machine runs on"
    assert begin(disk, "e", boot="tuesday").end_incarnation(all_flushed=False) is False
    disk = SimDisk()
    registered(disk, "a").end_incarnation(all_flushed=True)
    assert begin(disk, "b", boot="tuesday").end_incarnation(all_flushed=False), "all was flushed when it began"
    assert begin(disk, "d", boot="wednesday").clean


def test_a_loss_before_an_unregistered_incarnation_is_not_forgotten() -> None:
    disk = SimDisk()
    registered(disk, "a")
    unclean = begin(disk, "b", boot="tuesday")
    assert not unclean.clean
    assert not unclean.end_incarnation(all_flushed=True)
    assert not begin(disk, "d", boot="tuesday").clean
    assert registered(disk, "e", boot="tuesday").clean, "the controller knows now"
    assert begin(disk, "f", boot="tuesday").clean


def test_without_the_name_of_the_machines_run_only_an_end_in_order_is_clean() -> None:
    disk = SimDisk()
    registered(disk, "a", boot="")
    assert not begin(disk, "b", boot="").clean
    registered(disk, "d", boot="").end_incarnation(all_flushed=True)
    assert begin(disk, "e", boot="").clean


def test_logs_that_were_never_opened_may_not_be_flushed() -> None:
    disk = SimDisk()
    assert not registered(disk, "a").end_incarnation(all_flushed=False)
    assert not begin(disk, "b", boot="tuesday").clean


def test_D6_after_a_failed_flush_the_next_life_is_not_clean_even_on_the_same_machine() -> None:
    disk = SimDisk()
    lives = registered(disk, "a")
    disk.fail_syncs(errno.EIO)
    lives.distrust()
    assert not lives.end_incarnation(all_flushed=True)
    disk.heal()
    assert not begin(disk, "b").clean
    assert not begin(disk, "d").clean, "nor the one after, as long as none was registered"
    assert registered(disk, "e").clean


def test_a_life_that_cannot_say_so_must_not_end() -> None:
    disk = SimDisk()
    lives = registered(disk, "a")
    disk.fail_reads(errno.EIO)
    with pytest.raises(OSError, match="simulated"):
        lives.distrust()
    assert not lives.clean
    disk.heal()
    lives.distrust()
    assert not begin(disk, "b").clean


def test_the_marker_is_durably_gone_before_the_next_life_writes() -> None:
    clean = SimDisk()
    registered(clean, "a").end_incarnation(all_flushed=True)
    for after in range(20):
        disk = clean.clone()
        disk.lose_power(after)
        try:
            begin(disk, "b", boot="tuesday")
        except PowerLost:
            disk.crash(Random(after))
            begun = "b" in json.loads(disk.read("/data/meta"))["lives"]
            assert begin(disk, "d", boot="wednesday").clean <= (not begun), f"power lost at change {after}"
        else:
            disk.crash(Random(after))
            assert not begin(disk, "d", boot="wednesday").clean
            return
    raise AssertionError("the life never began")


def test_a_marker_of_another_life_says_nothing() -> None:
    disk = SimDisk()
    registered(disk, "a").end_incarnation(all_flushed=True)
    marker = disk.read("/data/clean-shutdown")
    registered(disk, "b")
    disk.write_atomic("/data/clean-shutdown", marker)
    assert not begin(disk, "d", boot="tuesday").clean


def test_D10_a_restored_directory_does_not_know_the_last_registered_life() -> None:
    disk = SimDisk()
    registered(disk, "a")
    old = disk.clone()
    registered(disk, "b")
    assert "b" not in begin(old, "d").names


def test_D10_a_directory_of_another_node_or_cluster_is_refused_untouched() -> None:
    disk = SimDisk()
    registered(disk, "a").end_incarnation(all_flushed=True)
    before = disk.changes
    with pytest.raises(ConfigError, match="belongs to node r1, not r2"):
        begin(disk, "b", node="r2")
    with pytest.raises(ConfigError, match="belongs to cluster c, not other"):
        begin(disk, "b", cluster="other")
    assert disk.changes == before
    assert begin(disk, "b", cluster="").cluster == "c"


@pytest.mark.parametrize(
    "meta", [b"", b"[]", b"{}", b'{"cluster": "c"}', b'{"cluster": "c", "node": "r1", "lives": 3}']
)
def test_a_damaged_meta_without_a_copy_is_refused(meta: bytes) -> None:
    disk = SimDisk()
    registered(disk, "a")
    disk.replace("/data/meta", meta)
    copy = disk.read("/data/meta-copy")
    disk.replace("/data/meta-copy", meta)
    with pytest.raises(ConfigError, match="damaged"):
        begin(disk, "b")
    disk.replace("/data/meta-copy", copy)
    assert begin(disk, "b").names == ("a", "b")


@pytest.mark.parametrize("name", ["meta", "meta-copy"])
def test_a_flipped_bit_anywhere_in_meta_stops_nothing_and_is_mended(name: str) -> None:
    disk = SimDisk()
    registered(disk, "a")
    begin(disk, "b")
    for position in range(len(disk.read(f"/data/{name}"))):
        for bit in range(8):
            after = disk.clone()
            after.flip(f"/data/{name}", position, bit)
            lives = begin(after, "c")
            assert (lives.cluster, lives.names) == ("c", ("a", "b", "c"))
            assert after.read("/data/meta") == after.read("/data/meta-copy")


def test_a_directory_from_before_lives_had_names_is_one_life_without() -> None:
    disk = SimDisk()
    disk.mkdir("/data")
    disk.replace("/data/meta", b'{"cluster": "c", "node": "r1"}')
    assert begin(disk, "b").names == ("", "b")


def test_lives_that_were_registered_before_are_remembered_for_metadata_that_go_back() -> None:
    disk = SimDisk()
    for name in "abd":
        registered(disk, name)
    lives = begin(disk, "e")
    assert (lives.older, lives.names, lives.uncertain) == (("a", "b"), ("d", "e"), ())
    disk.crash(Random(1))
    lives = begin(disk, "f", boot="tuesday")
    assert (lives.older, lives.uncertain) == ((), ("a", "b"))
    lives.on_registered("c")
    assert (lives.older, lives.uncertain, lives.names) == ((), ("a", "b", "d", "e"), ("f",))


def test_only_some_lives_are_remembered() -> None:
    disk = SimDisk()
    for number in range(3 * KEPT_OLDER):
        registered(disk, f"life {number}").end_incarnation(all_flushed=True)
    assert len(begin(disk, "last").older) == KEPT_OLDER


def test_the_newest_metadata_that_were_seen_outlast_the_process() -> None:
    disk = SimDisk()
    begin(disk, "a").on_registered("c", 17, 3)
    assert begin(disk, "b").seen == (17, 3)


def test_the_bound_of_producer_ids_is_written_rarely_and_is_never_below_one() -> None:
    disk = SimDisk()
    lives = begin(disk, "a")
    assert lives.know_ids(5)
    assert not lives.know_ids(5 + IDS_AHEAD)
    disk.crash(Random(1))
    assert begin(disk, "b").id_bound >= 5 + IDS_AHEAD
