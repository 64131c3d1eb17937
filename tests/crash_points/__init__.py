"""Power losses of the real disk: a program writes through ``RealDisk`` under ``strace``, and the power is lost once
at every system call.

    recording   the system calls of a program, from ``strace``
    volume      a file system as these calls leave it: what is durable, and what a power loss may leave of the rest
    script      the program: it drives logs and a data directory through all their actions, and writes down what they
                promise between the system calls
    promises    the real code opens what a power loss has left; the result must keep the promises
    replay      records, loses the power at each call, and checks
    calls       random calls of a disk, for the comparison of the real one with the simulated one

``python -m crash_points`` runs more seeds and more power losses than ``make test``.
"""

import scenarios  # noqa: F401 (it makes the helpers of the unit tests importable)
