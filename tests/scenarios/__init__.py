"""Failure scenarios, each named by its id in the list of scenarios."""
