"""Replaying a capture of a real cluster: its faults and its elections."""
