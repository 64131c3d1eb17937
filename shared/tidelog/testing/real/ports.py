"""Free ports of the loopback interface that a cluster keeps while its services are killed and started again."""

from __future__ import annotations

import socket
import sys

HOST = "127.0.0.1"


class KeptPort:
    """A free port. On Linux it is bound, but not listened on, until ``close``: no other program gets it while the
    service that it is for does not run. The service binds it, too, since both set ``SO_REUSEADDR``. Elsewhere two
    sockets cannot share a port in this way, and the port is only known to have been free."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((HOST, 0))
        self.number: int = self._socket.getsockname()[1]
        self.url = f"ws://{HOST}:{self.number}"
        if sys.platform != "linux":
            self._socket.close()

    def close(self) -> None:
        """Give the port back."""
        self._socket.close()
