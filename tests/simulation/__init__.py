"""The whole cluster in one thread: real cores and the real log over a simulated network, disk and clock.

``python -m simulation --seed 7 --trace`` replays one seed; ``--seeds 0:1000 --jobs 2`` runs a range.
"""
