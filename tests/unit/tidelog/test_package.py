"""What ``import tidelog`` offers, and what it loads. Tests ``tidelog/__init__.py``."""

from __future__ import annotations

import subprocess
import sys

import pytest
import tidelog

SERVER = {"tidelog_controller", "tidelog_gateway", "tidelog_replica", "structlog", "prometheus_client"}
"""Packages that only the services need."""
MODULES = {"aio", "errors", "sync"}


def in_a_new_process(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_dir_shows_everything_that_is_offered_and_nothing_else() -> None:
    shown = in_a_new_process("import tidelog; print(*dir(tidelog))")
    assert sorted(name for name in shown if not name.startswith("__")) == sorted([*tidelog.__all__, *MODULES])
    assert {"connect", "Log"} <= set(shown) and "__doc__" in shown
    for name in tidelog.__all__:
        assert getattr(tidelog, name) is not None


@pytest.mark.parametrize("name", ["aio.connect", "errors.TidelogError", "sync.connect"])
def test_the_modules_that_dir_shows_need_no_import_of_their_own(name: str) -> None:
    assert in_a_new_process(f"import tidelog; print(tidelog.{name}.__name__)") == [name.partition(".")[2]]


def test_another_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="module 'tidelog' has no attribute 'nosuch'"):
        _ = tidelog.nosuch


def test_the_package_alone_loads_no_library() -> None:
    loaded = in_a_new_process("import tidelog, sys; print(*sys.modules)")
    assert not {name.partition(".")[0] for name in loaded} & {"trio", "cbor2", "websockets", *SERVER}


@pytest.mark.parametrize("module", ["tidelog", "tidelog.sync", "tidelog.aio"])
def test_a_client_loads_nothing_of_the_services(module: str) -> None:
    loaded = in_a_new_process(f"import {module}, sys; {module}.connect; print(*sys.modules)")
    assert "tidelog.client.log" in loaded
    assert not {name.partition(".")[0] for name in loaded} & SERVER
    assert not [name for name in loaded if name.startswith(("tidelog.runtime.", "tidelog.cli."))]
