"""``python -m tidelog_controller --config FILE``."""

from tidelog.runtime.service import main

from tidelog_controller.config import ControllerConfig
from tidelog_controller.server import serve


def run() -> None:
    """Run a controller as this process, with the configuration of the command line. Never returns: exits with 0 after
    SIGTERM or SIGINT, or with 2 after printing the faults of the configuration."""
    main(ControllerConfig, serve, "A Tidelog controller: it holds the metadata and elects leaders.")


if __name__ == "__main__":
    run()
