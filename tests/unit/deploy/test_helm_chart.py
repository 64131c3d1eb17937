"""The chart for Kubernetes: what it renders with its defaults is what ``deploy/kubernetes`` holds and
``test_kubernetes.py`` checks; with other values it is checked here. Tests ``deploy/helm``."""

from __future__ import annotations

import json
import shutil
import subprocess
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from helm.render import CHART, FILES, HELM, KUBERNETES, MANIFESTS, manifest, render
from support.deployment_files import ROOT, SERVICES, configured, documents, image_settings

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
needs_helm = pytest.mark.skipif(not HELM.exists(), reason="Helm is not here: the chart is not rendered (make helm)")
Object = dict[str, Any]
OTHER: Object = {
    "cluster": "billing",
    "image": {"registry": "registry.example:5000", "tag": "9.9.9", "pullPolicy": "Always", "pullSecrets": ["login"]},
    "controller": {
        "replicas": 5,
        "storageClass": "fast",
        "storage": "20Gi",
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "log", "operator": "Exists", "effect": "NoSchedule"}],
    },
    "replica": {
        "replicas": 7,
        "updateStrategy": "OnDelete",
        "config": {
            "encryption_key_file": "/etc/tidelog/keys/keys",
            "settings": {"tail_cache_bytes": 1_000_000_000, "shutdown_s": 5.0},
        },
        "secrets": [{"name": "log-keys", "path": "/etc/tidelog/keys"}],
        "resources": {"requests": {"cpu": 2, "memory": "2Gi"}},
    },
    "gateway": {
        "config": {"superusers": ["root", "ops"], "total_max_bytes": 2_000_000_000},
        "service": {"type": "LoadBalancer", "annotations": {"example/kind": "internal"}},
    },
    "networkPolicies": {"monitoringNamespace": "watch"},
}
"""Other values than the defaults, of every kind."""


def objects(values: Object) -> dict[tuple[str, str], Object]:
    """Return what the chart renders with these values, by kind and name."""
    found = [one for one in yaml.safe_load_all(render(values)) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def pod(rendered: dict[tuple[str, str], Object], service: str) -> Object:
    spec: Object = rendered["StatefulSet", service]["spec"]["template"]["spec"]
    return spec


def test_chart_and_manifests_have_the_version_of_the_project() -> None:
    (chart,) = documents(CHART / "Chart.yaml")
    assert chart["name"] == PROJECT["name"]
    assert chart["version"] == chart["appVersion"] == PROJECT["version"]
    assert chart["kubeVersion"] == f">={KUBERNETES}.0-0"
    sets = [one for name in FILES for one in documents(MANIFESTS / name) if one["kind"] == "StatefulSet"]
    images = {container["image"] for one in sets for container in one["spec"]["template"]["spec"]["containers"]}
    assert images == {f"tidelog/{service}:{PROJECT['version']}" for service in SERVICES}


def test_the_schema_knows_every_value_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    del schema["properties"]["global"]  # Helm's own

    def known(schema: Object) -> Object | None:
        below = schema.get("properties")
        return None if below is None else {name: known(one) for name, one in below.items()}

    def there(values: Object, schema: Object) -> Object | None:
        below = schema.get("properties")
        return None if below is None else {name: there(one, below.get(name, {})) for name, one in values.items()}

    (values,) = documents(CHART / "values.yaml")
    assert known(schema) == there(values, schema)


@needs_helm
def test_helm_finds_nothing(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(OTHER))
    for values in (CHART / "values.yaml", tmp_path / "values.yaml"):
        command = [HELM, "lint", CHART, "--strict", "--kube-version", KUBERNETES, "--values", values]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@needs_helm
@pytest.mark.parametrize("name", FILES)
def test_the_manifests_are_what_the_chart_renders(name: str) -> None:
    assert (MANIFESTS / name).read_text() == manifest(name), "make manifests"


@needs_helm
@pytest.mark.parametrize("values", [{}, OTHER], ids=["defaults", "others"])
def test_what_is_rendered_is_of_the_form_that_kubernetes_defines(values: Object) -> None:
    rendered = objects(values)
    for one in rendered.values():
        kubernetes_validate.validate(one, KUBERNETES, strict=True)
    assert len(rendered) == len(objects({}))


@needs_helm
@pytest.mark.parametrize("service", SERVICES)
def test_services_start_with_what_the_values_say(service: str, tmp_path: Path) -> None:
    rendered = objects(OTHER)
    file = tmp_path / f"{service}.toml"
    file.write_text(rendered["ConfigMap", service]["data"][file.name])
    environ = {
        one["name"]: one.get("value", f"{service}-0").replace("$(TIDELOG_NODE)", f"{service}-0")
        for one in pod(rendered, service)["containers"][0]["env"]
    }
    config = configured(service, image_settings(service) | environ, file)
    controllers = {f"controller-{i}": f"wss://controller-{i}.controller:9192" for i in range(5)}
    if service == "controller":
        assert config.peers == controllers and config.cluster == "billing"
    else:
        assert list(config.controllers) == list(controllers.values())
    if service == "replica":
        assert config.encryption_key_file == "/etc/tidelog/keys/keys"
        assert (config.settings.tail_cache_bytes, config.settings.shutdown_s) == (1_000_000_000, 5.0)
    if service == "gateway":
        assert config.authentication and config.authorization
        assert list(config.superusers) == ["root", "ops"] and config.total_max_bytes == 2_000_000_000


@needs_helm
def test_pods_are_what_the_values_say() -> None:
    rendered = objects(OTHER)
    for service in SERVICES:
        spec, (container,) = pod(rendered, service), pod(rendered, service)["containers"]
        assert container["image"] == f"registry.example:5000/tidelog/{service}:9.9.9"
        assert container["imagePullPolicy"] == "Always" and spec["imagePullSecrets"] == [{"name": "login"}]
    assert rendered["StatefulSet", "replica"]["spec"]["replicas"] == 7
    assert rendered["StatefulSet", "replica"]["spec"]["updateStrategy"] == {"type": "OnDelete"}
    (claim,) = rendered["StatefulSet", "controller"]["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["resources"] == {"requests": {"storage": "20Gi"}}
    assert pod(rendered, "controller")["nodeSelector"] == {"disk": "fast"}
    assert pod(rendered, "controller")["tolerations"] == OTHER["controller"]["tolerations"]
    spec, (container,) = pod(rendered, "replica"), pod(rendered, "replica")["containers"]
    assert {"name": "log-keys", "mountPath": "/etc/tidelog/keys", "readOnly": True} in container["volumeMounts"]
    assert {"name": "log-keys", "secret": {"secretName": "log-keys", "defaultMode": 0o440}} in spec["volumes"]
    assert container["resources"]["requests"] == {"cpu": 2, "memory": "2Gi"}
    assert rendered["Service", "clients"]["spec"]["type"] == "LoadBalancer"
    assert rendered["Service", "clients"]["metadata"]["annotations"] == {"example/kind": "internal"}
    ingress = rendered["NetworkPolicy", "replica"]["spec"]["ingress"]
    assert ingress[1]["from"][0]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "watch"}
    assert not [name for kind, name in objects({"networkPolicies": {"enabled": False}}) if kind == "NetworkPolicy"]


@needs_helm
def test_the_notes_name_what_is_needed_next(tmp_path: Path) -> None:
    """Helm shows notes only where there is a Kubernetes cluster: here they are rendered as the text of an object."""
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    notes = (chart / "templates" / "NOTES.txt").read_text()
    (chart / "templates" / "notes.yaml").write_text("notes: |\n" + textwrap.indent(notes, "  "))
    options = ("--kube-version", KUBERNETES, "--namespace", "logs", "--set", "gateway.config.authentication=false")
    command = [HELM, "template", "tidelog", chart, *options, "--show-only", "templates/notes.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = yaml.safe_load(done.stdout)["notes"]
    assert f"Tidelog {PROJECT['version']}: 3 controllers, 3 replica servers, 2 gateways" in said
    assert "controller-tls, replica-tls, gateway-tls" in said and "--namespace logs port-forward" in said
    assert "Authentication is off" in said


@needs_helm
def test_another_configuration_restarts_the_pods_of_its_service_and_no_others() -> None:
    def marks(values: Object) -> dict[str, str]:
        sets = {name: one for (kind, name), one in objects(values).items() if kind == "StatefulSet"}
        return {
            name: one["spec"]["template"]["metadata"]["annotations"]["tidelog/config"] for name, one in sets.items()
        }

    before, after = marks({}), marks({"gateway": {"config": {"audit": False}}})
    assert {name for name in before if before[name] != after[name]} == {"gateway"}


@needs_helm
@pytest.mark.parametrize(
    "values",
    [
        {"replicas": 5},
        {"controller": {"replicas": 4}},
        {"replica": {"config": "tail_cache_bytes = 1"}},
        {"replica": {"storage": "lots"}},
        {"gateway": {"service": {"type": "Loadbalancer"}}},
        {"controller": {"secrets": [{"name": "keys"}]}},
    ],
    ids=str,
)
def test_values_that_mean_nothing_are_refused(values: Object) -> None:
    with pytest.raises(RuntimeError, match=r"values don't meet the specifications of the schema"):
        render(values)
