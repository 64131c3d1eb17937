"""What a written high watermark says of the log: below it nothing is ever cut in silence."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest
from support.log_builders import (
    END,
    PATH,
    SEGMENTS,
    after_power_losses,
    build,
    content,
    ends_before,
    flush,
    open_log,
    set_mark,
)
from support.replica_network import Net, code
from tidelog.testing.hardware.disk import SimDisk
from tidelog.types import TopicConfig
from tidelog_replica.storage.checkpoints import HighWatermarkCheckpoint
from tidelog_replica.storage.log import CorruptLog, Log

from unit.replica.maintenance.test_log_repairer import PATH as COPY
from unit.replica.maintenance.test_log_repairer import VALUES, break_header, filled, happened, segments
from unit.replica.storage.recovery.test_recovery import check_prefix, damaged

LAST = SEGMENTS[-1]
LAZY = TopicConfig(flush="os", segment_max_bytes=400)


def unmarked(high_watermark: int) -> SimDisk:
    """A power loss has brought an old recovery mark back."""
    disk = build(high_watermark=high_watermark)
    set_mark(disk, 6)
    return disk


# --- the log ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("high_watermark", [9, 13, END])
def test_damage_below_the_written_hw_is_corruption_at_every_byte_and_above_it_a_torn_tail(
    high_watermark: int,
) -> None:
    disk = unmarked(high_watermark)
    for path in SEGMENTS[1:]:
        data = bytearray(disk.read(path))
        for position in range(len(data)):
            data[position] ^= 1 << position % 8
            after = damaged(disk, path, bytes(data))
            data[position] ^= 1 << position % 8
            end = ends_before(path, position)
            if end < high_watermark:
                with pytest.raises(
                    CorruptLog, match=f"up to {high_watermark} were synced.* {high_watermark - end} less"
                ):
                    open_log(after)
            else:
                check_prefix(open_log(after), end)


def test_the_stored_high_watermark_is_never_above_the_durable_offset() -> None:
    disk = SimDisk()
    log = open_log(disk)
    log.append(content(open_log(build()))[:3])
    log.write_high_watermark(3)
    assert log.read_high_watermark() == 0
    flush(log)
    log.write_high_watermark(3)
    log.truncate(1)
    assert log.read_high_watermark() == 1
    for seed in range(30):
        after = disk.clone()
        after.crash(Random(seed))
        assert open_log(after).end >= 1, "the HW came down before the log"


def test_under_os_a_power_loss_may_cut_the_log_and_the_missing_offsets_are_known() -> None:
    disk = unmarked(END)
    disk.replace(LAST, disk.read(LAST)[:-1])
    with pytest.raises(CorruptLog, match="were synced"):
        Log.open(disk, PATH, LAZY, intact=True)  # a killed process takes nothing with it
    for _ in range(2):
        log = Log.open(disk, PATH, LAZY)
        assert log.end == log.read_high_watermark() == END - 1 and log.written_high_watermark == END
        log.close()
    log = Log.open(disk, PATH, LAZY)
    log.write_high_watermark(END - 1)
    assert log.written_high_watermark == END, "a lower HW does not hide it"
    log.lower_high_watermark(END - 1)
    assert Log.open(disk, PATH, LAZY).written_high_watermark == END - 1


def test_the_highest_committed_offset_survives_a_power_loss() -> None:
    disk = build(high_watermark=9)
    HighWatermarkCheckpoint(disk, PATH, disk.listdir(PATH)).lack(4)
    for seed in range(30):
        after = disk.clone()
        after.crash(Random(seed))
        known = HighWatermarkCheckpoint(after, PATH, after.listdir(PATH))
        assert (known.high_watermark, known.highest_committed) == (4, 9)


def test_the_highest_committed_offset_is_known_at_each_step_of_a_loss() -> None:
    """A power loss between any two steps hides nothing of what the log lacks."""

    def act(disk: SimDisk) -> partial[None]:
        return partial(HighWatermarkCheckpoint(disk, PATH, disk.listdir(PATH)).lack, 4)

    for after in after_power_losses(lambda: build(high_watermark=9), act, seeds=25, changes=5):
        assert HighWatermarkCheckpoint(after, PATH, after.listdir(PATH)).highest_committed == 9


# --- the server ------------------------------------------------------------------------------------------


def tail_lost(net: Net, name: str) -> None:
    """A server dies, its machine forgets the last recovery marks, and the last segment has rotted."""
    net.stop(name)
    disk, last = net.disks[name], segments(net, name)[-1]
    disk.unlink(f"{COPY}/recovery-mark")
    break_header(net, name, last)


def test_a_copy_that_lost_its_committed_end_counts_for_nothing_until_it_has_it_again() -> None:
    net = filled()
    tail_lost(net, "r3")
    end = int(segments(net, "r3")[-1][:20])
    net.start("r3")
    net.advance(20)
    assert [(message.node, message.lost) for message in net.hand_overs] == [("r3", True)]
    assert [(e.fields["start"], e.fields["end"]) for _, e in net.happened("committed_records_missing")] == [(end, 12)]
    assert net.values("r3") == VALUES and "r3" in net.state().isr
    net.close("r3")
    count = len(net.hand_overs)
    net.start("r3")
    net.advance(20)
    assert len(net.hand_overs) == count and happened(net, "log_damaged") == ["r3"], "and that is the end of it"


def test_while_the_rest_is_fetched_a_restart_is_no_damage_again() -> None:
    net = filled()
    tail_lost(net, "r3")
    net.cut = {("r3", "r1"), ("r3", "r2")}
    net.start("r3")
    net.advance(5)
    net.stop("r3")
    net.start("r3")
    net.advance(5)
    assert happened(net, "log_damaged") == ["r3"] and len(net.hand_overs) == 1
    assert happened(net, "committed_records_missing") == ["r3", "r3"]
    net.cut = set()
    net.advance(20)
    assert net.values("r3") == VALUES


def test_the_only_copy_leads_without_its_committed_end_only_uncleanly_and_reports_the_loss() -> None:
    net = filled(1)
    tail_lost(net, "r1")
    end = int(segments(net, "r1")[-1][:20])
    net.start("r1")
    net.advance(20)
    assert net.state().leader is None and code(net.answers[net.read("r1", 0)]) == "OFFLINE"
    epoch = net.state().leader_epoch + 1
    net.push(leader="r1", isr=("r1",), leader_epoch=epoch, unclean_epoch=epoch)
    net.advance(5)
    assert net.values("r1") == VALUES[:end]
    lost = [event.fields for _, event in net.happened("committed_records_lost")]
    assert [(fields["start"], fields["end"]) for fields in lost] == [(end, 12)], "counted exactly"
