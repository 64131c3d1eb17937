"""What operators see of this server: metrics, and whether it is alive and ready.

Nothing else imports this room. ``observability/metrics.py`` reads the counters and the state of all other rooms when
the page is requested, and says for ``/health`` why the server is not ready. ``group_metrics.py`` has the metrics of
the consumer groups.
"""
