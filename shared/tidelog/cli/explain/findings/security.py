"""Findings about access: tokens, rules, certificates, and what the client of the doctor may not see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidelog.cli.explain.certificate_looks import EXPIRED, NOT_YET, CertificateLook
from tidelog.cli.explain.findings.finding import NOTE, PROBLEM, WARNING, Finding
from tidelog.cli.explain.findings.snapshot import ClusterSnapshot
from tidelog.quantities import counted

SOON_EXPIRED_S = 7 * 86_400
"""A certificate that expires within so many seconds is a warning."""


def examine_heirs(heirs: tuple[str, ...]) -> Iterator[Finding]:
    """Yield a finding if principals may change tokens and rules only because they could before an upgrade."""
    if heirs:
        what = f"may administer the cluster, and so inherit the right to make tokens and rules: {', '.join(heirs)}"
        step = "For those who need it 'tidelog acls add WHO security cluster'; then 'tidelog acls drop-inherited'."
        yield Finding(WARNING, what, step, "rights-inherited", heirs)


def examine_hidden(view: ClusterSnapshot) -> Iterator[Finding]:
    """Yield a note if the active controller counts more partitions than this client was shown: metadata have only the
    topics that their reader may describe."""
    shown = sum(len(topic.partitions) for topic in view.metadata.topics)
    active = view.quorum.active if view.quorum is not None else ""
    hidden = int(view.metrics.get(active, {}).get("tidelog_partitions", 0.0)) - shown
    if hidden > 0:
        number = f"{counted(hidden, 'partition')} of {hidden + shown}"
        what = f"{number} were not looked at: you may not describe their topics"
        step = "'tidelog acls add YOU describe topic:*' shows them; those that were made just now show the next time."
        yield Finding(NOTE, what, step, "topics-hidden")


def examine_certificates(looks: Sequence[CertificateLook]) -> Iterator[Finding]:
    """Yield a finding for each process whose certificate this machine does not accept, or that expires soon."""
    replace = "Put a new certificate into the place of the old one (tls.cert, tls.key): it is read without a restart."
    for look in looks:
        about, evidence = (look.node, look.url), f"{look.url}: {look.why}."
        if look.code == EXPIRED:
            what = f"the certificate of {look.node} has expired: open connections go on, and every new one fails"
            yield Finding(PROBLEM, what, replace, "certificate-expired", about, evidence)
        elif look.code == NOT_YET:
            what = f"the certificate of {look.node} is not valid yet, by the clock of this machine"
            step = "Compare the clocks of this machine and of the one that made it, or issue another certificate."
            yield Finding(PROBLEM, what, step, "certificate-not-valid-yet", about, evidence)
        elif look.code:
            what = f"the certificate of {look.node} is not accepted by this machine"
            step = (
                "If its authority or host name is wrong, issue it again; if this machine trusts another authority,"
                " name the right one: --ca FILE."
            )
            yield Finding(PROBLEM, what, step, "certificate-not-accepted", about, evidence)
        elif look.left_s is not None and look.left_s < SOON_EXPIRED_S:
            what = f"the certificate of {look.node} expires in {look.left_s / 3600:.0f} hours"
            yield Finding(WARNING, what, replace, "certificate-expires-soon", about, f"{look.url} shows it.")
