"""The pipeline with which docs/spark.md begins does what the page says, as it stands."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from pages.fences import OPENING
from pages.place import ROOT, Place, blocks
from pages.terminal import Terminal, terminal
from tidelog.spark.worker_python import worker_python

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")

pytestmark = [
    pytest.mark.real,
    pytest.mark.spark,
    pytest.mark.skipif(
        shutil.which("java") is None, reason="Java is missing: apt-get install openjdk-17-jre-headless"
    ),
]
PAGE = (ROOT / "docs" / "spark.md").read_text().partition("## A pipeline in five minutes\n")[2].partition("\n## ")[0]
INSTALL, RECORDS, COMMANDS, LOOK = blocks(PAGE, "sh")
(DECLARED,) = blocks(PAGE, "toml")
ENDS, FOUND = (code for _, language, code in OPENING.findall(PAGE) if not language)
"""The last lines of what ``run`` prints, and what is in the outputs."""
SPARK_S = 300.0
"""Time after which a command that starts Spark is given up."""


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """The second terminal of the page, beside its cluster."""
    place = Place(tmp_path_factory.mktemp("five-minutes"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(place.folder))
        place.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": worker_python("local")}
    with terminal(place) as first, terminal(place) as second:
        assert INSTALL.splitlines()[-1] == "tidelog dev"
        first.run("tidelog dev --data dev &")
        first.wait("Ctrl-C ends it.")
        yield second


def test_the_pipeline_does_what_the_page_says(typed: Terminal) -> None:
    install, _, records = RECORDS.partition("\n")
    assert install == ". venv/bin/activate", "the test's environment is another one"
    typed.run(records)
    typed.run(f"cat > orders.toml <<'THE END OF IT'\n{DECLARED}THE END OF IT")
    said = [typed.run(command, SPARK_S) for command in COMMANDS.splitlines()]
    assert said[-1].endswith(ENDS)
    assert typed.run(LOOK) == FOUND
    again = typed.run(COMMANDS.splitlines()[-1], SPARK_S)
    assert "large_orders: 0 rows read in 0 batches" in again, "nothing is there twice"
    assert typed.run(LOOK) == FOUND
