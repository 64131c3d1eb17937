"""Prometheus beside an incident: its rules and its configuration, and which alert counts."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

import pytest
from incidents.prometheus import FIRES_S, RULES, Labels, Prometheus, configuration, rules
from tidelog.net.tls import TlsOptions


def alert(name: str, **labels: str) -> Labels:
    return frozenset({"alertname": name, **labels}.items())


@dataclass(frozen=True, slots=True)
class Fires(Prometheus):
    """Says that these alerts fire, one answer after the other, and the last for ever."""

    answers: list[dict[Labels, str]] = field(default_factory=list)

    async def firing(self) -> dict[Labels, str]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def test_rules_fire_at_once_and_are_otherwise_the_same() -> None:
    text = RULES.read_text()
    changed = rules(text, at_once=True)
    assert set(re.findall(r"^ +for: (.*)$", changed, re.MULTILINE)) == {"0s"}
    assert re.sub(r"for: .*", "", changed) == re.sub(r"for: .*", "", text)
    assert rules(text, at_once=False) == text


def test_all_processes_are_scraped_with_the_certificate_of_the_client() -> None:
    [job] = json.loads(configuration(["127.0.0.1:1", "127.0.0.1:2"], TlsOptions()))["scrape_configs"]
    assert job == {"job_name": "tidelog", "static_configs": [{"targets": ["127.0.0.1:1", "127.0.0.1:2"]}]}
    [job] = json.loads(configuration([], TlsOptions("ca.pem", "c.pem", "c.key")))["scrape_configs"]
    presented = {"cert_file": "c.pem", "key_file": "c.key", "insecure_skip_verify": True}
    assert (job["scheme"], job["tls_config"]) == ("https", presented)


async def test_an_alert_counts_that_did_not_fire_before(
    autojump_clock: object, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {alert("Lags", group="a"): "a lags"}
    healthy = before | {alert("Lags", group="healthy"): "healthy lags"}
    after = healthy | {alert("Lags", group="b"): "b lags"}
    await Fires("", [before, healthy, after]).wait_fires("Lags", before, "healthy")
    assert capsys.readouterr().out == "Lags fires: b lags\n"


async def test_the_alerts_that_fire_instead_are_named(autojump_clock: object) -> None:
    before = {alert("Lags", group="a"): "a lags"}
    others = before | {alert("Full"): "The disk is full"}
    words = f"Lags does not fire within {FIRES_S:g} s; Prometheus says The disk is full; a lags"
    with pytest.raises(TimeoutError, match=words):
        await Fires("", [others]).wait_fires("Lags", before, "")
