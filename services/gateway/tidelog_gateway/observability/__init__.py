"""What operators see of this gateway: metrics, and whether it is alive and ready.

Nothing but the server imports this room. ``observability/metrics.py`` is a table of what there is, and reads it when
somebody asks. ``health.py`` answers ``/health``.
"""
