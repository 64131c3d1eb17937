"""The replication protocol, pure: it decides with offsets and epochs and never moves a byte.

Start at ``replication/leader_state.py`` (what is committed) and ``replication/follower_state.py`` (where a log is
cut). ``progress.py`` is what the leader knows of each follower, ``isr.py`` when the ISR is to change and how a
follower joins it under load, ``leadership_confirmation.py`` how a leader proves that no other replica leads,
``idle_followers.py`` what an idle follower may have missed. ``leader_epochs.py``, ``producer_state.py`` and
``transaction_index.py`` are derived from the log.

``partition`` carries out what is decided here. Nothing here imports another room of the server.
Keeps R1 to R6 of ``docs/invariants.md``.
"""
