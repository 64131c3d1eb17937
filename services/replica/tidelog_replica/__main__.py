"""``python -m tidelog_replica --config FILE``."""

from tidelog.service import main

from tidelog_replica.config import ReplicaConfig
from tidelog_replica.server import serve


def run() -> None:
    """Never returns."""
    main(ReplicaConfig, serve, "A Tidelog replica server: it holds the log.")


if __name__ == "__main__":
    run()
