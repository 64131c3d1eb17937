"""Which names a port takes for its own. Tests ``net/origins.py``."""

from __future__ import annotations

import pytest
from tidelog.net.origins import Origins

REBOUND = [
    "evil.example",
    "evil.example:9292",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "127.0.0.1@evil.example",
]
REBOUND += ["", "evil.example@127.0.0.1", "127.0.0.1, evil.example", "c1", "127.0.0.1:x", "[::1", "0x7f000001"]


@pytest.mark.parametrize("host", REBOUND)
def test_without_tls_a_name_that_is_not_listed_proves_nothing(host: str) -> None:
    assert not Origins(hosts=("log.example",)).knows(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:80", "LOCALHOST", "[::1]:9192", "10.0.0.7:9192"])
def test_addresses_and_localhost_are_known(host: str) -> None:
    assert Origins().knows(host)


def test_names_that_are_listed_are_known() -> None:
    assert Origins(hosts=("Log.example",)).knows("log.example:9292")
    assert Origins(("https://log.example",)).knows("log.example:9292")


def test_behind_tls_the_certificate_proves_the_name() -> None:
    assert Origins(secure=True).knows("log.example")
