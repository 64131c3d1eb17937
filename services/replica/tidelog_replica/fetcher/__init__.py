"""Following: one fetcher for each server that leads partitions which this server copies.

Start at ``fetcher/fetcher.py``: it asks one leader for all of its partitions in one request. ``fetchers.py`` gives
each partition to the fetcher of its leader. ``leader_reporter.py`` decides when a silent leader is reported to the
controller. ``throttle.py`` bounds how fast a follower that is far behind catches up.
"""
