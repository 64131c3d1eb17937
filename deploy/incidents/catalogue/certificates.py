"""Incidents of certificates: one has expired, or is of an authority that nobody trusts. The files are
replaced on disk, as at a renewal."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta

from incidents.incident import ClusterPlan, Incident
from incidents.stage import Stage
from tidelog.cli.admin.certs import LOCAL
from tidelog.cli.local.local_cluster import CERTS, Process
from tidelog.net.dev_certificates import Authority, open_authority
from tidelog.net.tls import NodeIdentity

DAY = timedelta(days=1)


def _process(stage: Stage) -> Process:
    """Draw the process whose certificate is struck: a gateway or a replica server."""
    node = stage.random.choice([p.id for p in (*stage.cluster.of_role("gateway"), *stage.cluster.of_role("replica"))])
    stage.facts["certificate.process"] = process = stage.cluster.get(node)
    return process


def _own(stage: Stage) -> Authority:
    return open_authority(stage.cluster.folder / CERTS, datetime.now(UTC), 365 * DAY)


def _issue(authority: Authority, process: Process, begins: datetime, lasts: timedelta) -> str:
    """Issue a certificate for a process, and return the name of its files."""
    name = f"{process.role}-{process.id}"
    authority.issue(name, [NodeIdentity(process.role, process.id)], LOCAL, begins, lasts)
    return name


async def let_expire(stage: Stage) -> None:
    """Replace the certificate of a process by one that expired yesterday."""
    process = _process(stage)
    await stage.do(_issue, _own(stage), process, datetime.now(UTC) - 2 * DAY, DAY)


async def use_stranger(stage: Stage) -> None:
    """Replace the certificate of a process by one of another authority."""
    process = _process(stage)
    other = open_authority(stage.cluster.folder / "other-authority", datetime.now(UTC), 365 * DAY)
    name = await stage.do(_issue, other, process, datetime.now(UTC), 365 * DAY)
    for kind in (".key", ".pem"):
        made = stage.cluster.folder / "other-authority" / f"{name}{kind}"
        await stage.do(shutil.copy, made, stage.cluster.folder / CERTS / f"{name}{kind}")


async def renew(stage: Stage) -> None:
    """Issue a certificate that is in order."""
    await stage.do(_issue, _own(stage), stage.facts["certificate.process"], datetime.now(UTC), 365 * DAY)


SYMPTOM = "Programs that run go on, and those that are started cannot connect."
TLS = ClusterPlan(tls=True)
INCIDENTS = (
    Incident(
        name="certificate-expired",
        symptom=SYMPTOM,
        cause="certificate-expired",
        plant=let_expire,
        mend=renew,
        twin="certificate-of-stranger",
        plan=TLS,
        strikes=frozenset({"certificates"}),
        alert="TidelogCertificateExpired",
    ),
    Incident(
        name="certificate-of-stranger",
        symptom=SYMPTOM,
        cause="certificate-not-accepted",
        plant=use_stranger,
        mend=renew,
        plan=TLS,
        strikes=frozenset({"certificates"}),
    ),
)
