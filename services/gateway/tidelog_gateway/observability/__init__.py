"""Metrics and health of this gateway, for operators.

Only the server imports this room. ``observability/metrics.py`` is a table of the metrics, and reads their values when
the page is requested. It also says for ``/readyz`` why the gateway is not ready.
"""
