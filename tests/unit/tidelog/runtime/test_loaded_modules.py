"""What a service's process loads before it does anything. Tests ``runtime/service.py`` and ``runtime/prefork.py``."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("service", ["tidelog_controller", "tidelog_replica", "tidelog_gateway"])
def test_a_service_starts_without_what_only_people_at_terminals_need(service: str) -> None:
    code = f"import {service}.__main__, sys; print(*sys.modules); import rich, structlog"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "structlog" in loaded
    assert not loaded & {"rich", "pygments", "click"}
