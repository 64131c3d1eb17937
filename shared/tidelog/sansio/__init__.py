"""Small parts that the cores of several services use. Pure.

``effects.py`` has the effects that cores return, ``counters.py`` the counters for metrics, ``timers.py`` many timers
behind one deadline, ``token_bucket.py`` limits of rates, and ``majority.py`` finds the copies of a partition that
differ from the others.
"""
