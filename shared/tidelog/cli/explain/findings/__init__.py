"""What ``tidelog doctor`` finds in a cluster.

Start at ``diagnosis.py``: ``examine`` derives all findings from a ``ClusterSnapshot`` (``snapshot.py``), which
``cli/explain/doctor.py`` and ``capture.py`` fill with what they asked for. There is one module for each subject:
controllers, servers, disks, clocks, partitions, copies, transactions, groups, security, versions. A rule is a
function of the snapshot that makes no requests, so that it can be tested with values. ``finding.py`` says what a
finding is.

Only ``cli/explain`` may import this room."""
