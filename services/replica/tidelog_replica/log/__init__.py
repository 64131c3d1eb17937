"""The log of one partition on one disk: segments, their indexes, recovery. Synchronous, over the ``Disk`` seam."""
