"""A client that sends wrong values, beside honest ones, in a whole simulated cluster with all faults."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidelog.testing.clients.producer import ProducerOptions
from tidelog.testing.cluster import Cluster, Options, TopicOptions
from tidelog.testing.faults.strikes import Swarm
from tidelog.testing.hardware.loop import stream
from tidelog.testing.invariants.ghost import Violation
from tidelog.testing.runner import run_seed
from tidelog_gateway.rights.producer_tickets import ProducerTickets

DURATION = 6.0
LIES_HEARD = (
    *("lies acked", "lies in tickets", "lie INVALID_TICKET", "lie CORRUPT_BATCH", "lie OVERLOADED"),
    *("lie SEQUENCE_CONFLICT", "lie UNVERIFIED_SEQUENCE", "lie OUT_OF_ORDER_SEQUENCE", "lie FENCED_PRODUCER"),
    "lie INVALID_TRANSACTION",
)
"""What must have been answered to the lies: a run in which nobody lies proves nothing."""
NEVER_HEARD = (
    *("SEQUENCE_CONFLICT", "UNVERIFIED_SEQUENCE", "FENCED_PRODUCER", "INVALID_TRANSACTION", "INVALID_TICKET"),
)
"""What no honest producer hears where nothing that was committed can be lost."""
KNOWN_SEEDS = (
    58001986,  # the model: a lie that was refused counted as a send that should have succeeded
)
"""Seeds that failed with a foreign client. They are run for ever."""


def run(seed: int, transactions: bool = False) -> Cluster:
    swarm = replace(Swarm.draw(stream(seed, "options"), 0.7 * DURATION), group="")
    producers = (ProducerOptions(window=5, pace=0.04), ProducerOptions(window=3, pace=0.1))
    options = Options(
        seed, topics=(TopicOptions("t"),), producers=producers, consumers=2, swarm=swarm, duration=DURATION
    )
    cluster = Cluster(replace(options, foreign=True, transactions=transactions))
    cluster.run()
    return cluster


def heard(cluster: Cluster) -> dict[str, int]:
    """Return the errors of honest producers that they must not get."""
    return {code: cluster.counts[f"produce {code}"] for code in NEVER_HEARD if f"produce {code}" in cluster.counts}


def test_honest_clients_notice_nothing_of_one_that_lies_in_every_field() -> None:
    told: dict[str, int] = {}
    for seed in range(3):
        cluster = run(seed)
        assert not heard(cluster)
        assert cluster.counts["send ok"] > 20 and cluster.counts["rows read"] > 50
        for name, times in cluster.counts.items():
            told[name] = told.get(name, 0) + times
    assert not [name for name in LIES_HEARD if not told.get(name)], told


def test_transactions_are_whole_beside_a_client_that_lies() -> None:
    cluster = run(0, transactions=True)
    assert cluster.counts["transactions committed"] and cluster.counts["lies acked"]


@pytest.mark.parametrize("seed", KNOWN_SEEDS)
def test_seeds_that_failed_pass(seed: int) -> None:
    result = run_seed(seed, foreign=True)
    assert result.fault is None, result.fault


def test_without_tickets_the_lies_do_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """This shows that the wrong ids are a real attack: only the gateway's check protects the other clients."""
    monkeypatch.setattr(ProducerTickets, "refuse_batch", lambda self, source, producer_id, epoch: None)
    try:
        harm: object = heard(run(2))
    except (Violation, AssertionError) as violation:
        harm = violation
    assert harm
