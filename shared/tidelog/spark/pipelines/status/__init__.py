"""The state of a running pipeline over HTTP: ``status_pages.py`` makes ``/healthz`` and ``/metrics``, and
``status_port.py`` opens the port.
"""
