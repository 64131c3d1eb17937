"""Tests of one core, codec or program at a time. The path of a test is that of its module:
``unit/replica/storage/test_log.py`` tests ``tidelog_replica/storage/log.py``.
"""
