"""Writes ``deploy/kubernetes`` from the chart: ``python deploy/helm/render.py`` (``make manifests``).

The chart is the only source of both: what ``kubectl apply --kustomize`` applies is what the chart renders with its
default values."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "tidelog"
MANIFESTS = ROOT / "deploy" / "kubernetes"
KUBERNETES = "1.30"
"""The oldest version that the chart is for."""
HELM = ROOT / "build" / "bin" / "helm"
"""Where ``make helm`` builds Helm."""
FILES = ("controller.yaml", "replica.yaml", "gateway.yaml", "network.yaml")
HEAD = "# Rendered from the chart in deploy/helm by 'make manifests': change it there.\n"


def render(values: Mapping[str, Any], *options: str) -> str:
    """Return what the chart renders with these values besides the defaults. Raises ``RuntimeError`` with what Helm
    complains about, and ``FileNotFoundError`` if there is no Helm."""
    command = [HELM, "template", "tidelog", str(CHART), "--kube-version", KUBERNETES, "--values", "-", *options]
    done = subprocess.run(command, input=yaml.safe_dump(dict(values)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return done.stdout


def manifest(file: str) -> str:
    """Return the text of a file of ``deploy/kubernetes``, as the chart renders it with its default values."""
    rendered = render({}, "--show-only", f"templates/{file}")
    text = re.sub(r"(?m)^# Source: .*\n|[ ]+$", "", rendered).removeprefix("---\n")
    return HEAD + text


if __name__ == "__main__":
    for name in FILES:
        (MANIFESTS / name).write_text(manifest(name))
