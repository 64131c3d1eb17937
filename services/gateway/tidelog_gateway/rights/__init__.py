"""Who a client is, and what it may do. Without I/O, except ``issuer_keys.py``, which fetches the keys of an issuer.

Start at ``rights/authorizer.py``: tokens and rules of the metadata, applied. ``permissions.py`` is the table of what
each op needs, ``named_fields.py`` the table of every field that names something, ``visibility.py`` removes from an
answer what its reader may not know, ``text_check.py`` refuses texts that cannot be printed. ``oidc.py`` checks tokens
of an outside issuer. ``producer_tickets.py`` and ``own_transactions.py`` record what belongs to which connection.
"""
