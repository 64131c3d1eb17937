"""The units for systemd, and the configurations beside them. Tests ``deploy/systemd``."""

from __future__ import annotations

import configparser
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.deployment_files import DEPLOY, SERVICES, configured, patience_s, seconds

FOLDER = DEPLOY / "systemd"
PYTHON = "/opt/tidelog/bin/python"
"""Where the environment is that the units start."""
ANALYZE = shutil.which("systemd-analyze") or ""
needs_systemd = pytest.mark.skipif(not ANALYZE, reason="systemd-analyze is not here: the units are not verified")


class Repeated(dict[str, str]):
    """A section whose keys may be repeated: all values are kept, each on a line."""

    def __setitem__(self, key: str, value: str) -> None:
        super().__setitem__(key, [*self[key], *value] if key in self and isinstance(value, list) else value)  # type: ignore[assignment]


def unit(service: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False, dict_type=Repeated)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(FOLDER / f"tidelog-{service}.service")
    return parser


@pytest.fixture
def installed(service: str, tmp_path: Path) -> Path:
    """Return the unit as on a machine on which its program exists."""
    path = tmp_path / f"tidelog-{service}.service"
    path.write_text((FOLDER / path.name).read_text().replace(PYTHON, sys.executable))
    return path


@needs_systemd
@pytest.mark.parametrize("service", SERVICES)
def test_systemd_understands_every_line(installed: Path) -> None:
    done = subprocess.run([ANALYZE, "verify", "--man=no", installed], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize("service", SERVICES)
def test_a_service_that_is_taken_over_can_do_little(installed: Path) -> None:
    """Systemd counts what a service could do, 0.0 (nothing) to 10.0 (all); the threshold is in tenths."""
    command = [ANALYZE, "security", "--offline=yes", "--threshold=15", "--no-pager", installed]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("service", SERVICES)
def test_the_unit_starts_the_service_with_its_configuration(service: str) -> None:
    section = unit(service)["Service"]
    assert section["User"] == "tidelog"
    python, flag, module, option, path = section["ExecStart"].split()
    assert (python, flag, module, option) == (PYTHON, "-m", f"tidelog_{service}", "--config")
    assert importlib.util.find_spec(f"{module}.__main__")
    config = configured(service, {}, FOLDER / Path(path).name)
    assert Path(path).parent == Path("/etc/tidelog")
    assert config.host == "0.0.0.0" and config.tls_ca and not config.insecure
    if hasattr(config, "data_dir"):
        assert config.data_dir == f"/var/lib/{section['StateDirectory']}"
        assert config.data_dir == section["WorkingDirectory"]


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_with_too_much_memory_ends_before_the_machine_has_none(service: str) -> None:
    assert re.fullmatch(r"\d+G|[1-8]\d%", unit(service)["Service"]["MemoryMax"])


@pytest.mark.parametrize("service", SERVICES)
def test_it_ends_in_order_and_is_started_again_unless_its_settings_are_wrong(service: str) -> None:
    section = unit(service)["Service"]
    config = configured(service, {}, FOLDER / f"{service}.toml")
    assert (section["KillSignal"], section["KillMode"]) == ("SIGTERM", "mixed")
    assert seconds(section["TimeoutStopSec"]) >= patience_s(config)
    assert (section["Restart"], section["RestartPreventExitStatus"]) == ("on-failure", "2")
    assert unit(service)["Unit"]["StartLimitIntervalSec"] == "0", "it is never given up"
    assert int(section["LimitNOFILE"]) >= 1 << 20


def test_the_user_of_the_units_is_made() -> None:
    kind, name, *_ = (FOLDER / "sysusers.conf").read_text().splitlines()[-1].split()
    assert (kind, name) == ("u", "tidelog")


def test_the_examples_are_of_one_cluster() -> None:
    controller, replica, gateway = (configured(service, {}, FOLDER / f"{service}.toml") for service in SERVICES)
    assert list(controller.peers.values()) == list(replica.controllers) == list(gateway.controllers)
    assert replica.advertised_url.endswith(f":{replica.port}")
    assert controller.peers[controller.node].endswith(f":{controller.port}")
    assert gateway.authentication and gateway.authorization
