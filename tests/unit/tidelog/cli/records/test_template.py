"""Templates of ``consume --format``: each field, escapes, and what is refused with its reason."""

from __future__ import annotations

import pytest
from tidelog.batch.format import Record
from tidelog.cli.records.consume import HELP
from tidelog.cli.records.formats import as_it_is, for_terminal
from tidelog.cli.records.template import FIELDS, compile_template, time_of, unescaped

RECORD = Record("orders", 2, 17, 4, 1500, b"k\xff", b"v\n\x1b[31m", (("a", b"1"), ("b", b"\x00")))
BARE = Record("orders", 0, 0, -1, 0, None, None, ())


@pytest.mark.parametrize(
    ("template", "shown", "bare"),
    [
        ("%t %p %o %e", b"orders 2 17 4", b"orders 0 0 -1"),
        ("%k|%v", b"k\xff|v\n\x1b[31m", b"|"),
        ("%K %V", b"2 7", b"-1 -1"),
        ("%h", b"a=1,b=\x00", b""),
        ("%T %d", b"1500 1970-01-01T00:00:01.500+00:00", b"0 1970-01-01T00:00:00.000+00:00"),
        (r"%%\t\n\r\0\\\x1f\xfF%p", b"%\t\n\r\0\\\x1f\xff2", b"%\t\n\r\0\\\x1f\xff0"),
        (r"\x25t é%p", "%t é2".encode(), "%t é0".encode()),
    ],
)
def test_a_template_prints_its_fields_and_no_more(template: str, shown: bytes, bare: bytes) -> None:
    style = compile_template(template, as_it_is)
    assert (style(RECORD), style(BARE)) == (shown, bare)


def test_on_a_terminal_the_record_is_escaped_and_the_template_is_not() -> None:
    style = compile_template(r"\x1b[1m%v\x1b[0m %k %h\n", for_terminal)
    assert style(RECORD) == rb"" + b"\x1b[1mv\\n\\x1b[31m\x1b[0m k\\xff a=1,b=\\x00\n"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("%v %", "a lone %; %% prints"),
        ("%s", "%s is no field; there are %t %p"),
        ("%\n", "is no field"),
        (r"%v\q", r"\q is no escape"),
        (r"%v\x1", r"\x is no escape"),
        ("%v\\", "is no escape"),
    ],
)
def test_a_wrong_template_is_refused_with_the_reason(template: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\x1b]*$") as raised:
        compile_template(template, as_it_is)
    assert words in str(raised.value)


def test_a_percent_sign_is_a_field_in_templates_only() -> None:
    assert unescaped(r"%v\t") == b"%v\t"


def test_bytes_of_the_command_line_that_are_not_utf_8_stay_what_they_are() -> None:
    assert unescaped(b"\xff|".decode(errors="surrogateescape")) == b"\xff|"


def test_the_help_explains_every_field() -> None:
    assert not [letter for letter in FIELDS if f"%{letter}  " not in HELP]


def test_a_time_after_the_year_9999_is_a_number() -> None:
    assert (time_of(2**63 - 1), time_of(253_402_300_800_000)) == (2**63 - 1, 253_402_300_800_000)
    assert time_of(253_402_300_799_999) == "9999-12-31T23:59:59.999+00:00"
