"""The gateway connects clients to the cluster: it routes produced batches, pushes records and enforces rights.

Start reading at ``shell.py`` (links in and out), ``core/router.py`` (produced batches), ``core/subscription.py``
(reads) and ``core/guard.py`` (what a client may do). A gateway keeps no state of its own. The terms are explained in
``docs/vocabulary.md``, and the rules with their tests are listed in ``docs/invariants.md``.
"""
