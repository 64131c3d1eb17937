"""Replaying a capture of a real cluster in the simulation: its faults and its elections (``docs/capture.md``)."""
