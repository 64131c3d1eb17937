"""Values with their labels are read from pages of metrics."""

from __future__ import annotations

from tidelog.explain.samples import samples, total

PAGE = """# TYPE refused counter
refused{code="A",op="produce"} 3
refused{op="fetch",code="B"} 4.0
refused_bytes{code="A"} 900
plain 1.7e+09
name{text="a \\"b\\", c=\\\\"} 1
"""


def test_samples_have_labels_and_a_value() -> None:
    assert samples(PAGE, "refused") == [({"code": "A", "op": "produce"}, 3.0), ({"op": "fetch", "code": "B"}, 4.0)]
    assert samples(PAGE, "plain") == [({}, 1.7e9)] and samples(PAGE, "other") == []
    assert samples(PAGE, "name") == [({"text": 'a \\"b\\", c=\\\\'}, 1.0)]


def test_a_total_is_of_the_samples_with_these_labels() -> None:
    assert (total(PAGE, "refused"), total(PAGE, "refused", code="A"), total(PAGE, "refused", code="C")) == (7, 3, 0)
