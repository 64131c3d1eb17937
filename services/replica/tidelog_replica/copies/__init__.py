"""Comparing this server's copies with those of other replicas.

Start at ``copies/checks.py``: the server compares its copies after a scrub, and gives up one that is the odd one,
by the rule of ``reason_to_keep``.
``copies/reads.py`` reads a copy for a client that compares (``tidelog verify replicas``).
"""
