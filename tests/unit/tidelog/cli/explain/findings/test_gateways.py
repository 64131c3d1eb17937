"""What the doctor says of the clients of gateways: quotas that are used up, and connections that are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidelog.cli.explain.findings.finding import Finding
from tidelog.cli.explain.findings.gateways import RECENT_MS, examine_gateways, examine_refusal
from tidelog.cli.explain.gateway_looks import GatewayLook, UsedQuota, look_at_page, look_of
from tidelog.errors import refuse
from tidelog.wire.messages import MetricsAnswer, RefusedClient

NOW = 10_000_000
PAGE = """# HELP tidelog_gateway_connections Clients that are connected.
tidelog_gateway_connections 20.0
tidelog_gateway_connections_limit 20.0
tidelog_gateway_principal_connections{principal="a \\"b\\""} 3.0
tidelog_gateway_principal_connections{principal="hog"} 17.0
tidelog_gateway_quota_refusals_total{principal="hog",rate="bytes_in_s"} 7.0
tidelog_gateway_quota_refusals_total{principal="meek",rate="requests_s"} 2.0
tidelog_gateway_quota_pause_seconds{principal="hog",rate="bytes_in_s"} 0.25
"""


def refused(cause: str, ago_ms: int = 2000, **more: object) -> RefusedClient:
    fields = {"name": "app", "times": 4, "first_ms": NOW - 9000, "last_ms": NOW - ago_ms} | more
    return RefusedClient(cause, "10.0.0.9", **fields)  # type: ignore[arg-type]


def found(*rows: RefusedClient, used: tuple[UsedQuota, ...] = ()) -> list[Finding]:
    look = GatewayLook("ws://g1", 20, 20, (("hog", 17), ("meek", 3)), used, rows, NOW)
    return list(examine_gateways([look]))


def test_a_look_has_what_happened_between_two_answers() -> None:
    before = MetricsAnswer(PAGE.replace("7.0", "3.0").replace("0.25", "0"), time_ms=NOW - 4000)
    look = look_of("g1", before, MetricsAnswer(PAGE, time_ms=NOW, refused=(refused("gateway_full"),)))
    assert look.used == (UsedQuota("hog", "bytes_in_s", 4, 4.0, 0.25),), "meek has not waited since"
    assert (look.connections, look.limit, look.principals) == (20, 20, (("hog", 17), ('a "b"', 3)))
    assert look.now_ms == NOW and len(look.refused) == 1


def test_a_gateway_of_an_earlier_release_has_no_limit() -> None:
    assert look_at_page("g1", "tidelog_gateway_connections 3.0\n").limit == -1
    assert look_at_page("g1", "").connections == 0


def test_nothing_is_said_of_a_gateway_that_refuses_nobody() -> None:
    assert found() == []


def test_a_quota_that_is_used_up_names_who_waits_and_how_to_raise_it() -> None:
    (one,) = found(used=(UsedQuota("hog", "bytes_in_s", 4, 3.9, 0.25),))
    assert one.cause == "quota-used-up" and one.what.startswith("hog sends more than its quota of bytes_in_s")
    assert one.evidence == "Requests and batches had to wait 4 times within 4 s, and the next must wait 0.2 s."
    assert "tidelog quotas set hog --bytes-in" in one.next_step


def test_a_full_gateway_is_named_with_those_who_fill_it() -> None:
    (one,) = found(refused("gateway_full"))
    assert one.cause == "gateway-full" and "client_max_connections = 20" in one.what
    assert "4 connections" in one.evidence and "hog 17, meek 3" in one.evidence and "another gateway" in one.next_step


def test_a_full_gateway_that_let_this_command_in_is_named_though_it_refused_nobody() -> None:
    look = GatewayLook("ws://g1", 21, 20, (("hog", 17), ("meek", 4)), now_ms=NOW)
    (one,) = examine_gateways([look])
    assert one.cause == "gateway-full" and "reserved for operators" in one.evidence and "hog 17" in one.evidence
    assert not list(examine_gateways([replace(look, connections=20)])), "the last place may be that of this command"
    assert not list(examine_gateways([replace(look, limit=-1)]))


def test_an_address_that_has_all_its_connections_is_another_cause() -> None:
    (one,) = found(refused("address_full"))
    assert one.cause == "address-connections-used-up" and "10.0.0.9" in one.what and one.evidence
    (one,) = found(refused("principal_full", principal="hog"))
    assert one.cause == "principal-connections-used-up" and one.what.startswith("hog ")


@pytest.mark.parametrize(
    ("cause", "code", "words"),
    [
        ("token_revoked", "token-revoked", "the token t9 of billing, which was revoked"),
        ("token_expired", "token-expired", "the token t9 of billing, which has expired"),
    ],
)
def test_a_token_that_is_not_valid_is_named_with_its_principal(cause: str, code: str, words: str) -> None:
    row = refused(cause, token="t9", principal="billing")
    (one,) = found(row, replace(row, address="10.0.0.8"))
    assert one.cause == code and words in one.what and "10.0.0.9, 10.0.0.8" in one.what
    assert "8 connections" in one.evidence and "tidelog tokens create billing" in one.next_step


def test_a_token_of_no_cluster_is_named_without_a_principal() -> None:
    (one,) = found(refused("token_unknown"))
    assert one.cause == "token-unknown" and "tidelog tokens list" in one.next_step


def test_strangers_and_clients_that_were_refused_a_while_ago_are_not_said() -> None:
    assert found(refused("unauthenticated"), refused("malformed"), refused("ending")) == []
    assert found(refused("gateway_full", RECENT_MS + 1), refused("token_revoked", RECENT_MS + 1)) == []


def test_a_refusal_of_this_very_command_is_a_finding() -> None:
    look = look_at_page("ws://g1", PAGE)
    full = examine_refusal(look, refuse("OVERLOADED", "full", cause="gateway_full"))
    assert full is not None and full.cause == "gateway-full" and "hog 17" in full.evidence
    assert examine_refusal(look, refuse("UNREACHABLE", "nobody")) is None
