"""The coordinators of consumer groups and of transactions, which keep their state in internal topics.

Start at ``coordinators/runtime.py``: it reads a partition of such a topic when this server becomes its leader, runs a
coordinator over it, and writes what that decides. The coordinators themselves are pure: ``groups/coordinator.py`` and
``transactions/coordinator.py``. A rebalance is in ``groups/group.py``. ``tally.py`` counts what each principal has,
for the bounds per principal.
"""
