"""Findings about access: tokens, rules, certificates."""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.cli.explain.findings.finding import WARNING, Finding


def examine_heirs(heirs: tuple[str, ...]) -> Iterator[Finding]:
    """Yield a finding if principals may change tokens and rules only because they could before an upgrade."""
    if heirs:
        what = f"may administer the cluster, and so inherit the right to make tokens and rules: {', '.join(heirs)}"
        step = "For those who need it 'tidelog acls add WHO security cluster'; then 'tidelog acls drop-inherited'."
        yield Finding(WARNING, what, step, "rights-inherited", heirs)
