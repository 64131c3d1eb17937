"""Scenarios: one test for each known failure, named by its id.

Scenarios that need no whole cluster use the networks of ``support``.
"""
