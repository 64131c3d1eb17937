"""Findings about versions and feature levels: upgrades that are not finished."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tidelog.cli.explain.findings.finding import NOTE, Finding
from tidelog.wire.messages import FeaturesAnswer


def examine_versions(versions: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding if processes run different versions. ``versions`` is process -> version."""
    if len(set(versions.values())) > 1:
        most = max(sorted(set(versions.values())), key=lambda one: list(versions.values()).count(one))
        odd = sorted(node for node, version in versions.items() if version != most)
        named = ", ".join(f"{node} runs {versions[node]}" for node in odd)
        what = f"several versions run: {named}, the others {most}"
        step = (
            f"Finish the upgrade: restart {', '.join(odd)} with {most}, or all others with the newer one, one by one."
        )
        evidence = ", ".join(f"{node} {version}" for node, version in sorted(versions.items()))
        yield Finding(NOTE, what, step, "versions-mixed", tuple(odd), evidence)


def examine_levels(features: FeaturesAnswer | None) -> Iterator[Finding]:
    """Yield a finding for an upgrade that is not finished: some processes are of an earlier release, or all
    understand a higher feature level than the cluster has. None if the levels are not known."""
    known = [one for one in features.processes if one.level_max] if features else []
    if features is None or not known:
        return
    newest, oldest = max(one.level_max for one in known), min(one.level_max for one in known)
    behind = [one.node for one in known if one.level_max < newest]
    if behind:
        what = (
            f"of an earlier release, which understands feature level {oldest} and not {newest}: {', '.join(behind)}"
        )
        yield Finding(
            NOTE,
            what,
            "Finish the upgrade: docs/upgrade.md has the order.",
            "feature-level-behind",
            tuple(behind),
            ", ".join(f"{one.node} understands {one.level_max}" for one in known),
        )
    elif newest > features.level:
        what = f"the cluster is at feature level {features.level}, and all its processes understand {newest}"
        yield Finding(
            NOTE,
            what,
            "'tidelog features raise' ends the upgrade, for good: docs/upgrade.md.",
            "feature-level-not-raised",
            evidence=", ".join(f"{one.node} understands {one.level_max}" for one in known),
        )
