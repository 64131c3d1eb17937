"""What services keep is for their user only, with any umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio
from click.testing import CliRunner
from support.services_in_process import two_services
from tidelog.captures import Capture
from tidelog.cli.local import dev
from tidelog.cli.local.local_cluster import LocalCluster, free_base_port
from tidelog.private import make_file, own_directory, warn_of_open_secret, write_file
from tidelog.runtime.disk import RealDisk
from tidelog.runtime.service import main
from tidelog_controller.config import ControllerConfig
from tidelog_controller.server import serve as serve_controller


@pytest.fixture(params=[0o000, 0o022], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> dict[str, str]:
    """Everything from the folder on that another user could read or enter."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        mode = path.lstat().st_mode
        if mode & 0o077 and not stat.S_ISLNK(mode) and not stat.S_ISSOCK(mode):
            found[str(path.relative_to(folder))] = oct(stat.S_IMODE(mode))
    return found


async def _serve_both(folder: Path) -> None:
    """A controller and a replica server, until both listen and have written."""
    async with two_services(folder):
        pass


@pytest.mark.usefixtures("umask")
async def test_a_service_closes_its_data_to_others(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    folder.mkdir(mode=0o700)
    await _serve_both(folder)
    assert (folder / "c1/raft.db").exists() and (folder / "r1/lock").exists()
    assert open_to_others(folder / "c1") == {}
    assert open_to_others(folder / "r1") == {}


@pytest.mark.usefixtures("umask")
async def test_data_that_were_open_are_closed_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await _serve_both(tmp_path)
    for node in ("c1", "r1"):
        for path in (tmp_path / node, *(tmp_path / node).iterdir()):
            path.chmod(0o755 if path.is_dir() else 0o644)
    await _serve_both(tmp_path)
    assert open_to_others(tmp_path / "c1") == {}
    assert stat.S_IMODE((tmp_path / "r1").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "r1/lock").stat().st_mode) == 0o600
    assert caplog.text.count("data_dir_closed") == 2


@pytest.mark.usefixtures("umask")
def test_a_local_cluster_is_for_its_user(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    cluster = LocalCluster.create(
        folder, controllers=1, replicas=1, gateways=1, base_port=free_base_port(3), tls=True
    )
    try:
        cluster.start()
        trio.run(cluster.wait_ready)
        assert open_to_others(folder) == {}
    finally:
        cluster.stop()
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    again = LocalCluster.create(folder)
    try:
        again.start()
        trio.run(again.wait_ready)
    finally:
        again.stop()
    for node in ("c1", "r1", "g1"):
        assert stat.S_IMODE((folder / node).stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / node / "log").stat().st_mode) == 0o600
        assert stat.S_IMODE((folder / node / "config.toml").stat().st_mode) == 0o600


@pytest.mark.usefixtures("umask")
def test_files_of_the_disk_and_of_commands(tmp_path: Path) -> None:
    disk = RealDisk()
    disk.mkdir(str(tmp_path / "a" / "b"))
    disk.open(str(tmp_path / "a/b/c"), create=True).close()
    disk.write_atomic(str(tmp_path / "a/b/d"), b"x")
    disk.allocate(str(tmp_path / "a/b/e"), 10)
    Capture({}, {}).save(tmp_path / "a/capture")
    write_file(tmp_path / "a/f", b"x")
    assert open_to_others(tmp_path / "a") == {}


def test_a_file_of_the_log_is_for_its_user_though_the_umask_allows_all() -> None:
    before = os.umask(0)
    try:
        with TemporaryDirectory() as folder:
            RealDisk().open(f"{folder}/x", create=True).close()
            assert stat.S_IMODE(Path(folder, "x").stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_a_directory_of_another_or_of_everybody_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o1777)
    own_directory(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1777
    tmp_path.chmod(0o775)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 12345)
        own_directory(tmp_path)
        tmp_path.chmod(0o770)
        own_directory(tmp_path)  # the volume of a container, as Kubernetes mounts it
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o770
    assert caplog.text.count("data_dir_open") == 2


def test_a_link_in_a_data_directory_leads_nowhere_else(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("x")
    outside.chmod(0o644)
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data/link").symlink_to(outside)
    own_directory(tmp_path / "data")
    assert stat.S_IMODE(outside.stat().st_mode) == 0o644


@pytest.mark.usefixtures("umask")
def test_dev_does_not_change_the_modes_of_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder may be one that the user has other things in."""
    monkeypatch.setattr(dev, "run", lambda main: None)
    monkeypatch.setattr("tidelog.runtime.logs.configure", lambda **_: None)
    (tmp_path / "notes").write_text("x")
    (tmp_path / "web").mkdir()
    modes = {tmp_path: 0o755, tmp_path / "notes": 0o644, tmp_path / "web": 0o755}
    for path, mode in modes.items():
        path.chmod(mode)
    for folder in (tmp_path, tmp_path / "made"):
        result = CliRunner().invoke(dev.dev, ["--data", str(folder)])
        assert result.exit_code == 0, result.output
    assert {path: stat.S_IMODE(path.stat().st_mode) for path in modes} == modes
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o700
    assert os.umask(0o077) == 0o077, "what it makes is for its user"


def test_a_secret_that_everybody_may_read_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "key"
    make_file(file)
    warn_of_open_secret("tls_key", str(file))
    file.chmod(0o640)
    warn_of_open_secret("tls_key", str(file))
    warn_of_open_secret("tls_key", "")
    assert caplog.text == ""
    file.chmod(0o644)
    warn_of_open_secret("tls_key", str(file))
    assert "secret_file_open tls_key" in caplog.text


def test_a_process_begins_with_a_umask_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0)
    monkeypatch.setattr("sys.argv", ["x", "--config", "/nowhere"])
    try:
        with pytest.raises(SystemExit):
            main(ControllerConfig, serve_controller, "")
        assert os.umask(0) == 0o077
    finally:
        os.umask(before)
