"""Values: what the bytes of a record's value are as columns, or why they are not.

The entry points are ``decoder.py`` (the columns of an input, and the function of Arrow that decodes its values) and
``captured.py`` (expressions of SQL whose errors are a reason, and do not end the query). Each format has its module:
``documents.py`` (JSON, CBOR), ``lines.py`` (regular expressions, CSV), ``syslog.py``, ``avro.py``, ``protobuf.py``.
They decode bytes to values of Python; ``conversion.py`` makes columns of them.

All but ``captured.py`` runs without Spark's JVM. Whatever a value is made of, it is one row or has one reason:
nothing becomes NULL, is rounded or wrapped in silence, and no value ends a query. ``value_columns.py`` imports it.
"""
