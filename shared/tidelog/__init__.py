"""Tidelog: a replicated, partitioned commit log. ``import tidelog`` is the published client API."""
