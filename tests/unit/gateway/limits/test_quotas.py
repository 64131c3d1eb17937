"""Quotas: what a bucket gives, who has to wait, and for how long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from support.producers import Bench
from tidelog.errors import TidelogError, refuse
from tidelog.types import Quota
from tidelog.wire.messages import CopyRead, Credit, Metadata, ReadCopy, Subscribe
from tidelog_gateway.clients.connections import ClientView
from tidelog_gateway.cluster_view import ClusterView
from tidelog_gateway.limits.quota_enforcer import QuotaEnforcer
from tidelog_gateway.limits.quotas import Quotas
from tidelog_gateway.rights.authorizer import Authorizer, AuthorizerSettings
from tidelog_gateway.rights.own_transactions import OwnTransactions
from tidelog_gateway.rights.producer_tickets import ProducerTickets


def wait_of(quotas: Quotas, *rates: str, now: float, principal: str = "alice") -> int:
    """How long the refusal says to wait (ms); 0: there is none."""
    refusal = quotas.refuse_over_quota(principal, rates, now)
    assert refusal is None or (refusal.code == "QUOTA_EXCEEDED" and refusal.retriable)
    return 0 if refusal is None else int(refusal.detail["pause_ms"])


def test_each_rate_is_separate_and_the_longest_wait_is_returned() -> None:
    quotas = Quotas()
    quotas.update([Quota("alice", bytes_in_s=10, requests_s=1)], 0.0)
    quotas.spend("alice", "requests_s", 1, 0.0)
    assert wait_of(quotas, "requests_s", now=0.0) == 1000
    assert wait_of(quotas, "bytes_in_s", "bytes_out_s", now=0.0) == 0
    quotas.spend("alice", "bytes_in_s", 100, 0.0)
    assert wait_of(quotas, "requests_s", "bytes_in_s", now=0.0) == 9100
    assert wait_of(quotas, "requests_s", "bytes_in_s", now=9.2) == 0


def test_others_and_those_without_a_quota_do_not_wait() -> None:
    quotas = Quotas()
    quotas.update([Quota("alice", bytes_in_s=1)], 0.0)
    quotas.spend("alice", "bytes_in_s", 1000, 0.0)
    quotas.spend("bob", "bytes_in_s", 1000, 0.0)
    assert quotas.has_quota("alice") and not quotas.has_quota("bob")
    assert wait_of(quotas, "bytes_in_s", now=0.0, principal="bob") == 0


def test_what_had_to_wait_is_counted_by_principal_and_rate() -> None:
    quotas = Quotas()
    quotas.update([Quota("alice", bytes_in_s=1, connections=0)], 0.0)
    assert list(quotas.pauses(0.0)) == [] and quotas.refusals == {}
    quotas.spend("alice", "bytes_in_s", 3, 0.0)
    assert wait_of(quotas, "bytes_in_s", now=0.0) and wait_of(quotas, "bytes_in_s", now=0.5)
    assert quotas.refuse_connection("alice") is not None
    quotas.count_refusal("bob", "bytes_in_s")
    assert quotas.refusals == {("alice", "bytes_in_s"): 2, ("alice", "connections"): 1}, "bob has no quota"
    assert [(who, rate) for who, rate, _ in quotas.pauses(0.5)] == [("alice", "bytes_in_s")]
    quotas.update([], 1.0)
    assert quotas.refusals == {} and list(quotas.pauses(1.0)) == []


def test_a_debt_outlives_other_changes_and_ends_with_another_quota() -> None:
    quotas = Quotas()
    quota = Quota("alice", bytes_in_s=1)
    quotas.update([quota], 0.0)
    quotas.spend("alice", "bytes_in_s", 1000, 0.0)
    quotas.update([quota, Quota("bob", requests_s=1)], 0.0)
    assert wait_of(quotas, "bytes_in_s", now=0.0) > 0
    quotas.update([Quota("alice", bytes_in_s=2)], 0.0)
    assert wait_of(quotas, "bytes_in_s", now=0.0) == 0


def test_connections_are_counted_even_before_the_principal_has_a_quota() -> None:
    quotas = Quotas()
    quotas.on_open("alice")
    quotas.update([Quota("alice", connections=2)], 0.0)
    assert quotas.refuse_connection("alice") is None
    quotas.on_open("alice")
    refusal = quotas.refuse_connection("alice")
    assert refusal is not None and refusal.code == "QUOTA_EXCEEDED"
    assert quotas.refuse_connection("bob") is None
    quotas.on_close("alice")
    assert quotas.refuse_connection("alice") is None


def test_a_producer_waits_for_the_given_pause_and_sends_the_same_batch_again() -> None:
    bench = Bench()
    bench.add(b"a")
    bench.send()
    bench.refuse(0, refuse("QUOTA_EXCEEDED", "too much", pause_ms=2500))
    bench.now += 2.4
    assert bench.send() == []
    bench.now += 0.1
    assert bench.send() == [[b"a"]]


def test_nobody_waits_for_ever_because_a_server_says_so() -> None:
    assert refuse("QUOTA_EXCEEDED", "", pause_ms=10**9).pause_s == 60
    assert TidelogError("", code="QUOTA_EXCEEDED", pause_ms="soon").pause_s == 0


class Sent:
    """As much of a link as is metered."""

    def __init__(self) -> None:
        self.sent_bytes = 5000  # before there was a quota: they do not count


async def test_the_bytes_that_a_copy_check_reads_count_for_the_quota_of_the_client(
    autojump_clock: object,
) -> None:
    metering, link = QuotaEnforcer(trio.current_time, lambda link, credit: None), Sent()
    metering.on_open(link, "alice")  # type: ignore[arg-type]
    metering.update((Quota("alice", bytes_out_s=100),))
    own = OwnTransactions(ProducerTickets(ClusterView()))
    view = ClientView(Authorizer(AuthorizerSettings()), None, ClusterView(), "alice", "", metering.charge, own, 1)  # type: ignore[arg-type]
    asked = ReadCopy("r1", "t", 0, 0)
    assert metering.refuse_over_quota(link, asked) is None  # type: ignore[arg-type]
    view.on_answer(asked, refuse("OFFLINE", ""))
    assert metering.refuse_over_quota(link, asked) is None  # type: ignore[arg-type]
    view.on_answer(asked, CopyRead(0, 9, 9, 600, b"x"))
    refusal = metering.refuse_over_quota(link, asked)  # type: ignore[arg-type]
    assert refusal is not None and refusal.code == "QUOTA_EXCEEDED" and refusal.detail["pause_ms"] == 5010


def test_records_are_held_back_also_while_a_subscription_is_refused() -> None:
    """Answers to other requests alone may use up a small quota, so that no subscription begins."""
    clock = SimpleNamespace(now=0.0)
    metering, link = QuotaEnforcer(lambda: clock.now, lambda link, credit: None), Sent()
    client: Any = link
    metering.on_open(client, "alice")
    metering.update((Quota("alice", bytes_out_s=100),))
    subscribe = Subscribe(1, "t", 0, 0, 1000)
    link.sent_bytes += 600
    assert metering.held_ms(client) == 0, "nothing was asked for"
    assert metering.refuse_over_quota(client, subscribe) is not None
    assert metering.held_ms(client) == 5010
    clock.now = 3.0
    assert metering.held_ms(client) == 2010
    clock.now = 6.0
    assert metering.held_ms(client) == 0
    assert metering.refuse_over_quota(client, subscribe) is None
    link.sent_bytes += 600
    assert metering.refuse_over_quota(client, Metadata(("t",))) is None and metering.held_ms(client) == 0
    metering.on_close(client)


@pytest.mark.parametrize(("lifted", "given_at"), [(False, 5.01), (True, 0.0)])
async def test_credit_is_held_until_the_debt_is_paid_or_there_is_no_quota(
    autojump_clock: object, lifted: bool, given_at: float
) -> None:
    began, given, all_given = trio.current_time(), [], trio.Event()

    def give(link: object, credit: Credit) -> None:
        given.append((trio.current_time() - began, credit))
        if len(given) == 2:
            all_given.set()

    metering, link = QuotaEnforcer(trio.current_time, give), Sent()
    metering.on_open(link, "alice")  # type: ignore[arg-type]
    metering.update((Quota("alice", bytes_out_s=100),))
    assert not metering.holds_back(link, Credit(1, 5))  # type: ignore[arg-type]
    link.sent_bytes += 600
    for credit in (Credit(1, 5), Credit(2, 7), Credit(1, 6)):
        assert metering.holds_back(link, credit)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(metering.run)
        if lifted:
            metering.update(())
        await all_given.wait()
        nursery.cancel_scope.cancel()
    assert given == [(pytest.approx(given_at), Credit(1, 11)), (pytest.approx(given_at), Credit(2, 7))]
