"""The protocol between all processes: messages, their encoding, and the state of one connection. Without I/O.

Start at ``wire/messages/``, one module for each kind of conversation. ``codec.py`` encodes and decodes messages by
``schema.py``, which compiles a function for each class; ``cbor.py`` refuses what the protocol does not need.
``link_session.py`` matches requests and answers of one connection, ``proof.py`` authenticates services by a secret,
``metadata_image.py`` has the metadata as bytes, ``bounds.py`` the table of what each request may cost.
"""
