"""The programs of docs/tutorials/etl.md: the Spark driver is killed on the way and started again, and every record is
there once, as the page says. With fewer records than the page has, and with settings of Spark that make it start
sooner."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

import pytest
from pages.place import ROOT, Place, blocks
from pages.terminal import terminal
from tidelog.spark.worker_python import worker_python

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")


pytestmark = [
    pytest.mark.real,
    pytest.mark.spark,
    pytest.mark.skipif(
        shutil.which("java") is None, reason="Java is missing: apt-get install openjdk-17-jre-headless"
    ),
]
PAGE = (ROOT / "docs" / "tutorials" / "etl.md").read_text()
_INSTALL, DEV, TOPICS, SEND, START, KILL, COUNT, AGAIN, CHECK = blocks(PAGE, "sh")
PROGRAMS = dict(zip(re.findall(r"[Ss]ave this as `(\w+\.py)`", PAGE), blocks(PAGE, "python"), strict=True))
CLICKS = 6000
"""How many are sent: three micro-batches."""
QUICK = """
spark.ui.enabled false
spark.ui.showConsoleProgress false
spark.log.level OFF
spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
"""
"""Settings of Spark for a driver that lives for seconds."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A place with the cluster and the programs of the page."""
    place = Place(tmp_path_factory.mktemp("etl"))
    for name, program in PROGRAMS.items():
        (place.folder / name).write_text(place.own(program))
    (place.folder / "spark-defaults.conf").write_text(QUICK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(place.folder))
        python = worker_python("local")
    place.environ |= {
        "SPARK_CONF_DIR": str(place.folder),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": python,
    }
    with terminal(place) as first:
        first.run(f"{DEV.strip()} &")
        first.wait("Ctrl-C ends it.")
        yield place


def test_every_record_is_there_once_though_the_driver_is_killed(place: Place) -> None:
    parsed = CLICKS * 24 // 25
    assert (
        "40000" in SEND
        and "maxOffsetsPerTrigger=2000" in PAGE
        and f"`{40000 * 24 // 25} clicks, 0 of them twice`" in PAGE
    )
    with terminal(place) as typed:
        typed.run(TOPICS)
        typed.run(SEND.replace("40000", str(CLICKS)))
        typed.run(START)
        typed.wait("clean: batch 0 is done")
        typed.run(KILL)
        (visible,) = map(int, re.findall(r"^(\d+)$", typed.run(COUNT), re.M))
        assert 0 < visible < parsed and visible % 1920 == 0, "whole micro-batches"
        typed.run(AGAIN)
        clicks, counts = typed.run(CHECK).splitlines()[-2:]
    assert clicks == f"{parsed} clicks, 0 of them twice"
    assert counts == "176 counts, 0 of them twice, 0 wrong"
