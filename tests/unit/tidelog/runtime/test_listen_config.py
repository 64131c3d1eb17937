"""Where services may listen, and with what; certificates on the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from tidelog.cli.main import main
from tidelog.errors import ConfigError
from tidelog.runtime.config import load
from tidelog.runtime.listen_config import is_loopback
from tidelog_controller.config import ControllerConfig
from tidelog_gateway.config import GatewayConfig
from tidelog_replica.config import ReplicaConfig

SERVICES = (ControllerConfig, ReplicaConfig, GatewayConfig)
TLS = {"tls_cert": "x.pem", "tls_key": "x.key"}


def fault_of(kind: type, **flags: object) -> str:
    """What is wrong with these settings; "" for nothing."""
    if kind is not ControllerConfig:
        flags["controllers"] = ["wss://127.0.0.1:9192"]
    try:
        load(kind, flags=flags, environ={})
    except ConfigError as error:
        return error.message
    return ""


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "log.example", "fe80::1"])
@pytest.mark.parametrize("kind", SERVICES)
def test_no_service_listens_where_strangers_are_without_tls_and_authentication(kind: type, host: str) -> None:
    told = fault_of(kind, host=host)
    assert "no TLS and no authentication" in told
    assert "set tls_cert and tls_key" in told and "insecure = true" in told and "tidelog certs" in told
    assert "no authentication" in fault_of(kind, host=host, **TLS)
    assert fault_of(kind, host=host, insecure=True) == ""


@pytest.mark.parametrize("kind", [ControllerConfig, ReplicaConfig])
def test_services_authenticate_each_other_by_certificates(kind: type) -> None:
    assert fault_of(kind, host="0.0.0.0", **TLS, tls_ca="ca.pem") == ""
    assert "no TLS." in fault_of(kind, host="0.0.0.0", tls_ca="ca.pem")


def test_a_gateway_authenticates_clients_only_when_configured() -> None:
    assert "set authentication = true" in fault_of(GatewayConfig, host="0.0.0.0", **TLS, tls_ca="ca.pem")
    assert fault_of(GatewayConfig, host="0.0.0.0", **TLS, tls_ca="ca.pem", authentication=True) == ""


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_this_machine_is_no_stranger(host: str) -> None:
    assert is_loopback(host)
    assert all(fault_of(kind, host=host) == "" for kind in SERVICES)


def test_settings_that_do_not_go_together_are_reported() -> None:
    assert "tls_cert and tls_key go together" in fault_of(GatewayConfig, tls_cert="x.pem")
    told = fault_of(ControllerConfig, tls_ca="ca.pem", peers={"c1": "ws://127.0.0.1:1"})
    assert "peers.c1 = 'ws://127.0.0.1:1': with tls_ca the other services speak TLS" in told
    assert "must be a URL" in fault_of(ReplicaConfig, advertised_url="http://127.0.0.1:1")


def test_certs_makes_an_authority_and_the_requested_certificates(tmp_path: Path) -> None:
    made = CliRunner().invoke(
        main, ["certs", str(tmp_path), "--node", "replica/r1", "--client", "billing", "--host", "log.example"]
    )
    assert made.exit_code == 0, made.output
    there = sorted(path.name for path in tmp_path.iterdir())
    assert there == [
        "ca.key", "ca.pem", "client-billing.key", "client-billing.pem", "replica-r1.key", "replica-r1.pem",
    ]  # fmt: skip


@pytest.mark.parametrize("node", ["r1", "broker/r1", "replica/", "replica/../../x"])
def test_certs_refuses_a_node_that_is_no_service(tmp_path: Path, node: str) -> None:
    refused = CliRunner().invoke(main, ["certs", str(tmp_path), "--node", node])
    assert refused.exit_code == 2
    assert not (tmp_path / "ca.pem").exists()


@pytest.mark.parametrize("kind", SERVICES)
def test_variables_exported_for_the_command_do_not_affect_services(kind: type) -> None:
    names = ("TOKEN", "CLIENT_CA", "CLIENT_CERT", "CLIENT_KEY", "CLIENT_TOKEN_FILE", "GATEWAY")
    made = load(kind, environ={f"TIDELOG_{name}": "x" for name in names})
    assert made.tls is None


# --- the name localhost ------------------------------------------------------------------------------------------

LITERAL = "ws://127.0.0.1:9093"
LOCALHOST = ("ws://localhost:9093", "ws://LocalHost.:9093", "ws://a.localhost:9093")


@pytest.mark.parametrize("url", LOCALHOST)
def test_a_service_with_a_secret_does_not_go_by_the_name_localhost(url: str) -> None:
    """Another user listens at the address of that name which the service does not use, and passes the handshake on:
    the URL that was dialed is right."""
    with_secret = {"cluster_secret_file": "/etc/tidelog/secret"}
    for config in (
        ReplicaConfig(advertised_url=url, **with_secret),
        ReplicaConfig(controllers=(url,), **with_secret),
        ControllerConfig(peers={"c1": url, "c2": LITERAL}, **with_secret),
        GatewayConfig(controllers=(url,), **with_secret),
    ):
        [fault] = config.faults()
        assert repr(url) in fault and "write 127.0.0.1 or [::1]" in fault
        assert replace(config, cluster_secret_file="").faults() == []


@pytest.mark.parametrize("url", [LITERAL, "ws://[::1]:9093", "ws://r1:9093", "ws://localhost.example:9093"])
def test_addresses_and_names_of_the_network_are_taken(url: str) -> None:
    assert ReplicaConfig(advertised_url=url, cluster_secret_file="/etc/tidelog/secret").faults() == []


def test_with_tls_certificates_say_which_service_it_is() -> None:
    files = {"tls_cert": "c", "tls_key": "k", "tls_ca": "a", "cluster_secret_file": "s"}
    urls = {"advertised_url": "wss://localhost:9093", "controllers": ("wss://localhost:9192",)}
    assert ReplicaConfig(**files, **urls).faults() == []  # type: ignore[arg-type]


# --- what clients are told of a gateway --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://g1:9292", "must be a URL"),
        ("ws://g1:9292?x", "must be a URL"),
        ("ws://0.0.0.0:9292", "name one that clients reach"),
        ("wss://[::]:9292", "name one that clients reach"),
        (f"wss://{'g' * 250}", "longer than 255"),
    ],
)
def test_a_gateway_advertises_only_what_clients_can_use(url: str, words: str) -> None:
    assert words in fault_of(GatewayConfig, advertised_url=url)


def test_a_gateway_with_tls_advertises_tls() -> None:
    files = {"tls_cert": "c.pem", "tls_key": "k.pem"}
    assert "speaks TLS" in fault_of(GatewayConfig, **files, advertised_url="ws://g1:9292")
    assert fault_of(GatewayConfig, **files, advertised_url="wss://g1:9292") == ""
    assert fault_of(GatewayConfig, advertised_url="wss://proxy.example/log") == "", "a proxy may speak it"


@pytest.mark.parametrize(
    ("host", "advertised_url", "told"),
    [
        ("127.0.0.1", "", "ws://listening:1"),
        ("10.0.0.7", "", "ws://listening:1"),
        ("10.0.0.7", "wss://proxy.example", "wss://proxy.example"),
        ("0.0.0.0", "", ""),
        ("::", "", ""),
        ("0.0.0.0", "ws://g1:9292", "ws://g1:9292"),
    ],
)
def test_by_default_a_gateway_advertises_where_it_listens_if_that_is_one_address(
    host: str, advertised_url: str, told: str
) -> None:
    assert GatewayConfig(host=host, advertised_url=advertised_url).advertised("ws://listening:1") == told
