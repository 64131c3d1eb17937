"""Consumer groups: what their coordinator decides. The log and the network around it:
``coordinators/groups/service.py``."""
