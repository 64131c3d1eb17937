"""``python -m tidelog_gateway --config FILE``."""

from tidelog.runtime.service import main

from tidelog_gateway.config import GatewayConfig
from tidelog_gateway.server import serve


def run() -> None:
    """Run the gateway until the process ends."""
    main(GatewayConfig, serve, "A Tidelog gateway: clients connect to it.")


if __name__ == "__main__":
    run()
