"""Messages of syslog, among them the examples of the RFCs."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")

from tidelog.spark.pipelines.values.conversion import BadValue
from tidelog.spark.pipelines.values.syslog import syslog_decoder

DECODE = syslog_decoder(2016, UTC)


def at(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000)


def test_a_message_as_in_rfc_5424() -> None:
    line = (
        '<165>1 2003-10-11T22:14:15.003Z mymachine.example.com evntslog - ID47 [exampleSDID@32473 iut="3" '
        'eventSource="Appli\\"ca\\]tion" eventID="1011" iut="4"][examplePriority@32473] \ufeffAn event: entry…'
    )
    found = DECODE(line.encode(), 0)
    assert found == {
        "priority": 165, "facility": 20, "severity": 5, "timestamp": datetime(2003, 10, 11, 22, 14, 15, 3000, UTC),
        "host": "mymachine.example.com", "app": "evntslog", "pid": None, "msgid": "ID47",
        "structured_data": {
            "exampleSDID@32473": {"iut": ["3", "4"], "eventSource": ['Appli"ca]tion'], "eventID": ["1011"]},
            "examplePriority@32473": {},
        },
        "message": "An event: entry…",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rest", "elements", "message"),
    [
        ("-", None, None),
        ("- ", None, ""),
        ("- some", None, "some"),
        ("[a]", {"a": {}}, None),
        ("[a] some", {"a": {}}, "some"),
    ],
)
def test_what_a_message_may_lack(rest: str, elements: object, message: str | None) -> None:
    found = DECODE(f"<0>1 - - - - - {rest}".encode(), 0)
    assert found is not None
    assert (found["timestamp"], found["host"], found["app"], found["pid"], found["msgid"]) == (None,) * 5
    assert (found["structured_data"], found["message"]) == (elements, message)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("<34>Oct 11 22:14:15 mymachine su: 'su root' failed", (34, "mymachine", "su", None, "'su root' failed")),
        ("Oct  1 22:14:15 h sshd[24200]: Failed: x", (None, "h", "sshd", "24200", "Failed: x")),
        ("Oct 01 22:14:15 h kernel: ", (None, "h", "kernel", None, "")),
        ("Oct 11 22:14:15 h last message repeated 2 times", (None, "h", None, None, "last message repeated 2 times")),
        ("2016-10-11T22:14:15.000001+02:00 h cron[1]: x", (None, "h", "cron", "1", "x")),
    ],
)
def test_messages_as_in_rfc_3164_and_in_files(line: str, expected: tuple[object, ...]) -> None:
    found = DECODE(f"{line}\n".encode(), 0)
    assert found is not None
    assert tuple(found[name] for name in ("priority", "host", "app", "pid", "message")) == expected
    assert found["timestamp"].year == 2016


def test_the_year_is_that_of_the_record() -> None:
    decode = syslog_decoder(None, ZoneInfo("Europe/Paris"))
    silvester, new_year = datetime(2025, 12, 31, 23, 59, tzinfo=UTC), datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    for line, near, year in (
        (b"Dec 31 23:59:59 h x", new_year, 2025),
        (b"Jan  1 00:59:59 h x", silvester, 2026),
        (b"Jun 15 00:00:00 h x", new_year, 2025),
        (b"Feb 29 00:00:00 h x", new_year, 2024),
    ):
        found = decode(line, at(near))
        assert found is not None and found["timestamp"].year == year, line
    found = decode(b"Jul  1 12:00:00 h x", at(new_year))
    assert found is not None and found["timestamp"].utcoffset().total_seconds() == 7200
    with pytest.raises(BadValue, match=r"^timestamp: Feb 30 00:00:00 is no time$"):
        decode(b"Feb 30 00:00:00 h x", at(new_year))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("no line of a log", "the line is not a message of syslog"),
        ("<1>2 - - - - - -", "the line is not a message of syslog"),
        ("Oct 11 22:14:15", "the line is not a message of syslog"),
        ("Oct 32 22:14:15 h x", "timestamp: Oct 32 22:14:15 2016 is no time"),
        ("Oct 11 25:14:15 h x", "timestamp: Oct 11 25:14:15 2016 is no time"),
        ("<192>1 - - - - - -", "priority: 192 is more than 191"),
        ("<1>1 2026-02-30T00:00:00Z - - - - -", "timestamp: 2026-02-30T00:00:00Z is no time"),
        ("<1>1 - - - - - x", "structured_data: the structured data is neither"),
        ('<1>1 - - - - - [a b="c"]x', "structured_data: the structured data is neither"),
        ('<1>1 - - - - - [a b="c]', "structured_data: the structured data is neither"),
        ("<1>1 - - - - - [a][a]", "structured_data: a occurs twice"),
    ],
)
def test_lines_that_are_no_messages(line: str, reason: str) -> None:
    with pytest.raises(BadValue) as caught:
        DECODE(line.encode(), 0)
    assert str(caught.value).startswith(reason)


@given(st.text() | st.from_regex(r"(<\d{1,3}>1? ?)?[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S* \S*", fullmatch=True))
def test_any_line_is_a_message_or_bad(line: str) -> None:
    with suppress(BadValue):
        DECODE(line.encode(errors="surrogatepass"), 0)
