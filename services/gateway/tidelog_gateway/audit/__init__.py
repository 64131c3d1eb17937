"""The topic ``__audit``: changes of the cluster, refused requests, and failed authentications.

Start at ``audit/events.py``, which decides what is recorded. ``merged_events.py`` merges events that clients can
cause as often as they like, and ``writer.py`` writes the topic by way of this gateway's router.
"""
