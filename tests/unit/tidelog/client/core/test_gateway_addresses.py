"""Which gateway a client tries next, and which of those that the cluster names it may use."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog.client.core.gateway_addresses import GatewayAddresses
from tidelog.net.addresses import MAX_ADVERTISED

A, B, C, D = (f"ws://{host}:9292" for host in "abcd")


def as_named(urls: list[str]) -> None:
    """Leave a list in the order in which the gateway has named its entries."""


def addresses(*given: str, discover: bool = True) -> GatewayAddresses:
    return GatewayAddresses(given, as_named, discover=discover)


def tries(known: GatewayAddresses, count: int) -> list[str]:
    return [known.next() for _ in range(count)]


def rounds(known: GatewayAddresses, count: int) -> list[list[str]]:
    """The addresses of so many rounds."""
    found = []
    for _ in range(count):
        tried = [known.next()]
        while not known.round_over:
            tried.append(known.next())
        found.append(tried)
    return found


def test_without_found_ones_the_given_addresses_take_turns() -> None:
    known = addresses(A, B)
    assert rounds(known, 2) == [[A, B], [A, B]]
    known.on_lost(A)
    assert rounds(known, 2) == [[B, A], [A, B]]


def test_after_a_loss_what_was_given_comes_first_then_one_that_was_found() -> None:
    known = addresses(A)
    assert known.next() == A
    known.learn([A, B, C], A)
    known.on_lost(A)
    assert rounds(known, 3) == [[A, B], [A, C], [A, B]]


def test_a_client_at_a_found_gateway_that_ends_tries_the_given_ones_and_then_another() -> None:
    known = addresses(A, B)
    known.learn([C, D], A)
    known.on_lost(A)
    assert tries(known, 3) == [B, A, C]
    known.on_lost(C)
    assert tries(known, 3) == [A, B, D]


def test_each_answer_replaces_what_was_found_and_fresh_ones_come_first() -> None:
    known = addresses(A)
    known.learn([B, C], A)
    known.on_lost(A)
    assert tries(known, 2) == [A, B]  # which may have failed
    known.learn([B, C, D], A)
    assert known.found == [D, C, B]
    known.learn([D], A)
    assert known.found == [D]


def test_an_answer_that_names_none_changes_nothing() -> None:
    known = addresses(A)
    known.learn([B], A)
    known.learn([], A)
    assert known.found == [B]


def test_fresh_addresses_are_shuffled() -> None:
    known = GatewayAddresses([A], list.reverse)
    known.learn([B, C, D], A)
    assert known.found == [D, C, B]


def test_nothing_is_found_by_a_client_that_does_not_want_it() -> None:
    known = addresses(A, discover=False)
    known.learn([B], A)
    assert known.found == []


@pytest.mark.parametrize("same", ["ws://A:9292", "ws://a:9292/", "WS://a:9292"])
def test_a_found_address_that_means_a_given_one_is_not_tried_twice(same: str) -> None:
    known = addresses(same)
    known.learn([A, B], same)
    assert known.found == [B]


def test_a_default_port_means_the_same() -> None:
    known = addresses("wss://log.example", "wss://b:443/x")
    known.learn(["wss://log.example:443/", "wss://b/x", "wss://b/y"], "wss://log.example")
    assert known.found == ["wss://b/y"]


LOCAL, LOCAL_TLS = "ws://127.0.0.1:9292", "wss://localhost:9292"


@pytest.mark.parametrize(
    ("given", "named", "taken"),
    [
        ([A], [B, "wss://b"], [B, "wss://b"]),
        (["wss://a"], [B, "wss://b"], ["wss://b"]),
        (["WSS://a"], [B, "wss://b"], ["wss://b"]),
        ([A, "wss://a"], [B, "wss://b"], ["wss://b"]),
        ([A], [LOCAL, "ws://localhost:1", "ws://[::1]:1", LOCAL_TLS], []),
        ([LOCAL], ["ws://127.0.0.1:9293", B, "wss://b"], ["ws://127.0.0.1:9293", "wss://b"]),
        ([LOCAL, A], ["ws://127.0.0.1:9293", B], ["ws://127.0.0.1:9293", B]),
        ([LOCAL_TLS], [LOCAL, "wss://127.0.0.1:9293", "wss://b"], ["wss://127.0.0.1:9293", "wss://b"]),
    ],
    ids=[
        "plain",
        "TLS",
        "TLS in capitals",
        "both",
        "of another machine",
        "tunnel",
        "tunnel and plain",
        "tunnel, TLS",
    ],
)
def test_a_found_address_is_as_safe_as_what_was_given(given: list[str], named: list[str], taken: list[str]) -> None:
    known = addresses(*given)
    known.learn(named, given[0])
    assert known.found == taken


def test_an_address_of_this_machine_counts_over_a_link_to_this_machine_only() -> None:
    known = addresses(LOCAL, A)
    known.learn(["ws://127.0.0.1:1"], A)
    assert known.found == []


@pytest.mark.parametrize(
    "url",
    ["", "b:9292", "http://b", "ws://", "ws://u:p@b", "ws://b/?q", "ws://b/#f", "ws://b c", "ws://b\n", "ws://b:x",
     "ws://[b", "ws://ä", f"ws://{'b' * 251}"],
)  # fmt: skip
def test_what_is_no_address_is_ignored(url: str) -> None:
    known = addresses(A)
    known.learn([url, B], A)
    assert known.found == [B]


@pytest.mark.parametrize("url", ["ws://a:99999", "ws://a:x", "ws://[a"])
def test_a_given_address_that_is_none_does_not_keep_others_from_being_found(url: str) -> None:
    known = addresses(url, A)
    known.learn([A, B], A)
    assert known.found == [B]


def test_there_is_a_bound() -> None:
    known = addresses(A)
    known.learn([f"ws://b{n}" for n in range(1000)], A)
    assert len(known.found) == MAX_ADVERTISED


URLS = st.sampled_from([A, B, C, D, "wss://a", "wss://b", LOCAL, LOCAL_TLS, "ws://127.0.0.1:1", "http://x", "ws://"])
VALID = URLS.filter(lambda url: url not in ("http://x", "ws://"))
STEPS = st.lists(st.one_of(st.just("fail"), st.just("lose"), st.lists(URLS, max_size=8)), max_size=60)


@settings(max_examples=300, deadline=None)
@given(st.lists(VALID, min_size=1, max_size=3, unique=True), STEPS, st.randoms(use_true_random=False))
def test_in_whatever_order_links_fail_and_end_every_address_is_tried(given, steps, rng) -> None:  # type: ignore[no-untyped-def]
    """Each given address within as many tries as there are, and one; each found one in its turn."""
    known = GatewayAddresses(given, rng.shuffle)
    url = known.next()
    for step in steps:
        if step == "lose":
            known.on_lost(url)
        elif isinstance(step, list):
            known.learn(step, url)
            known.on_lost(url)
        url = known.next()
        assert url in given or url in known.found
        assert len(set(known.found)) == len(known.found) and not set(known.found) & set(given)
        if any(each.startswith("wss:") for each in given):
            assert all(each.startswith("wss:") for each in known.found)
        if not any(each in (A, B, C, D) for each in given):
            assert not {A, B, C, D} & set(known.found), "no plain text to another machine"
    span = len(given) + 1
    tried = tries(known, 2 * span * (len(known.found) + 1))
    for start in range(len(tried) - 2 * span):
        assert set(given) <= set(tried[start : start + 2 * span])
    counts = Counter(tried)
    assert all(counts[each] >= 1 for each in known.found)
    assert all(counts[each] <= 4 for each in known.found), "none is tried more than its turn"
