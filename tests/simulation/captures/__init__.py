"""A capture of a real cluster, played again: its faults and its elections."""
