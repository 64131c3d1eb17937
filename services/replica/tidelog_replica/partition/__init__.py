"""One partition on this server: its log, its role as leader or follower, and the requests that wait for it.

Start at ``partition/partition.py``. ``leader_replica.py`` and ``follower_replica.py`` are the two roles: each joins
the log (``storage``) with the protocol (``replication``). A leader checks and refuses produced batches in
``produce_admission.py``. ``pending_reads.py`` serves reads and holds those that wait, ``leader_replica.py`` the
produce requests that wait for their ack. ``purgatory.py`` is the queue with deadlines in which both wait.
``transaction_gate.py`` holds the batches of transactions that are not verified yet. ``lag.py`` measures how far a
follower is behind. Keeps R1 to R5 of ``docs/invariants.md`` together with ``replication``.
"""
