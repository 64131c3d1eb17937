"""The byte level: the services' real trio shells, the real client and trio-websocket over streams in memory.

Fewer seeds and fewer kinds of faults than the message level, the same history checker and the same comparison of
logs. ``python -m simulation --bytes --seeds 0:20``.
"""
