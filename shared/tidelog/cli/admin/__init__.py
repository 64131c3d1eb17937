"""Commands of ``tidelog`` that administer a cluster: topics, groups, partitions, access, servers, backups.

One module for each command group. ``cli/main.py`` lists them, and imports a module when its command is called.
"""
