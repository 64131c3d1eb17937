"""Which clients a gateway has refused lately, and why. Tests ``clients/refused_clients.py``; ``test_connections.py``
has the connections that get into the table."""

from __future__ import annotations

from tidelog_gateway.clients.refused_clients import CAUSES, KEPT_MS, MOST, RefusedClients


def test_refusals_of_one_client_for_one_cause_are_one_row() -> None:
    refused = RefusedClients()
    for ms in (10, 20, 30):
        refused.add("gateway_full", "10.0.0.9", "app", {}, ms)
    refused.add("gateway_full", "10.0.0.9", "other", {}, 40)
    first, second = refused.recent(50)
    assert (first.times, first.first_ms, first.last_ms) == (3, 10, 30) and second.name == "other"
    assert refused.causes["gateway_full"] == 4 and refused.causes["token_revoked"] == 0


def test_a_token_is_one_row_whoever_shows_it_and_names_its_principal() -> None:
    refused = RefusedClients()
    detail: dict[str, int | str] = {"token": "t1", "principal": "billing"}
    refused.add("token_revoked", "10.0.0.9", "a", detail, 10)
    refused.add("token_revoked", "10.0.0.9", "b", detail, 20)
    (row,) = refused.recent(20)
    assert (row.token, row.principal, row.times) == ("t1", "billing", 2)


def test_a_client_that_was_refused_long_ago_is_not_listed() -> None:
    refused = RefusedClients()
    refused.add("gateway_full", "10.0.0.9", "app", {}, 0)
    assert len(refused.recent(KEPT_MS)) == 1 and refused.recent(KEPT_MS + 1) == ()
    refused.add("gateway_full", "10.0.0.9", "app", {}, KEPT_MS + 1)
    assert refused.recent(KEPT_MS + 1)[0].times == 1, "counted anew"


def test_the_table_is_bounded_and_keeps_the_last() -> None:
    refused = RefusedClients()
    for number in range(MOST + 5):
        refused.add("malformed", f"10.0.0.{number}", "", {}, number)
    rows = refused.recent(MOST + 5)
    assert len(rows) == MOST and rows[-1].address == f"10.0.0.{MOST + 4}"


def test_every_cause_is_known_from_the_start() -> None:
    assert tuple(RefusedClients().causes) == CAUSES
