"""Errors as they travel."""

from __future__ import annotations

import pytest
from tidelog.errors import CODES, from_info, refuse
from tidelog.wire.messages import ErrorInfo


def test_an_error_arrives_as_it_was_sent() -> None:
    sent = refuse("LOG_TRUNCATED", "the logs part at 7", unknown_outcome=True, end_offset=7, leader="r1", back=-1)
    arrived = from_info(sent.to_info())
    assert (arrived.code, arrived.message, arrived.unknown_outcome) == ("LOG_TRUNCATED", "the logs part at 7", True)
    assert arrived.detail == {"end_offset": 7, "leader": "r1", "back": -1}


@pytest.mark.parametrize("code", CODES)
def test_the_flags_of_an_error_come_from_the_table(code: str) -> None:
    error = refuse(code, "text")
    assert (error.retriable, error.refresh_metadata) == (CODES[code].retriable, CODES[code].refresh_metadata)


@pytest.mark.parametrize("detail", [{"code": "x"}, {"message": "x"}, {"self": "x"}, {"n": "٣"}, {"n": "9" * 5000}])
def test_a_hostile_detail_is_only_text(detail: dict[str, str]) -> None:
    assert from_info(ErrorInfo("NOT_LEADER", "text", detail=detail)).detail == detail


def test_an_unknown_code_is_not_retriable() -> None:
    assert not from_info(ErrorInfo("FROM_THE_FUTURE", "text")).retriable
