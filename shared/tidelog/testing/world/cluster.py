"""The cluster of a world: a controller, three replica servers and a gateway, which cost little while they are idle.

The settings are those of the product with longer pauses between heartbeats, pings and checkpoints. One controller is
enough: programs meet it only when leaders change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

import trio

from tidelog.testing.shells.services import GATEWAY_URL, REPLICAS, Network, Services

GATEWAY = "g1"
CONTROLLER = "c1"
SERVERS = REPLICAS
ADDRESS = GATEWAY_URL
HEARTBEATS_MS = (500, 500, 500, 3000)
"""How often members of groups heartbeat: the setting of a run is one of these. A rebalance takes up to two
heartbeats, and with short ones a partition changes hands several times while a program has work."""
LATENCIES_S = (0.0005, 0.0005, 0.005, 0.03)
"""How long bytes take from one node to another: half of one of these to twice as long. What takes several round
trips, such as a transaction, is late by another time in each run, against the timers of other programs."""
CHECK_S = 5.0
"""Seconds after which a server asks the controller again whether it is active: there is no other one."""


class WorldServices(Services):
    """The services of a world, with settings under which an idle cluster costs little."""

    controllers: Mapping[str, str] = {CONTROLLER: f"ws://{CONTROLLER}:9192"}
    controller_settings = replace(
        Services.controller_settings,
        session_timeout_s=6.0,
        raft=replace(Services.controller_settings.raft, snapshot_threshold=1000),
    )
    gateway_config = replace(Services.gateway_config, console=False, metrics=False)
    replica_settings = replace(
        Services.replica_settings,
        heartbeat_s=2.0,
        controller_timeout_s=3.0,
        replica_max_idle_wait_s=3.0,
        replica_min_leader_timeout_s=3.0,
        replica_max_leader_timeout_s=3.0,
        checkpoint_interval_s=30.0,
        retention_check_interval_s=60.0,
        scrub_interval_s=86_400.0,
    )

    def __init__(self, net: Network, nursery: trio.Nursery, folder: Path, rng: Random, heartbeat_ms: int) -> None:
        """``heartbeat_ms``: how often members of groups are to heartbeat."""
        super().__init__(net, nursery, folder, rng)
        groups = replace(self.replica_settings.groups, heartbeat_ms=heartbeat_ms)
        self.replica_settings = replace(self.replica_settings, groups=groups)
