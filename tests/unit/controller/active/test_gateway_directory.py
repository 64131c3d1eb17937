"""The gateways that clients are told of: what they announce, for how long it holds, and how many there may be."""

from __future__ import annotations

import pytest
from tidelog.errors import TidelogError
from tidelog.net.addresses import MAX_ADVERTISED
from tidelog.wire.messages import GatewayInfo, GatewaysAnswer
from tidelog_controller.active.gateway_directory import GatewayDirectory


def test_a_gateway_gets_the_urls_of_all_sorted_by_name() -> None:
    known = GatewayDirectory()
    known.announce(1, "g2", "ws://two")
    assert known.announce(2, "g1", "wss://one/path") == GatewaysAnswer(
        (GatewayInfo("g1", "wss://one/path"), GatewayInfo("g2", "ws://two"))
    )
    assert known.urls == {"g1": "wss://one/path", "g2": "ws://two"}


def test_an_announcement_holds_until_the_next_one_or_the_end_of_its_link() -> None:
    known = GatewayDirectory()
    known.announce(1, "g1", "ws://old")
    known.announce(1, "g1", "ws://new")
    assert known.urls == {"g1": "ws://new"}
    known.announce(2, "g2", "ws://two")
    assert known.announce(1, "g1", "") == GatewaysAnswer((GatewayInfo("g2", "ws://two"),))
    known.on_link_closed(2)
    known.on_link_closed(3)
    assert known.urls == {}


def test_the_old_link_of_a_gateway_that_was_started_again_takes_nothing_away() -> None:
    known = GatewayDirectory()
    known.announce(1, "g1", "ws://before")
    known.announce(2, "g1", "ws://after")
    known.on_link_closed(1)
    assert known.urls == {"g1": "ws://after"}


@pytest.mark.parametrize(
    "url", ["g1:9292", "http://g1", "ws://u:p@g1", "ws://g1?x", "ws://\x1b[2J", f"ws://{'g' * 255}"]
)
def test_what_is_no_url_is_refused_and_withdraws_the_one_before(url: str) -> None:
    known = GatewayDirectory()
    known.announce(1, "g1", "ws://g1")
    refused = known.announce(1, "g1", url)
    assert isinstance(refused, TidelogError) and refused.code == "MALFORMED"
    assert len(refused.message) < 250 and refused.message.isprintable()
    assert known.urls == {}


def test_there_is_a_bound() -> None:
    known = GatewayDirectory()
    for source in range(MAX_ADVERTISED + 10):
        answer = known.announce(source, f"g{source:03}", "ws://g")
    assert isinstance(answer, GatewaysAnswer)
    assert [gateway.node for gateway in answer.gateways] == [f"g{n:03}" for n in range(MAX_ADVERTISED)]
