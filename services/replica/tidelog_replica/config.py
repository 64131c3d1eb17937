"""Configuration of a replica server."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.config import setting
from tidelog.listening import Listening

from tidelog_replica.settings import ReplicaSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaConfig(Listening):
    """Read once, at the start, by ``tidelog.config.load``, which checks every setting against its metadata."""

    node: str = setting("r1", "Name of this replica server, unique in the cluster.")
    cluster: str = setting("", "Id of the cluster; empty: what the data directory or the controllers say.")
    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(9092, "Port to listen on; 0 takes a free one.", 0, 65535)
    advertised_url: str = setting("", "URL under which others reach this server; empty: the one listened on.")
    rack: str = setting(
        "", "What fails together (rack, zone): replicas go to different ones; empty: a rack of its own."
    )
    data_dir: str = setting("data", "Folder of the log; one process at a time may use it.")
    controllers: tuple[str, ...] = setting(("ws://127.0.0.1:9192",), "URLs of the controllers.")
    encryption_key_file: str = setting(
        "", "File with the keys that encrypt segments at rest, `ID:KEY` each, the current one first; empty: none."
    )
    encryption_key_env: str = setting(
        "", "The same from an environment variable: its name. One of the two at most may be set."
    )
    flush_threads: int = setting(2, "Flushes that run side by side.", 1, 64)
    job_threads: int = setting(
        2, "Long work on the disk (opening, compacting, checking logs) that runs side by side.", 1, 64
    )
    max_open_files: int = setting(
        0,
        "Most log files open at once; 0: three quarters of what the process may open (RLIMIT_NOFILE, hard).",
        0,
        1 << 24,
    )
    cached_bytes_per_file: int = setting(
        0,
        "So much of the end of each log file stays in the page cache, what is older is given back: where memory is"
        " scarce, or a virtual machine's host takes free pages away. 0: the kernel decides.",
        0,
        1 << 40,
    )
    metrics: bool = setting(True, "Show metrics to Prometheus: HTTP GET /metrics on the port.")
    log_json: bool | None = setting(None, "Log as JSON; unset: unless on a terminal.")
    settings: ReplicaSettings = field(default_factory=ReplicaSettings, metadata={"help": "Times and bounds."})

    def faults(self) -> list[str]:
        """Relations that hold between settings, and do not."""
        found = [f"{name}: must not be empty" for name in ("node", "data_dir") if not getattr(self, name)]
        if not self.controllers:
            found.append("controllers: name at least one")
        found += self.faults_of_urls([("controllers", url) for url in self.controllers])
        if self.encryption_key_file and self.encryption_key_env:
            found.append("encryption_key_file, encryption_key_env: set one of them")
        if self.advertised_url:
            found += self.faults_of_urls([("advertised_url", self.advertised_url)])
        return found + self.faults_of_listening(self.host, bool(self.tls_ca), "set tls_ca")
