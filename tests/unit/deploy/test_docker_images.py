"""The Containerfile and the composition of a cluster, without building anything: all that they name is looked up.
``make images-check`` builds the images and runs them. Tests ``deploy/docker``."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from images.build import CONTAINERFILE, TARGETS, VERSION, name_of
from support.deployment_files import (
    DEPLOY,
    ROOT,
    SERVICES,
    USER,
    configured,
    documents,
    image,
    image_environment,
    image_settings,
    patience_s,
    seconds,
    stages,
)
from tidelog.cli.local.dev import dev
from tidelog.probe import main as probe

FOLDER = DEPLOY / "docker"
COMPOSE = FOLDER / "compose.yaml"
BIN = Path(sys.executable).parent
MORE = ("security", "oidc")
"""Extras that every image has."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def test_hadolint_finds_nothing() -> None:
    done = subprocess.run([BIN / "hadolint", CONTAINERFILE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_is_an_image_for_each_service_and_one_for_a_trial() -> None:
    assert TARGETS == tuple(name for name in stages() if name not in ("build", "common")) == (*SERVICES, "tidelog")
    assert all(stages()[target][0] == ("FROM", f"common AS {target}") for target in TARGETS)


def test_the_build_copies_the_files_that_the_wheel_is_made_of() -> None:
    copied = [path for name, value in stages()["build"] if name == "COPY" for path in value.split()[:-1]]
    assert all((ROOT / path).exists() for path in copied)
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"pyproject.toml", "README.md", *PROJECT["license-files"]}
    needed |= {package.split("/")[0] for package in build["packages"]}
    assert needed <= set(copied)
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert {path for pattern in sent for path in ROOT.glob(pattern)} == {ROOT / path for path in copied}


def test_images_have_the_dependencies_of_the_services() -> None:
    installs = [value for name, value in stages()["build"] if name == "RUN"]
    needed = [*PROJECT["dependencies"], *(one for extra in MORE for one in EXTRAS[extra])]
    assert {re.split(r"[<>=]", one)[0] for one in needed} <= set(pinned(FOLDER / "requirements.txt"))
    for step in [step.strip() for install in installs for step in install.split("&&") if " install " in step]:
        files = re.findall(r"--requirement (\S+)", step)
        assert ("--require-hashes" in step and files) or "--no-deps --no-index" in step, step
        assert all((FOLDER / name).exists() for name in files)
    assert any("--require-hashes" in install for install in installs)


def pinned(path: Path) -> dict[str, str]:
    """Return the packages that a requirements file names, each with its version. Fails if a package has no hash."""
    found = {}
    for entry in re.split(r"\n(?=\S)", re.sub(r"(?m)^ *#.*\n?", "", path.read_text())):
        name, version = re.match(r"(\S+)==(\S+)", entry).groups()  # type: ignore[union-attr]
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), f"{name} is installed unseen"
        found[name] = version
    return found


@pytest.mark.parametrize("name", ["requirements.txt", "build-requirements.txt"])
def test_images_have_the_dependencies_of_the_tests(name: str) -> None:
    assert pinned(FOLDER / name).items() <= pinned(ROOT / "constraints.txt").items()
    assert "--require-hashes -r constraints.txt" in (ROOT / "Makefile").read_text()


def test_the_base_is_pinned_by_its_digest_and_the_same_for_what_compiles_and_what_runs() -> None:
    bases = re.findall(r"(?m)^ARG BASE=(.*)$", CONTAINERFILE.read_text())
    assert len(bases) == 1 and re.search(r"@sha256:[0-9a-f]{64}$", bases[0])
    assert [stages()[name][0][1] for name in ("build", "common")] == ["${BASE} AS build", "${BASE} AS common"]


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_has_a_name_and_the_version_of_the_project(target: str) -> None:
    labels = dict(pair.split("=", 1) for value in image(target)["LABEL"] for pair in shlex.split(value))
    names = {name.removeprefix("org.opencontainers.image.") for name in labels}
    assert names == {"title", "description", "version", "licenses"}
    assert labels["org.opencontainers.image.title"] == name_of(target)
    assert labels["org.opencontainers.image.version"] == PROJECT["version"] == VERSION
    assert labels["org.opencontainers.image.licenses"] == PROJECT["license"]


@pytest.mark.parametrize("service", SERVICES)
def test_the_image_starts_the_service_on_its_port_as_nobody_in_particular(service: str) -> None:
    made = image(service)
    config = configured(service, image_settings(service) | {"TIDELOG_INSECURE": "true"})
    python, flag, module = json.loads(made["ENTRYPOINT"][0])
    assert (python, flag) == ("python", "-m") and importlib.util.find_spec(f"{module}.__main__")
    assert module == f"tidelog_{service}"
    assert image_environment(service)["PATH"].split(":")[0] == "/opt/tidelog/bin"
    assert made["EXPOSE"] == [str(config.port)] and config.port == SERVICES[service]().port
    assert config.host == "0.0.0.0"
    assert made["USER"] == [f"{USER}:{USER}"] and made["STOPSIGNAL"] == ["SIGTERM"]
    if hasattr(config, "data_dir"):
        assert json.loads(made["VOLUME"][0]) == [config.data_dir]
        assert f"--owner tidelog --group tidelog --mode 0700 {config.data_dir}" in made["RUN"][0]
    else:
        assert "VOLUME" not in made


def test_the_image_for_a_trial_is_the_command_and_starts_a_cluster_that_can_be_reached() -> None:
    made = image("tidelog")
    assert json.loads(made["ENTRYPOINT"][0]) == ["tidelog"] and PROJECT["scripts"]["tidelog"]
    command, *arguments = json.loads(made["CMD"][0])
    given = dev.make_context(command, arguments).params
    assert (command, given["host"]) == ("dev", "0.0.0.0")
    assert json.loads(made["VOLUME"][0]) == [str(given["folder"])]
    assert made["EXPOSE"] == [str(given["port"])] == [image_settings("tidelog")["TIDELOG_PORT"]]


@pytest.mark.parametrize("target", TARGETS)
def test_the_image_asks_the_service_whether_it_is_alive(
    target: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options, _, command = image(target)["HEALTHCHECK"][0].partition(" CMD ")
    python, flag, module, *arguments = json.loads(command)
    assert (python, flag, module) == ("python", "-m", "tidelog.probe")
    asked: list[str] = []
    monkeypatch.setattr("tidelog.probe._ask", lambda asking: asked.append(asking.port) or (200, ""))
    assert probe(arguments, image_settings(target)) == 0, "it knows from the environment where to ask"
    assert asked == [image_settings(target)["TIDELOG_PORT"]]
    given = dict(option.removeprefix("--").split("=") for option in options.split())
    assert seconds(given["timeout"]) >= 4.0, "the probe gives up by itself and says why"
    assert set(given) == {"interval", "timeout", "start-period", "retries"}


# --- the composition ----------------------------------------------------------------------------------------


def composed() -> dict[str, dict[str, Any]]:
    return documents(COMPOSE)[0]["services"]


def role(service: dict[str, Any]) -> str:
    name, _, tag = service["image"].partition(":")
    assert tag == VERSION
    return str(name.removeprefix("tidelog/"))


def all_settings(service: dict[str, Any]) -> dict[str, str]:
    return image_settings(role(service)) | service["environment"]


def test_the_composition_is_of_the_form_that_compose_defines() -> None:
    command = [BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_service_starts_with_its_settings_and_has_time_to_stop() -> None:
    for name, service in composed().items():
        config = configured(role(service), all_settings(service))
        assert config.node == name
        assert seconds(service["stop_grace_period"]) >= patience_s(config)
        assert service["restart"] == "on-failure" and service["read_only"] is True
        build = service["build"]
        assert (FOLDER / build["context"]).resolve() == ROOT
        assert ROOT / build["dockerfile"] == CONTAINERFILE and build["target"] == role(service)


def test_they_find_each_other() -> None:
    services = composed()
    addresses = {name: f"ws://{name}:{image_settings(role(s))['TIDELOG_PORT']}" for name, s in services.items()}
    controllers = {name: addresses[name] for name, service in services.items() if role(service) == "controller"}
    assert len(controllers) == 3
    for name, service in services.items():
        config = configured(role(service), all_settings(service))
        if role(service) == "controller":
            assert config.peers == controllers
        else:
            assert list(config.controllers) == list(controllers.values())
        if role(service) == "replica":
            assert config.advertised_url == addresses[name]


def test_clients_of_this_machine_are_told_of_both_gateways_by_their_published_ports() -> None:
    for service in composed().values():
        if role(service) == "gateway":
            published = service["ports"][0].rpartition(":")[0]
            assert configured("gateway", all_settings(service)).advertised_url == f"ws://{published}"


def test_every_service_that_keeps_data_has_a_volume_of_its_own() -> None:
    volumes = documents(COMPOSE)[0]["volumes"]
    kept = {name: s["volumes"] for name, s in composed().items() if role(s) != "gateway"}
    assert kept == {name: [f"{name}:{image_settings('replica')['TIDELOG_DATA_DIR']}"] for name in volumes}
    assert image_settings("replica")["TIDELOG_DATA_DIR"] == image_settings("controller")["TIDELOG_DATA_DIR"]


def test_nothing_but_gateways_can_be_reached_and_from_this_machine_only() -> None:
    """The services of the composition trust their network: who is not in it must not get there."""
    document = documents(COMPOSE)[0]
    assert document["networks"]["cluster"] == {"internal": True}
    ports = {name: service.get("ports", []) for name, service in composed().items()}
    assert ports == {name: [] for name in ports} | {"g1": ["127.0.0.1:9292:9292"], "g2": ["127.0.0.1:9293:9292"]}
    for service in composed().values():
        networks = ["cluster", "clients"] if role(service) == "gateway" else ["cluster"]
        assert service["networks"] == networks
