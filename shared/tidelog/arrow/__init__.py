"""Arrow: batches of the log as record batches of pyarrow, for readers that compute with columns.

Needs pyarrow, so nothing imports this room at the top of a module. ``layout.py`` has the columns that an
application asked for, ``rows.py`` collects log batches and makes record batches of them, and ``values.py`` converts
byte strings to text or JSON. The readers are ``tidelog.client.arrow_reader`` and Spark's ``tidelog.spark.read``.
"""
