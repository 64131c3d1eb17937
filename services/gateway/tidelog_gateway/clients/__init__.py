"""The links of clients: who comes in, who must go, and how much each sends and gets.

Start at ``clients/connections.py``: every message of a client passes it before anything else sees it. It asks
``rights`` what the client may do and ``quota_enforcer.py`` how much. ``drain.py`` lets clients go in order.
"""
