"""What a service needs around its core: configuration, logs, metrics, listening, the disk.

Start at ``runtime/service.py``, which runs a service as a process. ``config.py`` reads settings, ``listener.py``
accepts links and answers HTTP, ``shell.py`` has what the shells of all services have in common, ``logs.py`` and
``log_events.py`` write the log, ``disk.py`` is the seam to the file system, ``process_settings.py`` sets up garbage
collector, allocator and open descriptors. Clients do not import this room.
"""
