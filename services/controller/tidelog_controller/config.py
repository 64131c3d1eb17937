"""Configuration of a controller."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.runtime.config import setting
from tidelog.runtime.listen_config import ListenConfig

from tidelog_controller.controller import ControllerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig(ListenConfig):
    """Read once, at the start, by ``tidelog.runtime.config.load``, which checks every setting against its
    metadata."""

    node: str = setting("c1", "Name of this controller, unique in the cluster.")
    cluster: str = setting("tidelog", "Id of the cluster; data and peers of another one are refused.")
    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(9192, "Port to listen on; 0 takes a free one.", 0, 65535)
    data_dir: str = setting("data", "Folder of the Raft log; one process at a time may use it.")
    peers: dict[str, str] = field(
        default_factory=dict,
        metadata={"help": "URL of every controller by name, this one included; none: this one is alone."},
    )
    join: bool = setting(False, "Wait to be added to the group that peers names (tidelog controllers add).")
    shutdown_s: float = setting(5.0, "Longest wait for another controller to take over at the end.", 0.0, 60.0)
    metrics: bool = setting(True, "Show metrics to Prometheus: HTTP GET /metrics on the port.")
    log_json: bool | None = setting(None, "Log as JSON; unset: unless on a terminal.")
    settings: ControllerSettings = field(default_factory=ControllerSettings, metadata={"help": "Times and bounds."})

    def faults(self) -> list[str]:
        """Relations that hold between settings, and do not."""
        found = [f"{name}: must not be empty" for name in ("node", "cluster", "data_dir") if not getattr(self, name)]
        if self.peers and self.node not in self.peers:
            found.append(
                f"peers: must name this controller too, and {self.node} is not among {', '.join(self.peers)}"
            )
        if self.join and len(self.peers) < 2:
            found.append("join: peers must name the controllers that there are, and this one")
        found += self.faults_of_urls([(f"peers.{node}", url) for node, url in self.peers.items()])
        if len(set(self.peers.values())) < len(self.peers):
            found.append("peers: two controllers have the same URL")
        return found + self.faults_of_listening(self.host, bool(self.tls_ca), "set tls_ca")
