"""The suite: all cases, and their run with one client over one cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import trio

from tidelog.cli.conformance.access import ACCESS
from tidelog.cli.conformance.cases import Case
from tidelog.cli.conformance.client import Client, Failed, Refused
from tidelog.cli.conformance.faults import FAULTS
from tidelog.cli.conformance.groups import GROUPS
from tidelog.cli.conformance.hostile import HOSTILE
from tidelog.cli.conformance.library import Library
from tidelog.cli.conformance.proxy import Proxy
from tidelog.cli.conformance.records import RECORDS
from tidelog.cli.local.local_cluster import LocalCluster, free_base_port

CASES: dict[str, Case] = {
    case.name: case for chapter in (RECORDS, GROUPS, FAULTS, HOSTILE, ACCESS) for case in chapter.cases
}
"""Every case by its name."""

Status = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case. ``reason`` says why it failed or was skipped; ``seconds`` is how long it took."""

    case: Case
    status: Status
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """The outcomes of a run, and descriptions of the messages that were not as ``tidelog.cddl`` says; None: the
    messages were not checked."""

    outcomes: list[Outcome]
    wrong_messages: list[str] | None

    @property
    def is_passed(self) -> bool:
        """Whether no case failed, and no message was wrong."""
        return not self.wrong_messages and all(outcome.status != "failed" for outcome in self.outcomes)


@contextmanager
def running_cluster(folder: Path) -> Iterator[LocalCluster]:
    """Return a context manager that runs a controller, three replica servers and two gateways, with their data in
    ``folder``. The gateways accept web pages of any origin."""
    local = LocalCluster.create(folder, controllers=1, replicas=3, gateways=2, base_port=free_base_port(6))
    admit_all_pages(local)
    try:
        local.start()
        trio.run(local.wait_ready)
        yield local
    finally:
        local.stop()


def admit_all_pages(local: LocalCluster) -> None:
    """Make the gateways of a cluster that was not started yet accept web pages of any origin."""
    for process in local.of_role("gateway"):
        path = local.folder / process.id / "config.toml"
        path.write_text('allowed_origins = ["*"]\n' + path.read_text())


def mend(local: LocalCluster) -> None:
    """Make every process of the cluster run again, and wait until they serve."""
    for process in local.processes:
        local.resume(process.id)
        if not process.is_alive():
            local.restart(process.id)
    trio.run(local.wait_ready)


def run_case(case: Case, client: Client, urls: Sequence[str], local: LocalCluster, log: str) -> Outcome:
    """Run one case with a client. ``urls`` are those of the gateways, or of proxies in front of them; ``log`` is a
    name that was not used before. Afterwards every process of the cluster runs. A client that hangs has ended."""
    if case.needs and case.needs not in client.features:
        return Outcome(case, "skipped", f"the client has no {case.needs}")
    began = time.monotonic()
    try:
        library = Library(client, log, urls, local)
        case.run(library)
        library.close()
    except Failed as error:
        return Outcome(case, "failed", str(error), time.monotonic() - began)
    except Refused as error:
        return Outcome(case, "failed", f"the library refused with {error}", time.monotonic() - began)
    except (KeyError, TypeError, IndexError, ValueError) as error:
        reason = f"an answer of the client lacks a field, or has it in another form: {error!r}"
        return Outcome(case, "failed", reason, time.monotonic() - began)
    finally:
        if case.disturbs:
            mend(local)
    return Outcome(case, "passed", "", time.monotonic() - began)


def run_suite(
    command: Sequence[str], cases: Sequence[Case], local: LocalCluster, show: Callable[[Outcome], None]
) -> Report:
    """Run cases with the client that ``command`` starts, and return the report; ``show`` gets each outcome as it
    comes. A client that has failed in a case is started again for the next. Raises ``Failed`` if it cannot be
    started, or does not end with exit code 0."""
    try:
        from tidelog.cli.conformance.traffic import Traffic
    except ImportError:  # pycddl is missing
        return Report(_run_cases(command, cases, local, local.gateways(), show), None)
    traffic = Traffic()
    with Proxy(local.gateways(), traffic.passing) as proxy:
        return Report(_run_cases(command, cases, local, proxy.urls, show), traffic.faults)


def _run_cases(
    command: Sequence[str],
    cases: Sequence[Case],
    local: LocalCluster,
    urls: Sequence[str],
    show: Callable[[Outcome], None],
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    client = Client(command)
    try:
        for number, case in enumerate(cases):
            if not client.is_running:
                client = Client(command)
            outcome = run_case(case, client, urls, local, f"conformance-{number}")
            if outcome.status == "failed":  # what it left open must not disturb the next case
                client.kill()
            show(outcome)
            outcomes.append(outcome)
        if client.is_running:
            client.stop()
    finally:
        client.kill()
    return outcomes
