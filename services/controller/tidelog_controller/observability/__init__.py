"""What operators see of this controller: metrics, and whether it is alive and ready.

Nothing but the server imports this room. ``observability/metrics.py`` reads the state of the other rooms when
the page is requested, and says for ``/readyz`` why the controller is not ready.
"""
