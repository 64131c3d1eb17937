"""Clusters on this machine: ``tidelog cluster``, ``tidelog dev`` and the playground.

Start at ``cli/local/local_cluster.py``: it starts the services as processes in one folder, and stops them by pid.
"""
