"""The manifests for Kubernetes, held against its schemas, the services' configuration and the images. Tests
``deploy/kubernetes``."""

from __future__ import annotations

import copy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from support.deployment_files import (
    DEPLOY,
    SERVICES,
    USER,
    bytes_of,
    configured,
    documents,
    image_settings,
    patience_s,
)
from tidelog.net.link import OUTBOX_BYTES
from tidelog.runtime.health import HEALTH_PATH, READY_PATH
from tidelog_controller.server import ALLOWED as CONTROLLER_PEERS

FOLDER = DEPLOY / "kubernetes"
VERSION = "1.30"
"""The oldest that it is for."""
KUBECTL = shutil.which("kubectl") or ""
PART = {"app.kubernetes.io/part-of": "tidelog"}
Object = dict[str, Any]


def kustomization() -> Object:
    (found,) = documents(FOLDER / "kustomization.yaml")
    return found


def objects() -> list[Object]:
    return [one for name in kustomization()["resources"] for one in documents(FOLDER / name)]


def named(kind: str, name: str) -> Object:
    (found,) = [one for one in objects() if one["kind"] == kind and one["metadata"]["name"] == name]
    return found


def pod(service: str) -> Object:
    return named("StatefulSet", service)["spec"]["template"]["spec"]


def container(service: str) -> Object:
    (found,) = pod(service)["containers"]
    return found


def environment(service: str, number: int) -> dict[str, str]:
    """Return the environment variables of a pod, as the kubelet would make them in a cluster whose pods know no
    zone."""
    made: dict[str, str] = {}
    for variable in container(service)["env"]:
        source = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        value = f"{service}-{number}" if source == "metadata.name" else variable.get("value", "")
        made[variable["name"]] = value.replace("$(TIDELOG_NODE)", made.get("TIDELOG_NODE", ""))
    return made


def running(service: str, number: int, tmp_path: Path) -> Any:
    """Return the configuration with which a pod runs: that of the image, the file and the variables."""
    flag, path = container(service)["args"]
    (mount,) = [m for m in container(service)["volumeMounts"] if Path(path).is_relative_to(m["mountPath"])]
    (volume,) = [v for v in pod(service)["volumes"] if v["name"] == mount["name"]]
    file = tmp_path / Path(path).name
    file.write_text(named("ConfigMap", volume["configMap"]["name"])["data"][file.name])
    assert flag == "--config"
    return configured(service, image_settings(service) | environment(service, number), file)


def test_every_object_is_of_the_form_that_kubernetes_defines() -> None:
    for one in objects():
        kubernetes_validate.validate(one, VERSION, strict=True)


def test_a_misspelt_field_would_be_seen() -> None:
    wrong = copy.deepcopy(named("StatefulSet", "replica"))
    wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 60
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSION, strict=True)


def test_every_file_is_part_of_it_and_no_two_objects_have_one_name() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {*kustomization()["resources"], "kustomization.yaml"}
    names = [(one["kind"], one["metadata"]["name"]) for one in objects()]
    assert len(set(names)) == len(names)


@pytest.mark.skipif(not KUBECTL, reason="kubectl is not here: the manifests are not rendered")
def test_kustomize_renders_the_objects_of_the_files() -> None:
    done = subprocess.run([KUBECTL, "kustomize", FOLDER], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rendered = list(yaml.safe_load_all(done.stdout))
    names = {(one["kind"], one["metadata"]["name"]) for one in rendered}
    assert names == {(one["kind"], one["metadata"]["name"]) for one in objects()}
    namespace = kustomization()["namespace"]
    assert {one["metadata"].get("namespace", namespace) for one in rendered} == {namespace}
    assert named("Namespace", namespace)


@pytest.mark.parametrize("service", SERVICES)
def test_every_pod_starts_with_its_configuration_and_tls(service: str, tmp_path: Path) -> None:
    for number in range(named("StatefulSet", service)["spec"]["replicas"]):
        config = running(service, number, tmp_path)
        assert config.node == f"{service}-{number}"
        assert config.tls_ca and config.tls_cert and not config.insecure
        assert config.tls_cert.endswith(f"/{service}-{config.node}.pem"), "as tidelog certs names it"
        assert [port["containerPort"] for port in container(service)["ports"]] == [config.port]
        if service == "gateway":
            assert config.authentication and config.authorization


def test_they_find_each_other_by_their_headless_services(tmp_path: Path) -> None:
    count = named("StatefulSet", "controller")["spec"]["replicas"]
    nodes = {f"controller-{i}": f"wss://controller-{i}.controller:9192" for i in range(count)}
    assert running("controller", 0, tmp_path).peers == nodes
    for service in ("replica", "gateway"):
        assert list(running(service, 0, tmp_path).controllers) == list(nodes.values())
    assert running("replica", 2, tmp_path).advertised_url == "wss://replica-2.replica:9092"
    for service in SERVICES:
        headless = named("Service", named("StatefulSet", service)["spec"]["serviceName"])["spec"]
        assert headless["clusterIP"] == "None"
        assert headless["ports"][0]["port"] == running(service, 0, tmp_path).port
        assert headless.get("publishNotReadyAddresses", False) == (service != "gateway")


@pytest.mark.parametrize("service", SERVICES)
def test_labels_select_the_pods_that_they_mean(service: str) -> None:
    labels = {"app.kubernetes.io/name": service, **PART}
    spec = named("StatefulSet", service)["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"] == labels
    assert named("Service", service)["spec"]["selector"] == labels
    budget = named("PodDisruptionBudget", service)["spec"]
    assert (budget["selector"]["matchLabels"], budget["maxUnavailable"]) == (labels, 1)
    (spread,) = pod(service)["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == labels
    assert spread["topologyKey"] == "topology.kubernetes.io/zone"
    assert str(pod(service)["affinity"]).count(str(labels)) == 1


def test_the_zone_is_the_rack_of_each_service_that_has_one() -> None:
    for service, config in SERVICES.items():
        variables = {variable["name"]: variable for variable in container(service)["env"]}
        assert ("TIDELOG_RACK" in variables) == hasattr(config(), "rack")
    where = variables["TIDELOG_RACK"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert where == "metadata.labels['topology.kubernetes.io/zone']"


@pytest.mark.parametrize("service", SERVICES)
def test_probes_ask_whether_it_lives_and_whether_it_is_ready(service: str) -> None:
    one = container(service)
    for name, path, arguments in (
        ("startupProbe", HEALTH_PATH, []),
        ("livenessProbe", HEALTH_PATH, []),
        ("readinessProbe", READY_PATH, ["--ready"]),
    ):
        probe = one[name]
        if service == "gateway":  # which asks no certificate for these pages
            assert probe["httpGet"] == {"path": path, "port": "tidelog", "scheme": "HTTPS"}
        else:
            assert probe["exec"]["command"] == ["python", "-m", "tidelog.probe", *arguments]
        assert probe["timeoutSeconds"] >= 4, "the probe gives up by itself and says why"
        assert probe["failureThreshold"] >= 3, "an election takes a second or two"


@pytest.mark.parametrize("service", SERVICES)
def test_pods_end_in_order_and_may_do_nothing_else(service: str, tmp_path: Path) -> None:
    spec, one = pod(service), container(service)
    assert spec["terminationGracePeriodSeconds"] >= patience_s(running(service, 0, tmp_path))
    assert spec["securityContext"]["runAsUser"] == spec["securityContext"]["fsGroup"] == USER
    assert spec["securityContext"]["runAsNonRoot"] and not spec["automountServiceAccountToken"]
    allowed = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert one["securityContext"] == allowed
    claims = named("StatefulSet", service)["spec"].get("volumeClaimTemplates", [])
    mounts = {mount["name"]: mount["mountPath"] for mount in one["volumeMounts"]}
    declared = {volume["name"] for volume in spec["volumes"]} | {claim["metadata"]["name"] for claim in claims}
    assert set(mounts) == declared
    paths = list(map(Path, mounts.values()))
    assert not [a for a in paths for b in paths if a != b and a.is_relative_to(b)], "nothing is mounted in a mount"
    config = running(service, 0, tmp_path)
    assert mounts.get("data") == getattr(config, "data_dir", None)
    assert Path(config.tls_cert).parent == Path(mounts["tls"])


@pytest.mark.parametrize("service", SERVICES)
def test_memory_is_enough_for_the_bounds_of_the_settings(service: str, tmp_path: Path) -> None:
    """By the formulas of docs/sizing.md. There is no limit on CPU: who is throttled misses heartbeats."""
    config = running(service, 0, tmp_path)
    half_sent, process = 256 << 20, 64 << 20
    needed = {
        "controller": lambda: 10_000 * 28 << 10,
        "replica": lambda: (
            config.settings.tail_cache_bytes
            + config.settings.index_cache_bytes
            + config.job_threads * (104 << 20)
            + 10_000 * 13_300
        ),
        "gateway": lambda: config.total_max_bytes + config.tail_cache_bytes + 4_000 * 21_000 + OUTBOX_BYTES,
    }[service]()
    resources = container(service)["resources"]
    assert bytes_of(resources["limits"]["memory"]) >= needed + half_sent + process
    assert set(resources["limits"]) == {"memory"} and set(resources["requests"]) == {"cpu", "memory"}


# --- who may connect to whom --------------------------------------------------------------------------------


def may_connect() -> dict[str, set[tuple[str, int]]]:
    """Return for each service the services that may connect to it and the ports, as the policies of both ends allow.
    "": any client."""
    inward: dict[str, set[tuple[str, int]]] = {service: set() for service in SERVICES}
    outward: dict[str, set[tuple[str, int]]] = {service: set() for service in SERVICES}
    for service in SERVICES:
        spec = named("NetworkPolicy", service)["spec"]
        assert spec["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": service, **PART}
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        for rule in spec["ingress"]:
            for peer in rule.get("from", [{}]):
                inward[service] |= {(who, port["port"]) for who in _who(peer) for port in rule["ports"]}
        for rule in spec["egress"]:
            for peer in rule["to"]:
                outward[service] |= {(who, port["port"]) for who in _who(peer) for port in rule["ports"]}
    return {
        service: {(who, port) for who, port in there if who not in SERVICES or (service, port) in outward[who]}
        for service, there in inward.items()
    }


def _who(peer: Object) -> list[str]:
    if "namespaceSelector" in peer:
        return list(peer["namespaceSelector"]["matchLabels"].values())
    selector = peer.get("podSelector", {})
    listed = [value for one in selector.get("matchExpressions", []) for value in one["values"]]
    name = selector.get("matchLabels", {}).get("app.kubernetes.io/name")
    return listed or ([name] if name else [""])


def test_each_service_is_reached_only_by_its_peers() -> None:
    ports = {service: config().port for service, config in SERVICES.items()}
    there = may_connect()
    for service in ("controller", "replica"):
        everyone = {(who, ports[service]) for who in (*SERVICES, "monitoring")}
        assert there[service] == everyone
    assert there["gateway"] == {("", ports["gateway"])}
    assert set(CONTROLLER_PEERS) == {*SERVICES, "client"}, "who may say what at a controller's port has not changed"


def test_other_pods_of_the_cluster_reach_nothing() -> None:
    spec = named("NetworkPolicy", "nothing-else")["spec"]
    assert spec["podSelector"]["matchLabels"] == PART
    assert spec["policyTypes"] == ["Ingress", "Egress"] and "ingress" not in spec
    (names,) = spec["egress"]
    assert {(port["protocol"], port["port"]) for port in names["ports"]} == {("UDP", 53), ("TCP", 53)}
