"""This server at the controllers: its registration, its heartbeats, and the number of its incarnation.

Start at ``registration/session.py``. ``incarnations.py`` keeps on the disk which incarnation wrote the data, and
whether it ended in order: a server that has lost what was not flushed must say so when it registers (R9).
"""
