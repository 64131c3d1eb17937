"""An incident: what a newcomer sees first, how it is planted in a real cluster and mended, and the cause that
``tidelog doctor`` must name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from incidents.stage import Stage


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The cluster that an incident needs, beside three replica servers. ``settings`` has lines of TOML for the
    configuration of all processes of a role. They begin with the settings of the top level."""

    controllers: int = 3
    gateways: int = 1
    tls: bool = False
    links: bool = False
    """Whether TCP proxies stand between the processes, so that links can be cut (``stage.links``)."""
    settings: Mapping[str, str] = field(default_factory=dict)
    hardware: bool = False
    """Whether clocks and syncs of the processes can be set (``hardware.py``), which takes a C compiler."""
    disk_mib: int = 0
    """Size of the disk of each replica server, which takes root to mount; 0: they share the disk of the folder."""
    earlier: bool = False
    """Whether all processes begin as those of an earlier release, so that they can be upgraded."""

    def joined(self, other: ClusterPlan) -> ClusterPlan:
        """Return a plan of a cluster in which both incidents can be planted."""
        texts = {
            role: "\n".join(filter(None, (self.settings.get(role), other.settings.get(role))))
            for role in {*self.settings, *other.settings}
        }
        return ClusterPlan(
            max(self.controllers, other.controllers),
            max(self.gateways, other.gateways),
            self.tls or other.tls,
            self.links or other.links,
            texts,
            self.hardware or other.hardware,
            max(self.disk_mib, other.disk_mib),
            self.earlier or other.earlier,
        )


@dataclass(frozen=True, slots=True)
class Incident:
    """One planted incident. ``plant`` returns when the cause is there; ``mend`` removes the cause."""

    name: str
    symptom: str
    """What a newcomer sees first, as one sentence."""
    cause: str
    """The code of the finding that must be named (``Finding.cause``)."""
    plant: Callable[[Stage], Awaitable[None]]
    mend: Callable[[Stage], Awaitable[None]]
    twin: str = ""
    """Name of the incident with the same first symptom and another cause; "" for an incident that only is a twin."""
    plan: ClusterPlan = field(default_factory=ClusterPlan)
    strikes: frozenset[str] = frozenset()
    """Parts of the cluster that the incident needs for itself, such as "controllers", "servers", "topic", "group",
    "network", "disk". Two incidents are planted at once only if they have none in common."""
    metric: str = ""
    """A metric of some process that is above 0 while the incident lasts; "" if no metric shows it."""
    alert: str = ""
    """The alert of ``deploy/prometheus/alerts.yml`` that is meant for it; "" if none is."""
    unready: str = ""
    """Role of the processes of which one at least says in ``/readyz`` that it is not ready; "" if none does."""
    silent_s: float = 120.0
    """Seconds after the mend within which ``tidelog doctor`` has to be silent."""
