"""What ``tidelog doctor`` finds about consumer groups.

``lags.py`` says how far groups are behind, and for which groups retention waits. ``members.py`` finds the members
that make a group rebalance for ever, that never commit, stand still or are too slow. ``positions.py`` finds positions
below the log start, and those that somebody moved who is no member.

The rules of ``members.py`` and ``positions.py`` are functions of ``GroupLook`` (``cli/explain/group_looks.py``),
which has what a group's coordinator and the leaders of its partitions say. They make no requests. Times are compared
only with the coordinator's clock, so that the clock of the machine on which the command runs does not matter.

``findings/diagnosis.py`` calls the rules, and only it may import this room."""
