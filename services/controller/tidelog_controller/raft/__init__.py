"""Raft among the controllers, sans-I/O (Ongaro and Ousterhout; sections are cited where they are used).

Start at ``raft/raft.py``: ``Raft`` is one server, one state machine, with the theory at its head. Its inputs are
methods that take ``now``; each returns the effects of ``effects.py`` in the order in which they must be performed.

What has a state of its own is an object that ``Raft`` owns:

    log.py                  the log in memory, and what of it is not durable yet
    progress.py             what a leader knows of one follower
    read_index.py           linearizable reads
    snapshots.py            when a snapshot is taken, and how far the log is compacted
    snapshot_transfer.py    a snapshot on its way to a follower
    leadership_transfer.py  handing leadership over
    old_copies.py           how a disk that was put back from a copy is recognised

``membership.py`` is the list of members and the rules of its changes, ``bootstrap.py`` how a cluster is founded.
``storage.py``, outside of this room, carries out what is to be persisted.

Imports no other room of the controller. Keeps the Raft rules of ``docs/invariants.md``.
"""
