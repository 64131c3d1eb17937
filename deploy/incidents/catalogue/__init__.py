"""The incidents, one module for each subject. ``INCIDENTS`` of a module is a tuple of its incidents and twins."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping

from incidents.incident import Incident


def load_catalogue() -> Mapping[str, Incident]:
    """Import all modules of this folder, and return their incidents by name. Raises ``ValueError`` if two have one
    name, or a twin is not there."""
    found: dict[str, Incident] = {}
    for module in sorted(each.name for each in pkgutil.iter_modules(__path__)):
        for incident in importlib.import_module(f"{__name__}.{module}").INCIDENTS:
            if incident.name in found:
                raise ValueError(f"two incidents are called {incident.name}")
            found[incident.name] = incident
    missing = [one.name for one in found.values() if one.twin and one.twin not in found]
    if missing:
        raise ValueError(f"no such twin: that of {', '.join(missing)}")
    return found
