"""Bounds that protect the gateway and its clients from each other. Pure.

Start at ``limits/fair_share.py``, the rule by which principals share a bound. ``quotas.py`` are the token buckets of
principals, ``rate_shares.py`` bounds how often something may be caused, ``server_limits.py`` how much is sent to a
slow replica server, ``heavy_requests.py`` names in the log who asks for much, ``repeated_lines.py`` bounds lines of
the log.
"""
