"""Produced batches, from the client that sent them to the leader, and the acks back. Sans-I/O.

Start at ``produce/router.py``: it also decides whether a refused or lost batch is sent again (``Router._try_again``)
and how a leader change is handled (``Router._supersede``). ``queues.py`` keeps a queue for each client and partition
and a window for each replica server, ``accumulators.py`` makes few messages of many batches and acks. ``shell.py``
calls ``flush`` once in each turn and sends what that returns.
"""
