"""The client: ``connect`` opens a ``Log``. Decisions are made in ``core/``; ``tidelog.sync`` is the blocking face."""
