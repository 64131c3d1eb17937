"""Comparing this server's copies with those of other replicas.

Start at ``copies/checks.py``: the server compares its copies after a scrub, and gives up one that is the odd one.
``copies/reads.py`` reads a copy for a client that compares (``tidelog verify replicas``).
``replication/odd_copies.py`` has the rule by which a copy may be given up.
"""
