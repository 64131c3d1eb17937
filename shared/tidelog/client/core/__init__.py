"""The sans-I/O cores of the client: what a producer, a consumer and a group member decide, without socket or clock.

Start at ``core/producer.py``, which has a ``partition_queue.py`` of ``batch.py`` for each partition;
``partitioner.py`` chooses the partition of a record. ``consumer.py`` and ``backward_consumer.py`` decide where a
consumer reads on, ``group_member.py`` which partitions a member of a group owns, ``gateway_addresses.py`` which
gateway is tried next. Inputs are methods that take ``now``; outputs are effects and settled batches, which the shells
in ``client/`` perform and report. The JavaScript client has the same cores (``shared/js/src/core``), and replays
traces of these (``tests/js/core_traces.py``).
"""
