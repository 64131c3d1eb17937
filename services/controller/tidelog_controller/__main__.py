"""``python -m tidelog_controller --config FILE``."""

from tidelog.runtime.service import main

from tidelog_controller.config import ControllerConfig
from tidelog_controller.server import serve


def run() -> None:
    """Run a controller with the configuration of the command line until the process ends."""
    main(ControllerConfig, serve, "A Tidelog controller: it holds the metadata and elects leaders.")


if __name__ == "__main__":
    run()
