"""The protocol between all processes: messages, their encoding, and the state of one connection. Without I/O.

Start at ``wire/messages/``, one module for each plane of the protocol. ``codec.py`` encodes and decodes messages with
``schema.py``, which compiles two functions for each class; ``cbor.py`` refuses CBOR that the protocol does not need.
``link_session.py`` matches requests and answers of one connection, ``proof.py`` authenticates services by a secret,
``metadata_image.py`` encodes the metadata, and ``bounds.py`` has the table of what each request may cost.
"""
