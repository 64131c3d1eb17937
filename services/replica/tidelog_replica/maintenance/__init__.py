"""Work on logs that no client asked for: opening, retention and compaction, scrubbing, repair, disk space.

Each module decides and lets a job do the work in a thread (``jobs.py``); the file formats are in ``storage``. Start
at ``maintenance/log_opener.py``. ``log_deletion.py`` deletes whole logs, ``log_cleaner.py`` begins retention and
compaction, ``scrubber.py`` reads segments again, ``log_repairer.py`` mends damaged logs, ``doubtful_tails.py`` asks
the other replicas about a tail that the disk cannot prove, ``disk_space.py`` deals with a full disk. Keeps R10 and
R12 of ``docs/invariants.md``.
"""
