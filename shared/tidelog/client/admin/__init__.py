"""Administration by way of a gateway: topics, partitions, groups, transactions, access rules, the cluster.

Each class stands behind an attribute of ``Log`` (``client/log.py``): ``log.topics``, ``log.groups`` and so on. The
two comparisons (``replica_comparison.py``, ``copy_comparison.py``) serve ``log.partitions``. ``old_names.py`` has the
names that the methods had while ``Log`` had all of them.
"""
