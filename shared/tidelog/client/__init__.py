"""The trio client: ``connect`` gives a ``Log``; see ``core/`` for what it decides and ``tidelog.sync`` for blocking."""
