"""The report of where the time goes: samples are read, shared out over the parts, and drawn. Tests
``bench/profile/flame.py``."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from bench.harness.rows import Row
from bench.profile.flame import SHARED, flame, merged, part_of, read, render, shares

MAIN = "main (tidelog/runtime/service.py:62);unrolled_run (trio/_core/_run.py:2866)"
RAW = f"""\
{MAIN};Link._run_reader (tidelog/net/link.py:262);decode (tidelog/wire/codec.py:10) 30
{MAIN};Link._run_reader (tidelog/net/link.py:262);decode (tidelog/wire/codec.py:14);loads (<string>:3) 10
{MAIN};Partition.take (tidelog_replica/partition/partition.py:7);Log.append (tidelog_replica/storage/log.py:140) 20
{MAIN};Partition.take (tidelog_replica/partition/partition.py:7) 20
run (tidelog/runtime/service.py:1);EpollIOManager.get_events (trio/_core/_io_epoll.py:209) 20
_bootstrap (threading.py:1002);_work (trio/_core/_thread_cache.py:107) 900
"""


def test_a_sample_is_of_the_part_of_its_innermost_frame_that_has_one() -> None:
    found = shares(read(RAW))
    assert found == {
        "codec": 0.4,
        "log": 0.2,
        "replication": 0.2,
        "kernel: epoll, and waiting in it": 0.2,
    }


@pytest.mark.parametrize(
    ("frame", "part"),
    [
        ("recv (trio/_socket.py:830)", "kernel: sockets"),
        ("pwritev (tidelog/runtime/disk.py:103)", "kernel: files"),
        ("receive (tidelog/net/websocket/frame_stream.py:1)", "frames, WebSocket"),
        ("greet (tidelog/wire/link_session.py:134)", "links, sessions, outboxes"),
        ("append (tidelog_replica/storage/log.py:140)", "log"),
        ("take (tidelog_replica/partition/partition.py:7)", "replication"),
        ("route (tidelog_gateway/produce/router.py:7)", "gateway"),
        ("send (tidelog/client/producer.py:7)", "client"),
        ("<module> (json/__init__.py:7)", "other"),
    ],
)
def test_the_part_of_a_frame_follows_from_its_file(frame: str, part: str) -> None:
    assert part_of((frame,)) == part
    assert part_of(("main (tidelog/runtime/service.py:62)", frame)) == (
        part if part != "other" else "counting, logging, else"
    )


def test_the_line_that_gives_frames_to_the_kernel_is_the_kernels() -> None:
    source = (SHARED / "tidelog" / "net" / "direct_socket.py").read_text().splitlines()
    lines = [number for number, text in enumerate(source, 1) if "os.writev" in text]
    assert lines
    assert {part_of((f"write (tidelog/net/direct_socket.py:{number})",)) for number in lines} == {"kernel: sockets"}


def test_boxes_are_as_wide_as_their_share() -> None:
    drawn = flame(merged(read(RAW)))
    widths = {name: float(width) for width, name in re.findall(r'width="([\d.]+)"[^>]*><title>(\S+)', drawn)}
    assert widths["unrolled_run"] == pytest.approx(1080 * 0.8, abs=0.1)
    assert widths["decode"] == pytest.approx(1080 * 0.4, abs=0.1)
    assert merged(Counter({("a (x.py:1)", "b (x.py:2)"): 1, ("a (x.py:3)", "c (x.py:2)"): 2})) == {
        ("b (x.py)",): 1,
        ("c (x.py)",): 2,
    }


def test_the_page_loads_nothing_and_escapes_its_texts() -> None:
    cpu = {"c1": 0.1, "g1": 0.2, "r1": 0.1, "r2": 0.1, "r3": 0.1, "client": 0.4}
    row = Row("produce, opaque batches of 16 KiB, 64 in flight", "os", 50.0, 50_000.0, 1.0, 2.0, cpu)
    page = render(row, {"gateway": read(RAW), "leader, r1": read("<module> (tidelog/net/link.py:1) 5")}, 250)
    assert "<module>" not in page and "&lt;module&gt;" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert page.count("<svg") == 2 and "40.0%" in page and "50.0 MB/s" in page
