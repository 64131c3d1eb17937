"""Raft among the controllers, sans-I/O (Ongaro and Ousterhout; sections are cited where they are used).

Start at ``raft/raft.py``, which has the theory and the class. Its parts are ``elections.py``, ``replication.py``,
``membership.py`` (one server at a time), ``read_index.py`` (linearizable reads) and ``snapshot_transfer.py``.
``log.py`` is the log in memory, ``configuration.py`` the members, ``progress.py`` what the leader knows of each
follower, ``bootstrap.py`` how a cluster is founded, ``old_copies.py`` how a restored disk is recognised, and
``status.py`` the group as one controller sees it. ``storage.py`` carries out what is to be persisted.

Imports no other room of the controller. Keeps the Raft rules of ``docs/invariants.md``.
"""
