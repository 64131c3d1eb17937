"""The commands that a banner suggests name the gateway where that is not the one that they ask anyway."""

from __future__ import annotations

import pytest
from tidelog.cli.connection_options import DEFAULT_GATEWAY
from tidelog.cli.local.first_steps import first_steps

OTHER = "ws://127.0.0.1:9300"


@pytest.mark.parametrize(
    ("gateway", "variable", "option"),
    [
        (DEFAULT_GATEWAY, None, ""),
        (OTHER, None, f" --gateway {OTHER}"),
        (OTHER, OTHER, ""),
        (DEFAULT_GATEWAY, OTHER, f" --gateway {DEFAULT_GATEWAY}"),
        ("", OTHER, ""),
    ],
)
def test_the_gateway_is_named_where_it_must_be(
    gateway: str, variable: str | None, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIDELOG_GATEWAY", raising=False)
    if variable is not None:
        monkeypatch.setenv("TIDELOG_GATEWAY", variable)
    assert list(first_steps(gateway))[1:] == [
        f"  tidelog topics create hello{option}",
        f"  printf 'hello\\n' | tidelog produce hello{option}",
        f"  tidelog consume hello --to-end{option}",
    ]
