"""Arrow: batches of the log as record batches of pyarrow, for readers that compute with columns.

Needs pyarrow and numpy, so nothing imports this room at the top of a module. ``layout.py`` has the columns that an
application asked for. ``rows.py`` collects log batches and makes record batches of them: ``bodies.py`` decodes their
bodies, many at once, and ``positions.py`` finds the items of a body for it. ``values.py`` converts byte strings to
text or JSON. ``encoded_strings.py`` goes the other way, from columns to items of a body. The readers are
``tidelog.client.arrow_reader`` and Spark's ``tidelog.spark.read``; the writer is Spark's ``tidelog.spark.write``.
"""
