"""Bounds per principal: each is reached by its own principal, frees what ends, and leaves the others alone."""

from __future__ import annotations

from test_subscription import Bench
from tidelog.effects import Answer
from tidelog.errors import TidelogError
from tidelog.types import Quota
from tidelog.wire.messages import Done, Message, Subscribe, Unsubscribe
from tidelog_gateway.config import GatewayConfig
from tidelog_gateway.core.quotas import Quotas
from tidelog_gateway.core.settings import SubscriptionSettings


def over(answer: Message | TidelogError | None, setting: str, principal: str = "mallory") -> bool:
    """Whether it is the refusal that names this setting."""
    if not isinstance(answer, TidelogError):
        return False
    assert answer.code in ("LIMIT_EXCEEDED", "QUOTA_EXCEEDED"), answer
    assert answer.detail["setting"] == setting and answer.detail["principal"] == principal
    assert f"{setting} = {answer.detail['limit']}" in answer.message
    return True


def test_the_defaults_leave_room_for_others() -> None:
    gateway = GatewayConfig()
    assert gateway.principal_max_connections < gateway.client_max_connections
    assert gateway.principal_max_subscriptions < gateway.client_max_subscriptions * gateway.client_max_connections


# --- at a gateway --------------------------------------------------------------------------------------------


def test_connections_of_a_principal() -> None:
    quotas = Quotas(2)
    for _ in range(2):
        assert quotas.why_no_connection("mallory") is None
        quotas.on_open("mallory")
    refused = quotas.why_no_connection("mallory")
    assert over(refused, "principal_max_connections")
    assert refused is not None and refused.retriable and refused.pause_s == 1.0, "connections end: come again"
    assert quotas.why_no_connection("alice") is None
    quotas.on_close("mallory")
    assert quotas.why_no_connection("mallory") is None


def test_a_quota_of_connections_takes_the_place_of_the_bound() -> None:
    quotas = Quotas(2)
    quotas.update([Quota("mallory", connections=3), Quota("alice", requests_s=1)], 0.0)
    for name in ("mallory", "alice"):
        for _ in range(2):
            quotas.on_open(name)
    assert quotas.why_no_connection("mallory") is None
    assert over(quotas.why_no_connection("alice"), "principal_max_connections", "alice")


def test_subscriptions_of_a_principal_over_all_its_connections() -> None:
    core = Bench(SubscriptionSettings(principal_max_subscriptions=2)).core
    for source, principal in ((1, "mallory"), (2, "mallory"), (3, "alice")):
        core.on_link_opened(source, principal)

    def answer(source: int, sub: int) -> object:
        (first, *_) = core.on_subscribe(source, 9, Subscribe(sub, "t", 0, 0, 0), 0.0)
        assert isinstance(first, Answer)
        return first.message

    assert answer(1, 1) == answer(2, 1) == Done()
    for source in (1, 2):
        assert over(answer(source, 2), "principal_max_subscriptions")  # type: ignore[arg-type]
    assert answer(3, 1) == Done()
    core.on_unsubscribe(1, 9, Unsubscribe(1))
    assert answer(2, 2) == Done()
    core.on_link_closed(2)
    assert answer(1, 1) == answer(1, 2) == Done()
    assert over(answer(1, 3), "principal_max_subscriptions")  # type: ignore[arg-type]
