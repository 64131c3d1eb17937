"""Durable Streams over HTTP (``docs/streams.md``): create, append, read and follow streams at ``/v1/streams/…``."""
