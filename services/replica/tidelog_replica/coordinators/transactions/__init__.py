"""Transactions: what their coordinator decides (``coordinator.py``), and the markers at the leaders of partitions
(``markers.py``)."""
