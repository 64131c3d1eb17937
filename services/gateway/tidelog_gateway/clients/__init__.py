"""The links of clients: which are accepted, which are closed, and how much each client sends and gets.

Start at ``clients/connections.py``: every message of a client passes it first. It asks ``rights`` what the client may
do and ``limits/quota_enforcer.py`` how much. ``drain.py`` closes the links of clients in order when the gateway ends.
``announcement.py`` finds out where they can go on.
"""
