"""The trio client: ``connect`` gives a ``Log``. Its decisions are in ``core/``; ``tidelog.sync`` is its blocking face."""
