"""Real clusters in the process of the tests: real services, real sockets, real files.

Start at ``testing/real/cluster.py``: ``RealCluster`` is what a test gets. It runs the services in a thread with a
trio loop of its own, so that tests on trio, on asyncio and without a loop can use it.

- ``service_tasks`` runs one service as a task. The tests of the product and ``tidelog dev`` use it, too.
- ``faulty_network`` and ``faulty_disk`` are what a service runs over, so that faults can be injected into it.
- ``cluster_tasks`` has the services of one cluster and the faults, as trio tasks and functions.

Imported by ``tidelog.testing``, ``tidelog.cli.local`` and tests. The services are imported when a cluster starts.
"""
