"""What a pipeline draws, and what it says where it cannot."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tidelog.errors import ConfigError
from tidelog.spark.pipelines.declaration import Plot

pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'tidelog[plots]'")

from tidelog.spark.pipelines import plots

PLOT = Plot("p", "", x="time", y="failures", by="address", title="Failed passwords")


def rows(*entries: tuple[Any, str, float | None]) -> list[plots.Row]:
    return [{"time": time, "address": address, "failures": failures} for time, address, failures in entries]


def texts(plot: Plot, drawn: list[plots.Row], file: Path) -> list[str]:
    plots.draw(plot, drawn, file)
    return re.findall(r"<text[^>]*>([^<]*)</text>", file.read_text())


@pytest.mark.parametrize("mark", ["line", "bar"])
def test_axes_lines_and_the_time_have_their_names(mark: str, tmp_path: Path) -> None:
    plot = Plot("p", "", x="time", y="failures", by="address", mark=mark, title="Failed passwords")
    hour = rows((datetime(2016, 12, 10, 6), "10.0.0.1", 3), (datetime(2016, 12, 10, 7), "10.0.0.2", 5))
    found = texts(plot, hour, tmp_path / "a" / "p.svg")
    assert {"Failed passwords", "time", "failures", "address", "10.0.0.1", "10.0.0.2"} <= set(found)
    assert any("2016-Dec-10" in text for text in found)


def test_lines_with_the_greatest_sums_keep_their_names_and_the_others_are_added_up(tmp_path: Path) -> None:
    many = rows(*((time, f"a{n:02}", n) for n in range(30) for time in (1, 2)))
    found = texts(PLOT, many, tmp_path / "p.svg")
    assert [text for text in found if text.startswith(("a", "others")) and text != "address"] == [
        *(f"a{n}" for n in range(29, 20, -1)),
        "others",
    ]


def test_no_rows_are_said_and_empty_values_left_out(tmp_path: Path) -> None:
    assert "no rows" in texts(PLOT, [], tmp_path / "p.svg")
    assert "no rows" not in texts(PLOT, rows((1, "a", 1), (2, "a", None)), tmp_path / "p.svg")


def test_a_picture_may_be_a_png(tmp_path: Path) -> None:
    plots.draw(PLOT, rows((1, "a", 1)), tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_that_cannot_be_drawn_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no column failures, address; there are time, number"):
        plots.draw(PLOT, [{"time": 1, "number": 2}], tmp_path / "p.svg")
    with pytest.raises(ConfigError, match="more than 10000 rows"):
        plots.draw(PLOT, rows((1, "a", 1)) * 10_001, tmp_path / "p.svg")
