"""The faults of a simulated cluster of the message level: faults as data, their schedule, and the effect of each.

``strikes`` has the kinds and how a seed draws them, ``schedule`` when each strikes, ``damage`` what it does.
"""
