"""What simulated processes stand on: virtual time, disks in memory that lose power, and a network that breaks.

``disk.SimDisk`` is the ``Disk`` of both levels and of the log's own tests; ``loop`` and ``network`` are those of the
message level. The network of the byte level is ``tidelog.testing.shells.streams``.
"""
