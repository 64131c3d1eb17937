"""The runner of incidents: what counts as named, what as a false cause, and which incidents go together."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import trio
from incidents.catalogue import load_catalogue
from incidents.incident import ClusterPlan, Incident
from incidents.run import NAMED_S, Missed, pairs, wait_named, wait_silent
from incidents.stage import READERS, WORDS, Diagnosis, Stage, settings_of

ROOT = Path(__file__).resolve().parents[4]
EXPLAIN = ROOT / "shared" / "tidelog" / "cli" / "explain"


async def nothing(stage: Stage) -> None:
    """Return without a change: an incident that plants nothing."""


def incident(name: str = "one", cause: str = "disk-full", strikes: Iterable[str] = (), twin: str = "t") -> Incident:
    return Incident(name, "Sends fail.", cause, nothing, nothing, twin, strikes=frozenset(strikes))


def said(cause: str, level: str = "problem", because_of: str = "", evidence: str = "seen") -> dict[str, Any]:
    return {
        "cause": cause,
        "level": level,
        "what": f"{cause} of r1",
        "next_step": "Make room.",
        "evidence": evidence,
        "because_of": because_of,
    }


class Doctor:
    """Stands for a stage: says one thing after the other, and the last for ever, each after a second."""

    def __init__(self, *answers: tuple[dict[str, Any], ...]) -> None:
        self.answers = list(answers)

    async def doctor(self) -> Diagnosis:
        await trio.sleep_until(trio.current_time() + 1)
        return Diagnosis(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])


async def named(doctor: Doctor, *incidents: Incident) -> dict[str, float]:
    began = {one.name: trio.current_time() for one in incidents}
    return (await wait_named(doctor, incidents, began))[1]  # type: ignore[arg-type]


async def test_a_cause_is_named_when_it_is_said_and_nothing_else_is_called_a_cause(autojump_clock: object) -> None:
    other, follows = said("clock-off", "warning"), said("partition-without-leader", because_of="disk-full")
    doctor = Doctor((), (other,), (said("disk-full"), other), (said("disk-full"), follows, said("x", "note")))
    assert await named(doctor, incident()) == {"one": pytest.approx(3)}
    assert trio.current_time() == pytest.approx(4, abs=0.1)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((), "not named after 30 s; doctor says nothing"),
        ((said("disk-full", because_of="x"),), "not named"),
        ((said("disk-full"), said("clock-off", "warning")), "called causes, too: clock-off"),
        ((said("disk-full", evidence=""),), "without evidence"),
    ],
)
async def test_anything_else_is_missed(
    answer: tuple[dict[str, Any], ...], words: str, autojump_clock: object
) -> None:
    with pytest.raises(Missed, match=re.escape(words)):
        await named(Doctor(answer), incident())
    assert trio.current_time() < NAMED_S + 3


async def test_two_at_once_are_both_named(autojump_clock: object) -> None:
    two = incident(), incident("two", "clock-off")
    doctor = Doctor((said("clock-off", "warning"),), (said("clock-off", "warning"), said("disk-full")))
    assert await named(doctor, *two) == {"two": pytest.approx(1), "one": pytest.approx(2)}
    with pytest.raises(Missed, match="one: not named"):
        await named(Doctor((said("clock-off"),)), *two)


async def test_notes_may_stay_but_not_those_of_the_incident(autojump_clock: object) -> None:
    stays = said("controllers-few", "note")
    await wait_silent(Doctor((said("disk-full"),), (stays,)), {"disk-full"}, 10, "after")  # type: ignore[arg-type]
    with pytest.raises(Missed, match="after, after 10 s, doctor still says controllers-few"):
        await wait_silent(Doctor((stays,)), {"controllers-few"}, 10, "after")  # type: ignore[arg-type]


def test_pairs_have_nothing_in_common_and_come_from_the_seed() -> None:
    catalogue = {
        name: incident(name, f"cause-{name}", strikes)
        for name, strikes in {
            "a": ("disk",),
            "b": ("disk",),
            "c": ("group",),
            "d": (),
            "e": ("disk", "group"),
        }.items()
    } | {"t": incident("t", twin="")}
    drawn = pairs(catalogue, 3, 4)
    assert drawn == pairs(catalogue, 3, 4) and len(drawn) == 4
    assert all(not one.strikes & other.strikes and one.twin and other.twin for one, other in drawn)
    assert len({pairs(catalogue, seed, 1)[0][0].name for seed in range(9)}) > 1


def test_settings_of_two_plans_are_one_text_without_double_keys() -> None:
    one = ClusterPlan(settings={"replica": "max_open_files = 9\n[settings]\nscrub_interval_s = 1"})
    other = ClusterPlan(gateways=2, settings={"replica": "[settings]\nscrub_interval_s = 7\nreserve_bytes = 5"})
    joined = one.joined(other)
    assert joined.gateways == 2
    assert settings_of(joined.settings["replica"]) == {
        "": ["max_open_files = 9"],
        "[settings]": ["scrub_interval_s = 1", "reserve_bytes = 5"],
    }


def test_a_twin_begins_with_the_same_symptom_and_has_another_cause() -> None:
    catalogue = load_catalogue()
    for one in catalogue.values():
        if one.twin:
            twin = catalogue[one.twin]
            assert (twin.symptom == one.symptom, twin.cause == one.cause) == (True, False), one.name


def test_every_cause_of_an_incident_is_one_that_the_doctor_knows() -> None:
    text = "".join(path.read_text() for path in EXPLAIN.rglob("*.py"))
    assert not [one.cause for one in load_catalogue().values() if f'"{one.cause}"' not in text]


def test_every_alert_of_an_incident_exists_and_every_metric_too() -> None:
    alerts = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text()
    metrics = (ROOT / "docs" / "metrics.md").read_text()
    for one in load_catalogue().values():
        assert not one.alert or f"alert: {one.alert}\n" in alerts, one.name
        assert not one.metric or f"`{one.metric}`" in metrics, one.name


def test_no_rule_of_the_doctor_names_a_planted_value() -> None:
    """The names that the seed draws from stand in no condition: the word may only be an example in a docstring."""
    for path in EXPLAIN.rglob("*.py"):
        code = re.sub(r'""".*?"""', "", path.read_text(), flags=re.S)
        quoted = set(re.findall(r'["\']([a-z]+)["\']', code))
        assert not quoted & {*WORDS, *READERS}, path
