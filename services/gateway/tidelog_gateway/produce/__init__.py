"""Produced batches, from the client that sent them to the leader, and the acks back. Sans-I/O.

Start at ``produce/router.py``. ``queues.py`` keeps a queue for each client and partition and a window for each
replica server, ``accumulators.py`` makes few messages of many batches and acks. ``shell.py`` calls ``flush`` once in
each turn and sends what that returns.
"""
