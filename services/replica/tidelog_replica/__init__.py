"""The replica server keeps the logs of partitions: leaders append and serve, followers copy.

Start reading at ``node.py`` (every input of the server), ``partition.py`` (one partition and its role),
``core/leader.py`` and ``core/follower.py`` (the replication protocol) and ``log/log.py`` (the log on disk).
``shell.py`` performs what the node decides. HW, LEO, ISR, ELR, LSO and all other terms are explained in
``docs/vocabulary.md``, and the invariants with their tests are listed in ``docs/invariants.md``.
"""
