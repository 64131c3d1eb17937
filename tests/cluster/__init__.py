"""Whole clusters in one process."""
