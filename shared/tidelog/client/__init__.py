"""The client that applications use: it connects to a gateway, sends and reads records, and administers the cluster.

Start at ``client/log.py``: a ``Log`` is what ``connect`` yields, and makes everything else. ``producer.py`` sends
records, ``transactions.py`` sends them in transactions, ``consumer.py``, ``backward_consumer.py`` and
``group_consumer.py`` read them, and ``record_stream.py`` is the iterator that these share. ``batch_sender.py`` and
``conditional_appender.py`` send batches that the caller has encoded. ``admin/`` has the administration behind the
attributes of ``Log``.

The decisions are made in ``core/``, without I/O. Below it, ``connection.py`` keeps a link to one reachable gateway,
``topic_reader.py`` connects consumers to it, and ``group_membership.py`` keeps a member in its group. ``loop.py`` is
what all of this needs of an event loop: ``trio_loop.py`` implements it, and so does ``tidelog.aio``. ``tidelog.sync``
is the blocking client. Nothing here imports ``runtime``: a client loads no server code.
"""
