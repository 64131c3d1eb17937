"""The alerts that the console looks for in the metrics of servers, controllers and its gateway: those of
``alerts.py`` that compare the newest value of one metric with a number. Console and Prometheus say the same."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

ALERTS = runpy.run_path(str(Path(__file__).resolve().parent / "alerts.py"))["ALERTS"]
_EXPR = re.compile(
    r"(?:(?:max|min)(?: by \([a-z, ]+\) | ?)\()?"
    r"(?:(?:last|max)_over_time\()?(?P<metric>tidelog_[a-z_]+)(?:\[\w+\]\))?\)?"
    r" (?P<compare>>=|<=|>|==) (?P<bound>[\d.]+|time\(\))"
    r"(?: and on \(job, instance\) up)?"
)
"""The expressions that the console understands: a gauge, or the largest or smallest one by labels, and a bound, which
may be the time. Of a time span the console looks at the newest value only. The console ignores
``and on (job, instance) up``: it asks only processes that are members of the cluster."""


def page() -> str:
    """Return the module with the alerts that the console looks for."""
    lines = ["/** What the console's banner looks for in metrics. Generated from the alerts by `make pages`. */"]
    lines += ["export const ALERT_RULES = ["]
    lines += [f"  {json.dumps(rule)}," for rule in rules()]
    return "\n".join([*lines, "];", ""])


def rules() -> list[dict[str, Any]]:
    """Return the rules: name, metric, how it is compared with which bound, how bad that is, and what is said."""
    found = []
    for alert in ALERTS:
        if match := _EXPR.fullmatch(alert.expr):
            rule = {"name": alert.name, "metric": match["metric"], "compare": match["compare"]}
            bound = None if match["bound"] == "time()" else float(match["bound"])
            rule |= {"bound": bound, "level": "bad" if alert.severity == "critical" else "warning"}
            found.append(rule | {"words": alert.summary, "help": alert.help})
    return found
