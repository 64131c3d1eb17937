"""What is in ``deploy/``, held against the services: how a test reads it."""

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
"""Who the services are in containers."""


@cache
def documents(path: Path) -> list[dict[str, Any]]:
    """The YAML documents of a file; read once: do not change them."""
    return list(yaml.safe_load_all(path.read_text()))


@cache
def instructions(service: str) -> list[tuple[str, str]]:
    """What the Dockerfile of the service says: each instruction, and its value."""
    text = (DEPLOY / "docker" / f"{service}.Dockerfile").read_bytes()
    lines = DockerfileParser(fileobj=BytesIO(text), env_replace=False).structure
    return [(line["instruction"], line["value"]) for line in lines]


def image(service: str) -> dict[str, list[str]]:
    """Of these the ones that make the image itself, behind the last FROM."""
    found: dict[str, list[str]] = {}
    for instruction, value in instructions(service):
        if instruction == "FROM":
            found = {}
        found.setdefault(instruction, []).append(value)
    return found


def image_environment(service: str) -> dict[str, str]:
    """The variables that the image sets."""
    return dict(pair.split("=", 1) for value in image(service)["ENV"] for pair in shlex.split(value))


def image_settings(service: str) -> dict[str, str]:
    """Those of them that are settings."""
    return {name: value for name, value in image_environment(service).items() if name.startswith("TIDELOG_")}


def configured(service: str, environ: Mapping[str, str], toml: Path | None = None) -> Any:
    """The configuration that the service makes of it; raises ``ConfigError`` as the service would at its start. No
    variable may be there that it does not know."""
    kind = SERVICES[service]
    known = {setting.variable for setting in settings_of(kind)}
    assert set(environ) <= known, f"{service} has no {set(environ) - known}"
    return load(kind, toml, environ=environ)


def patience_s(config: Any) -> float:
    """How long an end in order may take: what the service waits for others, and as long again for its disk."""
    own = getattr(config, "shutdown_s", None)
    return 2.0 * (config.settings.shutdown_s if own is None else own)


def seconds(text: str) -> float:
    """``30s``, or a plain number."""
    found = re.fullmatch(r"([0-9]+)s?", text)
    assert found, text
    return float(found[1])


def bytes_of(text: str) -> int:
    """Return the bytes of a quantity such as ``512Mi``."""
    number, unit = text[:-2], text[-2:]
    return int(number) << {"Mi": 20, "Gi": 30}[unit]
