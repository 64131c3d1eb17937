"""Administration by way of a gateway: groups, partitions, access rules, the cluster, comparing replicas.

Each module is a part of ``client/log.py``, the class that applications use.
"""
