"""Bounds that protect the gateway and its clients from each other: quotas and fair shares.

Start at ``limits/fair_share.py``, the rule by which principals share a bound. ``quotas.py`` has the token buckets of
principals, and ``quota_enforcer.py`` applies them to the links of clients. ``server_limits.py`` bounds how much is
sent to a slow replica server. ``heavy_requests.py`` logs the principals that ask for much, and ``repeated_lines.py``
bounds lines of the log. Only ``quota_enforcer.py`` reads a clock and waits.
"""
