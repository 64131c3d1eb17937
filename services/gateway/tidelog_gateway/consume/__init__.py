"""Records on their way to clients: subscriptions, reads, and the choice of the replica to read from.

Start at ``consume/subscriptions.py``, which pushes batches within a client's credit. ``tail_cache.py`` keeps the
newest batches for subscribers that arrive together, ``replica_selector.py`` chooses a replica (KIP-392),
``server_read_window.py`` bounds the bytes on their way from a replica server (decision 36), ``server_reads.py``
sends the reads to replica servers, ``polls.py`` has the clients' single reads that wait for new records, and
``timestamp_lookup.py`` finds an offset by time.
"""
