"""Scenarios: one test for each known failure, named by its id.

Those that need no whole cluster stand on the networks of ``support``.
"""
