"""What operators see of this server: metrics, and whether it is alive and ready.

Nothing else imports this room. ``observability/metrics.py`` reads the counters and the state of all other rooms on
request. ``group_metrics.py`` has the consumer groups, ``health.py`` the answer to ``/health``.
"""
