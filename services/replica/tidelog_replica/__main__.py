"""``python -m tidelog_replica --config FILE``."""

from tidelog.runtime.service import main

from tidelog_replica.config import ReplicaConfig
from tidelog_replica.server import serve


def run() -> None:
    """Run the replica server until the process ends."""
    main(ReplicaConfig, serve, "A Tidelog replica server: it holds the log.")


if __name__ == "__main__":
    run()
