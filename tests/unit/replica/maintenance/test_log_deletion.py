"""The deletion of a log from the disk: its mark, a crash in the middle, and another try after a failure."""

from __future__ import annotations

import errno

from support.replica_network import KEY, cluster
from tidelog_replica.maintenance.log_deletion import DELETING, DeleteLog

PATH = f"/data/{KEY.topic_id}-0"


def test_a_deletion_that_fails_is_reported_and_tried_again() -> None:
    net = cluster(2)
    net.disks["r2"].fail_reads(errno.EIO)
    net.delete()
    assert [name for name, _ in net.happened("delete_failed")] == ["r2"]
    assert KEY not in net.nodes["r2"].partitions
    net.advance(2)
    assert len(net.happened("delete_failed")) == 2
    net.disks["r2"].heal()
    net.advance(5)
    assert net.disks["r2"].listdir("/data") == ["meta", "meta-copy"]
    assert len(net.happened("delete_failed")) == 2


def test_a_log_whose_deletion_was_interrupted_is_empty_when_it_is_opened_again() -> None:
    net = cluster(2)
    net.send("r1", b"a")
    net.advance(6)
    net.stop("r2")
    disk = net.disks["r2"]
    disk.write_atomic(f"{PATH}/{DELETING}", b"")
    net.push(isr=("r1",))
    net.start("r2")
    assert DELETING not in disk.listdir(PATH)
    net.advance(1)
    assert net.values("r2") == [b"a"], "copied from the leader again"


def test_the_job_tells_whether_there_was_a_log() -> None:
    net = cluster(2)
    net.stop("r2")
    job = DeleteLog(net.disks["r2"], PATH)
    assert [job.run(), job.run()] == [True, False]
