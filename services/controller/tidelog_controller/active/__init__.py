"""What only the active controller does of its own accord. All of it is volatile: its successor begins anew.

Start at ``active/leader_replacement.py``: when a leader is replaced that others report as dead.
``server_sessions.py`` fences a replica server that sends no heartbeats.
``leader_balancer.py`` moves leadership to preferred replicas, ``reassignment_scheduler.py`` begins the moves of a
rebalance, ``slow_servers.py`` remembers who lags, ``server_ranks.py`` how fit each server is to lead.
``timeline_writer.py``, ``timeline_records.py`` and ``timeline_topic.py`` write what happened to ``__timeline``,
``refusal_log.py`` gathers what was refused.
``gateway_directory.py`` keeps the URLs of the gateways, of which clients are told.
"""
