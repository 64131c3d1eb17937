"""The topic ``__audit``: who changed the cluster, who was refused, who could not say who he is.

Start at ``audit/events.py``, which decides what is recorded. ``merged_events.py`` merges what clients can cause as
often as they like, and ``writer.py`` writes the topic by way of this gateway's router.
"""
