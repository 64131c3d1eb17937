"""The invariants that are checked after every step of the message level, and what the checks remember of the system.

``replication.INVARIANTS`` lists them (``docs/invariants.md`` is generated from it). The ghost remembers what was
committed, which no process knows alone.
"""
