"""Consumer groups.

``group.py`` is one group: its members, which member has which partition (the rebalance), and its generation.
``coordinator.py`` handles the requests and time-outs of the groups that one server coordinates. ``assignors.py``
computes the assignment that a rebalance works towards. ``service.py`` connects the coordinator to the log and the
network.
"""
