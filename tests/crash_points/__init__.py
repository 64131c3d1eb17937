"""Power losses of the real disk: a program writes through ``RealDisk`` under ``strace``, and at every system call the
power is lost once more.

    recording   the system calls of a program, from ``strace``
    volume      what those calls have made durable, and what a power loss may leave of the rest
    script      the program: logs and a data directory are driven through everything that they do, and what they
                have promised is written down beside the calls
    promises    what is found after a power loss is opened by the real code and held against the promises
    replay      all of it together, crash point by crash point

``python -m crash_points`` runs more seeds and more power losses than ``make test``.
"""

import scenarios  # noqa: F401 (it makes the helpers of the unit tests importable)
