"""What is published: both distributions are built, and a cluster runs from the wheel, where no source tree is and
nothing but the dependencies of the plain installation."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tarfile
import tomllib
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from importlib import metadata
from pathlib import Path

import pytest
import trio
from packaging.requirements import Requirement
from running import HEAL_S
from tidelog.cli.local.local_cluster import LocalCluster, free_base_port

pytestmark = pytest.mark.real
ROOT = Path(__file__).resolve().parents[2]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())
BUILD = DECLARED["tool"]["hatch"]["build"]["targets"]["wheel"]


def build(source: Path, target: Path, *formats: str) -> list[Path]:
    """Build from that tree, without network: the backend is there already."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", target, *formats]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(target.iterdir())


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def described(wheel: Path) -> Message:
    """The metadata of a wheel, with the description as its payload."""
    (metadata,) = [data for name, data in contents(wheel).items() if name.endswith(".dist-info/METADATA")]
    return message_from_bytes(metadata)


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source distribution, and the wheel."""
    sdist, wheel = sorted(build(ROOT, tmp_path_factory.mktemp("dist")), key=lambda path: path.suffix == ".whl")
    return sdist, wheel


def dependencies(requirements: list[str], extra: str = "") -> list[metadata.Distribution]:
    """Return the distributions that pip installs for these requirements and those of an extra, as this environment
    has them. Extras that nobody asks for are left out."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [(text, extra) for text in requirements]
    while waiting:
        text, asked = waiting.pop()
        wanted = Requirement(text)
        if wanted.name not in found and (wanted.marker is None or wanted.marker.evaluate({"extra": asked})):
            found[wanted.name] = metadata.distribution(wanted.name)
            waiting += [(text, "") for text in found[wanted.name].requires or []]
    return list(found.values())


class Installed:
    """The wheel in an environment of its own, with the dependencies of a plain installation or of one with an extra,
    which are links to those of this one; so nothing is downloaded."""

    def __init__(self, folder: Path, wheel: Path, extra: str = "") -> None:
        self.folder = folder
        venv.create(folder / "venv", symlinks=True)
        self.bin = folder / "venv" / "bin"
        (self.site,) = (folder / "venv" / "lib").glob("python*/site-packages")
        self.pip("install", "--quiet", "--no-index", "--no-deps", "--no-compile", wheel)
        for needed in dependencies(described(wheel).get_all("Requires-Dist", []), extra):
            for top in {path.parts[0] for path in needed.files or []} - {"..", "__pycache__"}:
                (self.site / top).symlink_to(needed.locate_file(top))
        self.pip("check")
        self.environ = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}

    def pip(self, command: str, *arguments: str | Path) -> None:
        """Run pip for this environment, from the one of the tests."""
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", self.bin / "python"]
        done = subprocess.run([*pip, command, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def run(self, *command: str, stdin: bytes | None = None) -> bytes:
        """Run it in a folder that holds nothing of the project. It must succeed."""
        done = self.try_to_run(*command, stdin=stdin)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def try_to_run(self, *command: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        """Run it as ``run`` does; it may fail."""
        program = [self.bin / command[0], *command[1:]]
        return subprocess.run(
            program, cwd=self.folder, env=self.environ, input=stdin, capture_output=True, timeout=120, check=False
        )


@pytest.fixture(scope="module")
def installed(distributions: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"), distributions[1])


def test_all_that_belongs_to_a_package_is_in_the_wheel(distributions: tuple[Path, Path]) -> None:
    listed = subprocess.run(["git", "ls-files", *BUILD["packages"]], cwd=ROOT, capture_output=True, check=False)
    files = [ROOT / line for line in listed.stdout.decode().splitlines()]
    files = [
        path
        for link in files
        for path in ([link] if link.is_file() else sorted(filter(Path.is_file, link.rglob("*"))))
    ]
    tops = [ROOT / package for package in BUILD["packages"]]
    expected = {str(path.relative_to(top.parent)) for path in files for top in tops if path.is_relative_to(top)}
    made = contents(distributions[1])
    assert expected and {name for name in made if ".dist-info/" not in name} == expected
    assert made["tidelog/wire/tidelog.cddl"] and made["tidelog/py.typed"] == b""
    client = (ROOT / "shared/js/tidelog.js").read_bytes()
    assert made["tidelog_gateway/console/static/client/tidelog.js"] == client, "the console's client, not a link"
    assert any(name.endswith("licenses/LICENSE") for name in made)


def test_the_source_distribution_makes_the_same_wheel(distributions: tuple[Path, Path], tmp_path: Path) -> None:
    sdist, wheel = distributions
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (again,) = build(tmp_path / sdist.name.removesuffix(".tar.gz"), tmp_path / "dist", "--target", "wheel")
    assert again.name == wheel.name and contents(again) == contents(wheel)


def test_the_description_on_pypi_has_no_link_into_the_repository(distributions: tuple[Path, Path]) -> None:
    page = described(distributions[1])
    assert page["Description-Content-Type"] == "text/markdown"
    links = re.findall(r"\]\(([^)]+)\)|(?:href|src)=[\"']?([^\s\"'>]+)", page.get_payload())
    targets = {markdown or html for markdown, html in links}
    assert targets and not {target for target in targets if not target.startswith(("https://", "#"))}
    ours = {target for target in targets if target.startswith(DECLARED["project"]["urls"]["Source"])}
    assert len(ours) > 20, "links to the pages of the project begin with its declared address"


def test_the_metadata_says_what_it_is_for_whom(distributions: tuple[Path, Path]) -> None:
    page = described(distributions[1])
    classifiers = set(page.get_all("Classifier", []))
    least = int(page["Requires-Python"].removeprefix(">=3."))
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in range(least, 15)} <= classifiers
    assert {"Typing :: Typed", "Framework :: Trio"} <= classifiers and page["Keywords"]
    assert {line.partition(",")[0] for line in page.get_all("Project-URL", [])} >= {"Source", "Changelog"}
    assert set(page.get_all("Provides-Extra", [])) == set(DECLARED["project"]["optional-dependencies"])
    assert not set(page.get_all("Provides-Extra", [])) & {"dev", "server"}, "tools of development are a group"


NEEDY = [
    ("security", "tidelog", "certs", "authority"),
    ("security", "tidelog", "cluster", "up", "--tls", "--data", "secure"),
    ("security", "tidelog", "replica", "--encryption-key-file", "keys"),
    ("backup", "tidelog", "backup", "orders", "copy"),
    ("spark", "tidelog", "pipeline", "run", "pipeline.toml"),
    ("spark", "python", "-c", "import tidelog.spark.source"),
    ("spark", "python", "-c", "import tidelog.spark.read.arrow"),
    ("otel", "python", "-c", "import tidelog.tracing"),
    ("oidc", "tidelog", "gateway", "--config", "gateway.toml"),
]
"""Extras, each with a command that needs it."""
PIPELINE = 'name = "p"\n[in.a]\ntopic = "a"\n[out.b]\nfrom = "a"\ntopic = "b"\n'
GATEWAY = '[oidc]\nissuer = "https://issuer.example"\naudience = "tidelog"\njwks = "keys"\n'


@pytest.mark.parametrize(("extra", "command"), [(extra, command) for extra, *command in NEEDY])
def test_what_needs_an_extra_says_which(installed: Installed, extra: str, command: list[str]) -> None:
    for name, text in (("pipeline.toml", PIPELINE), ("gateway.toml", GATEWAY), ("keys", "k1:")):
        (installed.folder / name).write_text(text)
    done = installed.try_to_run(*command)
    last = done.stderr.decode().splitlines()[-1]
    assert done.returncode != 0 and last.endswith(f": pip install 'tidelog[{extra}]'"), done.stderr.decode()


USERS_TEST = """
import asyncio

import tidelog


def test_sync(tidelog_cluster):
    tidelog_cluster.topic("orders")
    with tidelog.sync.connect(tidelog_cluster.address) as log, log.producer("orders") as producer:
        producer.send(b"one")
    assert [record.value for record in tidelog_cluster.records("orders")] == [b"one"]


def test_asyncio(tidelog_faulty_cluster):
    cluster = tidelog_faulty_cluster

    async def main():
        await cluster.awaitable.topic("orders")
        async with tidelog.aio.connect(cluster.address) as log, log.producer("orders") as producer:
            await producer.send(b"one")
            await cluster.awaitable.restart(await cluster.awaitable.kill_leader("orders"))
            await producer.send(b"two")

    asyncio.run(main())
    assert [record.value for record in cluster.records("orders")] == [b"one", b"two"]
"""


def test_the_extra_for_tests_brings_pytest_the_fixtures_of_tidelog(
    distributions: tuple[Path, Path], tmp_path: Path
) -> None:
    made = Installed(tmp_path, distributions[1], extra="testing")
    (tmp_path / "test_program.py").write_text(USERS_TEST)
    said = made.run("python", "-m", "pytest", "-W", "error", "-q", "test_program.py").decode()
    assert said.splitlines()[-1].startswith("2 passed"), said


@pytest.fixture
def port(installed: Installed) -> Iterator[int]:
    """The gateway's; what was started there is ended."""
    yield free_base_port(10)
    if (installed.folder / "cluster" / "cluster.json").exists():
        LocalCluster.load(installed.folder / "cluster").stop()


def test_the_three_services_run_from_it(installed: Installed, port: int) -> None:
    said = installed.run("python", "-c", "import tidelog, tidelog_gateway as g; print(tidelog.__file__, g.__file__)")
    assert said.decode().count(str(installed.site)) == 2, "what runs is what was installed"
    numbers = ("--controllers", "1", "--replicas", "1", "--gateways", "1", "--base-port", str(port))
    gateway = ("--gateway", f"ws://127.0.0.1:{port}")
    installed.run("tidelog", "cluster", "up", "--data", "cluster", "--detach", *numbers)
    installed.run("tidelog", "topics", "create", "lines", *gateway)
    installed.run("tidelog", "produce", "lines", *gateway, stdin=b"one\ntwo\n")
    assert installed.run("tidelog", "consume", "lines", "--from", "earliest", "--to-end", *gateway) == b"one\ntwo\n"
    answers = {}
    for page in ("console/", "healthz", "metrics"):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=HEAL_S) as answer:
            answers[page] = answer.read()
            assert answer.status == 200 and answers[page], page
    (script,) = re.findall(rb'"([^"]+/app.js)"', answers["console/"])
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/console/{script.decode()}", timeout=HEAL_S) as answer:
        assert answer.status == 200 and answer.read()
    installed.run("python", "-m", "tidelog.probe", "--ready", "--port", str(port))
    installed.run("tidelog", "cluster", "down", "--data", "cluster")


async def test_the_cluster_for_development_runs_from_it(installed: Installed, port: int) -> None:
    command = [installed.bin / "tidelog", "dev", "--data", "dev", "--port", str(port)]
    process = await trio.lowlevel.open_process(
        list(map(str, command)), cwd=installed.folder, env=installed.environ, stdout=subprocess.PIPE
    )
    try:
        with trio.fail_after(HEAL_S):
            assert process.stdout is not None
            said = b""
            while b"Ctrl-C ends it" not in said:
                more = await process.stdout.receive_some()
                assert more, said.decode()
                said += more
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 0
    finally:
        process.kill()
        await process.wait()
        await process.stdout.aclose()
