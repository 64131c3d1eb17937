"""The controller keeps the cluster's metadata in a Raft log, elects partition leaders and records why.

Start reading at ``core/controller.py`` (a request's way), ``core/metadata.py`` (what commands change),
``core/leadership.py`` (who leads a partition) and ``core/raft.py`` (the theory of the Raft group). ``shell.py``
performs what the core decides. The terms are explained in ``docs/vocabulary.md``, and the invariants with their
tests are listed in ``docs/invariants.md``.
"""
