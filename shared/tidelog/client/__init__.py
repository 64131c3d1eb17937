"""The client: ``connect`` gives a ``Log``. It decides in ``core/``; ``tidelog.sync`` is its blocking face."""
