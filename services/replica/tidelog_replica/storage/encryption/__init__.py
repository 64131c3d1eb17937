"""Encryption at rest: files whose blocks are encrypted, the keys, and changing from one key to the next.

Start at ``storage/encryption/files.py``: the ``Disk`` that encrypts. ``keyring.py`` reads the key file,
``rotation.py`` finds and rewrites what an old key still encrypts.
"""
