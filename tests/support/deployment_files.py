"""Reads the files of ``deploy/`` for tests that compare them with the services."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import yaml
from dockerfile_parse import DockerfileParser
from tidelog.runtime.config import load, settings_of
from tidelog_controller.config import ControllerConfig
from tidelog_gateway.config import GatewayConfig
from tidelog_replica.config import ReplicaConfig

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
SERVICES: dict[str, Any] = {"controller": ControllerConfig, "replica": ReplicaConfig, "gateway": GatewayConfig}
USER = 10001
"""The user id of the services in containers."""


@cache
def documents(path: Path) -> list[dict[str, Any]]:
    """Return the YAML documents of a file. They are cached: do not change them."""
    return list(yaml.safe_load_all(path.read_text()))


@cache
def stages() -> dict[str, list[tuple[str, str]]]:
    """Return the stages of the Containerfile by name, each as its instructions with their values, FROM first."""
    text = (DEPLOY / "docker" / "Containerfile").read_bytes()
    found: dict[str, list[tuple[str, str]]] = {}
    one: list[tuple[str, str]] = []  # what stands before the first FROM belongs to no stage
    for line in DockerfileParser(fileobj=BytesIO(text), env_replace=False).structure:
        if line["instruction"] == "FROM":
            one = found.setdefault(line["value"].split(" AS ")[1], [])
        one.append((line["instruction"], line["value"]))
    return found


def image(target: str) -> dict[str, list[str]]:
    """Return the instructions that make the image of a target, by name: those of the stage that it begins from and
    its own."""
    base = stages()[target][0][1].split(" AS ")[0]
    found: dict[str, list[str]] = {}
    for instruction, value in [*stages()[base][1:], *stages()[target][1:]]:
        found.setdefault(instruction, []).append(value)
    return found


def image_environment(target: str) -> dict[str, str]:
    """Return the variables that the image sets."""
    return dict(pair.split("=", 1) for value in image(target)["ENV"] for pair in shlex.split(value))


def image_settings(target: str) -> dict[str, str]:
    """Return the variables of the image that are settings of its service."""
    return {name: value for name, value in image_environment(target).items() if name.startswith("TIDELOG_")}


def configured(service: str, environ: Mapping[str, str], toml: Path | None = None) -> Any:
    """Return the configuration that a service makes of these variables. Raises ``ConfigError`` as the service does at
    its start, and AssertionError for a variable that the service does not know."""
    kind = SERVICES[service]
    known = {setting.variable for setting in settings_of(kind)}
    assert set(environ) <= known, f"{service} has no {set(environ) - known}"
    return load(kind, toml, environ=environ)


def patience_s(config: Any) -> float:
    """Return the longest time in seconds of an orderly stop: twice the shutdown time of the configuration."""
    own = getattr(config, "shutdown_s", None)
    return 2.0 * (config.settings.shutdown_s if own is None else own)


def seconds(text: str) -> float:
    """Return the seconds of a text such as ``30s`` or ``30``."""
    found = re.fullmatch(r"([0-9]+)s?", text)
    assert found, text
    return float(found[1])


def bytes_of(text: str) -> int:
    """Return the bytes of a quantity such as ``512Mi``."""
    number, unit = text[:-2], text[-2:]
    return int(number) << {"Mi": 20, "Gi": 30}[unit]
