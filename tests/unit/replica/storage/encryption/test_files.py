"""Segments that are encrypted at rest: what is on the disk, what damage and a missing key mean, and changing keys."""

from __future__ import annotations

import base64
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from support.log_builders import (
    END,
    PATH,
    STORED,
    after_power_losses,
    batch,
    batches,
    content,
    flush,
    open_alone,
    open_log,
    sound,
)
from tidelog.batch.fingerprints import fingerprint_of, unpack
from tidelog.batch.format import read_header
from tidelog.errors import ConfigError
from tidelog.runtime.disk import RealDisk
from tidelog.testing.hardware.disk import SimDisk
from tidelog.types import TopicConfig
from tidelog_replica.config import ReplicaConfig
from tidelog_replica.maintenance.log_opener import CannotOpenYet, OpenLog
from tidelog_replica.server import use_current_key
from tidelog_replica.storage.encryption import files as sealed
from tidelog_replica.storage.encryption.files import BATCHES_AT, PAGE_BYTES, EncryptedDisk, read_pages, stored_bytes
from tidelog_replica.storage.encryption.keyring import Cipher, Keyring, load_keys, parse
from tidelog_replica.storage.encryption.rotation import rekey
from tidelog_replica.storage.index import IndexCache
from tidelog_replica.storage.log import CorruptLog, Log
from tidelog_replica.storage.open_files import OpenFiles
from tidelog_replica.storage.recovery.damage import CloseHole, FillHole, Quarantine
from tidelog_replica.storage.segment_scrub import Scrub, ScrubTarget
from tidelog_replica.storage.tail_cache import LogTailCache

from unit.replica.storage import test_log_model

OLD, NEW, OTHER = (bytes([number]) * 32 for number in (1, 2, 3))
OF_OLD = Keyring({"old": OLD}, "old")
OF_BOTH = Keyring({"new": NEW, "old": OLD}, "new")
OF_NEW = Keyring({"new": NEW}, "new")
NONE = Keyring()
CONFIG = TopicConfig(segment_max_bytes=700)
"""Three segments for ``STORED``."""


def open_sealed(disk: SimDisk, keys: Keyring = OF_OLD) -> Log:
    return open_alone(EncryptedDisk(disk, keys), PATH, CONFIG)


def build(keys: Keyring = OF_OLD) -> SimDisk:
    """``STORED``, synced and closed."""
    disk = SimDisk()
    log = open_sealed(disk, keys)
    for each in STORED:
        log.append([each])
    flush(log)
    log.sync_all()
    log.close()
    return disk


def segments(disk: SimDisk) -> list[str]:
    return [f"{PATH}/{name}" for name in disk.listdir(PATH) if name.endswith(".log")]


def files(disk: SimDisk) -> dict[str, bytes]:
    return {path: disk.read(path) for path in disk.files()}


def keys_in_use(disk: SimDisk) -> set[str]:
    return {page.key for path in segments(disk) for page in read_pages(disk.read(path))}


# --- what is there -------------------------------------------------------------------------------------------


def test_an_encrypted_log_equals_the_same_log_in_the_clear():
    disk, clear = build(), open_log(SimDisk())
    clear.append(STORED)
    log = open_sealed(disk)
    assert len(log.segments) == 3
    assert content(log, from_disk=True) == STORED
    assert [log.chain_at(offset) for offset in range(END)] == [clear.chain_at(offset) for offset in range(END)]
    sound(log)


def test_nothing_of_a_batch_can_be_read_on_the_disk():
    disk = build()
    stored = b"".join(files(disk).values())
    for each in STORED:
        pieces = [each[at : at + 8] for at in range(16, len(each) - 8)]
        assert not [piece for piece in pieces if len(set(piece)) > 3 and piece in stored]


def test_hashes_by_which_a_header_might_be_guessed_are_in_the_clear_only_in_producer_snapshots():
    disk = build()
    log = open_sealed(disk)
    chains = {log.chain_at(offset)[1] for offset in range(1, END + 1)}
    shown = {path for path, data in files(disk).items() for chain in chains if chain in data}
    assert shown
    assert all(path.startswith(f"{PATH}/producers-") for path in shown)


@pytest.mark.parametrize("size", [0, 1, 20, 200, 5000])
def test_batches_of_all_sizes_come_back(size):
    disk, made = SimDisk(), [batch(offset, 0, size=size) for offset in range(5)]
    log = open_sealed(disk)
    log.append(made)
    flush(log)
    assert content(log, from_disk=True) == made
    on_disk = sum(disk.open(path).size() - BATCHES_AT for path in segments(disk))
    assert on_disk == sum(stored_bytes(len(each)) for each in made)


def test_a_clear_segment_stays_clear_to_its_end_and_both_kinds_are_readable():
    disk = build(NONE)
    before = files(disk)
    more = batches(END, 3, [1] * 8)
    log = open_sealed(disk)
    log.append(more)
    assert content(log, from_disk=True) == STORED + more
    flush(log)
    log.close()
    first, *_, last = segments(disk)
    assert (disk.read(first), read_pages(disk.read(last))[0].key) == (before[first], "old")
    known_only = Keyring(OF_OLD.keys, None)
    assert content(open_sealed(disk, known_only), from_disk=True) == STORED + more


def test_closing_files_below_closes_no_segment():
    disk = build()
    log = Log.open(EncryptedDisk(OpenFiles(disk, 1), OF_OLD), PATH, CONFIG)
    log.append(batches(END, 3, [1] * 8))
    assert content(log, from_disk=True) == STORED + batches(END, 3, [1] * 8)


# --- nonces --------------------------------------------------------------------------------------------------


class Recorded:
    """A cipher that notes what it encrypts with."""

    used: dict[tuple[bytes, bytes], bytes]

    def __init__(self, key: bytes) -> None:
        self._key, self._cipher = key, Recorded.real(key)

    real = Cipher

    def encrypt(self, nonce, data, associated_data=None):
        assert (self._key, nonce) not in self.used, "a nonce is used again"
        self.used[self._key, nonce] = bytes(data)
        return self._cipher.encrypt(nonce, data, associated_data)

    def decrypt(self, nonce, data, associated_data=None):
        return self._cipher.decrypt(nonce, data, associated_data)


@given(test_log_model.actions)
@settings(max_examples=60, deadline=None)
def test_no_nonce_is_used_twice_with_a_key_in_any_order_of_operations(actions):
    """Appends, cuts, retention, copies that start over, reopenings and power losses; and the log is what it should
    be after each of them."""
    Recorded.used = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealed, "Cipher", Recorded)
        patch.setattr(test_log_model, "open_log", lambda disk: open_sealed(disk))
        test_log_model.test_a_log_behaves_like_a_list_of_batches.hypothesis.inner_test(actions)


def test_a_file_that_begins_anew_has_a_new_key():
    disk = SimDisk()
    log = open_sealed(disk)
    pages = set()
    for epoch in range(3):
        log.append([batch(0, epoch)])
        log.sync_all()
        pages.add(disk.read(segments(disk)[0])[:PAGE_BYTES])
        log.truncate(0)
    assert len(pages) == 3


# --- damage --------------------------------------------------------------------------------------------------


def test_a_flipped_bit_is_never_served_and_the_scrubber_finds_it():
    disk = build()
    log = open_sealed(disk)
    first = log.segments[0]
    disk.flip(first.path, BATCHES_AT + 30, 3)
    with pytest.raises(CorruptLog):
        log.read(0, 300)
    target = ScrubTarget.of(first)
    with pytest.raises(CorruptLog):
        Scrub(EncryptedDisk(disk, OF_OLD), target, target.first_position, 1 << 20, log.epochs).run()


def test_a_sound_segment_passes_the_scrubber():
    log = open_sealed(disk := build())
    target = ScrubTarget.of(log.segments[0])
    place, *_ = Scrub(EncryptedDisk(disk, OF_OLD), target, target.first_position, 1 << 20, log.epochs).run()
    assert place.offset == target.end


def test_the_segment_that_is_written_is_scrubbed_and_read_as_far_as_it_is_synced():
    log = open_sealed(disk := build())
    written, synced = log.segments[-1], log.end
    log.append([batch(END, 3, size=200)])
    target = ScrubTarget.of(written, log.synced)
    place, *_ = Scrub(EncryptedDisk(disk, OF_OLD), target, target.first_position, 1 << 20, log.epochs).run()
    assert place.offset == target.end == synced < written.end_offset
    found = log.begin_reading(written.base, log.end, 1 << 20)
    assert found is not None
    read = found.run()
    plain = [each for each in STORED if read_header(each).base_offset >= written.base]
    assert read.next_offset == synced and read.size == sum(map(len, plain))
    assert list(unpack(read.fingerprints)) == [fingerprint_of(read_header(each), each) for each in plain]
    disk.flip(written.path, BATCHES_AT + 30, 3)
    for job in (Scrub(EncryptedDisk(disk, OF_OLD), target, target.first_position, 1 << 20, log.epochs), found):
        with pytest.raises(CorruptLog):
            job.run()


def test_one_key_page_is_enough_and_without_both_the_segment_is_damaged():
    for page in (0, PAGE_BYTES):
        disk = build()
        disk.flip(segments(disk)[0], page + 90, 1)
        assert content(open_sealed(disk), from_disk=True) == STORED
    disk.flip(segments(disk)[0], 90, 1)
    with pytest.raises(CorruptLog) as caught:
        open_sealed(disk)
    assert caught.value.filename == segments(disk)[0]


@pytest.mark.parametrize("kept", range(0, 400, 23))
def test_a_torn_batch_above_the_mark_is_cut_off(kept):
    disk = build()
    log = open_sealed(disk)
    log.append([batch(END, 3, size=200)])
    path = segments(disk)[-1]
    whole = disk.open(path).size()
    disk.open(path).truncate(whole - 1 - kept % (stored_bytes(len(batch(END, 3, size=200))) - 1))
    found = open_sealed(disk)
    assert (found.end, content(found, from_disk=True)) == (END, STORED)


def test_power_may_be_lost_at_each_step_of_rolls_and_cuts():
    def change(log: Log) -> None:
        more = batches(END, 4, [1] * 9)
        log.append(more[:5])
        flush(log)
        log.append(more[5:])
        log.truncate(7)
        log.append(batches(8 if log.end == 8 else log.end, 5, [1, 1]))
        flush(log)

    for after in after_power_losses(build, lambda disk: partial(change, open_sealed(disk)), seeds=3, changes=4):
        log = open_sealed(after)
        sound(log)
        assert content(log)[:5] == STORED[:5]


def test_data_left_in_the_page_cache_by_a_failed_sync_is_written_again_with_its_key():
    disk = SimDisk()
    log = open_sealed(disk)
    log.append([batch(0, 0)])
    disk.fail_syncs()
    with pytest.raises(OSError, match="simulated"):
        flush(log)
    disk.heal()
    found = open_sealed(disk)
    assert found.durable == 1
    for seed in range(10):
        after = disk.clone()
        after.crash(Random(seed))
        assert content(open_sealed(after), from_disk=True) == [batch(0, 0)]


def test_a_hole_is_filled_with_batches_in_the_clear_and_sealed_there():
    disk = build()
    sealing, path = EncryptedDisk(disk, OF_OLD), segments(disk)[1]
    hole = Quarantine(sealing, PATH, int(path[-24:-4])).run()
    assert hole is not None
    missing = [each for each in STORED if hole.base <= read_header(each).base_offset < hole.end]
    offset, size = hole.base, 0
    for each in missing:
        offset, size = FillHole(sealing, PATH, hole, offset, size, each).run()
    CloseHole(sealing, PATH, hole).run()
    assert content(open_sealed(disk), from_disk=True) == STORED
    assert read_pages(disk.read(path))


# --- keys ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [NONE, OF_NEW, Keyring({"old": OTHER}, "old")], ids=["none", "unknown", "wrong"])
def test_without_the_key_a_log_is_held_back_and_nothing_is_touched(keys):
    disk = build()
    before = files(disk)
    job = OpenLog(EncryptedDisk(disk, keys), PATH, CONFIG, LogTailCache(1 << 20), IndexCache(1 << 20))
    with pytest.raises(CannotOpenYet, match="encrypted with key 'old'"):
        job.run()
    assert files(disk) == before
    assert content(open_sealed(disk), from_disk=True) == STORED


def test_a_segment_of_another_place_does_not_open():
    disk = build()
    disk.replace(segments(disk)[0], disk.read(segments(disk)[1]))
    with pytest.raises(OSError, match="comes from elsewhere"):
        open_sealed(disk)


def test_changing_the_key_leaves_the_batches_and_needs_the_old_key_no_more():
    disk = build()
    before = files(disk)
    census = rekey(disk, "/data", OF_BOTH)
    assert (dict(census.keys), census.rewrapped, census.clear, dict(census.missing)) == ({"new": 3}, 3, 0, {})
    assert keys_in_use(disk) == {"new"}
    assert all(disk.read(path)[BATCHES_AT:] == before[path][BATCHES_AT:] for path in segments(disk))
    assert content(open_sealed(disk, OF_NEW), from_disk=True) == STORED
    assert rekey(disk, "/data", OF_NEW).rewrapped == 0


def test_new_segments_take_the_current_key_and_the_others_are_read_with_theirs():
    disk = build()
    log = open_sealed(disk, OF_BOTH)
    more = batches(END, 3, [1] * 9)
    log.append(more)
    flush(log)
    log.close()
    assert keys_in_use(disk) == {"old", "new"}
    assert content(open_sealed(disk, OF_BOTH), from_disk=True) == STORED + more


def test_changing_the_key_may_lose_power_at_each_step():
    for after in after_power_losses(build, lambda disk: partial(rekey, disk, "/data", OF_BOTH), seeds=5, changes=4):
        assert content(open_sealed(after, OF_BOTH), from_disk=True) == STORED
        rekey(after, "/data", OF_BOTH)
        assert content(open_sealed(after, OF_NEW), from_disk=True) == STORED


def test_a_missing_key_is_counted_and_its_segments_are_left_alone():
    disk = build()
    before = files(disk)
    census = rekey(disk, "/data", OF_NEW)
    assert dict(census.missing) == {"old": 3}
    assert "'old'" in census.example
    assert files(disk) == before


def encoded(key: bytes) -> str:
    return base64.b64encode(key).decode()


def test_keys_are_read_from_a_file_or_a_variable_the_current_one_first(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"# of 2026\nnew:{encoded(NEW)}\nold:{encoded(OLD)}  # until May\n")
    assert load_keys(str(path), "", {}) == OF_BOTH
    assert load_keys("", "KEYS", {"KEYS": f"old:{encoded(OLD)}"}) == OF_OLD
    assert load_keys("", "", {}).current is None


@pytest.mark.parametrize(
    "text", ["", "# none", "old", f"a b:{encoded(OLD)}", "old:AAAA", f"x:{encoded(OLD)} x:{encoded(NEW)}", "x:é"]
)
def test_bad_keys_are_refused_and_not_repeated(text):
    with pytest.raises(ConfigError, match="there") as caught:
        parse(text, "there")
    assert encoded(OLD) not in str(caught.value)


def test_a_file_or_variable_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match="nowhere"):
        load_keys(str(tmp_path / "nowhere"), "", {})
    with pytest.raises(ConfigError, match="LOG_KEYS"):
        load_keys("", "LOG_KEYS", {})


def test_keys_do_not_show():
    assert encoded(OLD) not in repr(OF_OLD)
    assert repr(OLD) not in repr(OF_OLD)


def test_a_random_log_is_read_from_every_offset():
    rng = Random(7)
    made = batches(0, 0, [rng.randint(1, 4) for _ in range(60)])
    log = open_sealed(SimDisk())
    log.append(made)
    content(log, from_disk=True)
    for offset in range(log.end):
        found = [bytes(each) for each in log.read(offset, rng.randint(1, 2000))]
        first = next(number for number, each in enumerate(made) if read_header(each).end_offset > offset)
        assert found == made[first : first + len(found)]


# --- a server's start ----------------------------------------------------------------------------------------


def written(data_dir: str, keys: Keyring) -> None:
    log = Log.open(EncryptedDisk(RealDisk(), keys), f"{data_dir}/t-0", CONFIG)
    log.append(STORED)
    log.sync_all()
    log.close()


def test_a_start_wraps_by_the_current_key_and_refuses_where_one_is_missing(tmp_path):
    data_dir = str(tmp_path)
    (tmp_path / "meta").write_bytes(b"no directory")
    use_current_key(data_dir, OF_OLD)  # nothing is there yet
    written(data_dir, OF_OLD)
    with pytest.raises(ConfigError, match=r"old \(\d segments\)"):
        use_current_key(data_dir, OF_NEW)
    use_current_key(data_dir, OF_BOTH)
    use_current_key(data_dir, OF_NEW)
    log = Log.open(EncryptedDisk(RealDisk(), OF_NEW), f"{data_dir}/t-0", CONFIG)
    assert content(log, from_disk=True) == STORED
    log.close()


def test_the_two_sources_of_keys_exclude_each_other():
    faults = ReplicaConfig(encryption_key_file="keys", encryption_key_env="KEYS").faults()
    assert faults == ["encryption_key_file, encryption_key_env: set one of them"]
