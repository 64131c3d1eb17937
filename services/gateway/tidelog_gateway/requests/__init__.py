"""Requests of clients that take a while: each runs in a task of its own, off the hot path.

Start at ``requests/requests.py``. ``metadata_answers.py`` makes the answers to ``metadata``, with offsets that
``offset_lookups.py`` plans or that ``log_bounds.py`` asks for without a proof. ``coordinator_client.py`` sends
requests about groups and transactions to their coordinators, and retries while these change.
"""
