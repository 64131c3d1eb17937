"""Which words are which question. Tests ``tidelog.explain.questions``."""

from __future__ import annotations

import pytest
from tidelog.errors import ConfigError
from tidelog.explain.questions import (
    DuplicateQuestion,
    GapQuestion,
    GroupQuestion,
    PartitionQuestion,
    Question,
    RecordQuestion,
    SlowQuestion,
    parse_question,
)


@pytest.mark.parametrize(
    ("words", "question"),
    [
        ("orders/0", PartitionQuestion("orders", 0)),
        ("gap orders/0@7", GapQuestion("orders", 0, 7)),
        (
            "duplicate orders/0@7 t/1@9",
            DuplicateQuestion(RecordQuestion("orders", 0, 7), RecordQuestion("t", 1, 9)),
        ),
        ("slow orders", SlowQuestion("orders", None)),
        ("slow orders/3", SlowQuestion("orders", 3)),
        ("group billing", GroupQuestion("billing")),
        ("orders/0@1234", RecordQuestion("orders", 0, 1234)),
    ],
)
def test_words_that_are_a_question(words: str, question: Question) -> None:
    assert parse_question(words.split()) == question


@pytest.mark.parametrize(
    "words",
    [
        "orders",
        "orders/x",
        "orders/0@",
        "orders/0@-1",
        "orders/0 orders/1",
        "/0",
        "",
        "gap orders/0",
        "group",
        "duplicate orders/0@1",
        "slow",
    ],
)
def test_words_that_are_none(words: str) -> None:
    with pytest.raises(ConfigError, match="TOPIC/PARTITION@OFFSET"):
        parse_question(words.split())
