"""The section about real clusters in ``docs/testing-your-programs.md``: its files are a project whose tests pass."""

from __future__ import annotations

import re

from pages.fences import fences
from pytest import Pytester

PAGE = "docs/testing-your-programs.md"
FILE = re.compile(r"# (\w+)\.py\n")


def test_the_tests_on_the_page_pass(pytester: Pytester) -> None:
    programs = [fence.code for fence in fences(PAGE) if fence.language == "python"]
    files = {name.group(1): code for code in programs if (name := FILE.match(code))}
    assert files.keys() >= {"conftest", "test_orders", "test_billing"}
    shared = "def test_shared(shared_cluster):\n    assert shared_cluster.nodes == ('c1', 'r1', 'g1')\n"
    pytester.makepyfile(test_shared=shared, **files)
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    done.assert_outcomes(passed=3)
