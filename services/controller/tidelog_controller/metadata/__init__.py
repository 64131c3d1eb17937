"""The replicated state of the cluster, and the commands that change it. Pure: the same on every controller.

Start at ``metadata/application.py``: it applies a command to the state by the rules of the room ``metadata/rules``,
which register themselves in ``registry.py``.
``state.py`` is the state, ``changeset.py`` collects the changes of one command, ``commands.py`` has the commands
and their bytes. ``state_machine.py`` is what Raft sees: apply, snapshot, restore.
``client_sessions.py`` recognises a request that was decided already (Raft dissertation 6.3).
``cluster_events.py`` and ``timeline_state.py`` keep the events for the log and the timeline.

Imports ``raft`` only. Keeps R1, R3, R8, R9 and R11 of ``docs/invariants.md`` for the metadata.
"""
