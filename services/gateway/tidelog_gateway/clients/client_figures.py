"""What the metrics of a gateway show of its clients: their quotas, and those that were refused."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog_gateway.clients.operator_reserve import OperatorReserve
from tidelog_gateway.clients.refused_clients import RefusedClients
from tidelog_gateway.limits.quotas import Quotas
from tidelog_gateway.settings import ConnectionSettings


@dataclass(frozen=True, slots=True)
class ClientFigures:
    """The parts of a gateway's state about its clients that ``clients/connections.py`` changes and
    ``observability/metrics.py`` reads. ``most_connections`` is the setting ``client_max_connections``."""

    quotas: Quotas
    most_connections: int
    reserve: OperatorReserve
    refused: RefusedClients = field(default_factory=RefusedClients)

    @classmethod
    def of(cls, settings: ConnectionSettings) -> ClientFigures:
        """Return the figures of a gateway that has no clients yet."""
        quotas, reserve = (
            Quotas(settings.principal_max_connections),
            OperatorReserve(settings.operator_reserved_connections),
        )
        return cls(quotas, settings.client_max_connections, reserve)
