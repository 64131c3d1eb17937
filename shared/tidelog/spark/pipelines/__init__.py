"""Pipelines: what a TOML file declares runs as streaming queries of Spark.

The entry points are ``declaration.py`` (the parts of a pipeline, parsed), ``session.py`` (the Spark session),
``run.py`` (starts the queries and waits for them), ``check.py`` and ``analysis.py`` (the check before a run, without
and with Spark), ``trial.py`` (a run on the first records that writes nothing) and ``graph/`` (the picture). The
command ``tidelog pipeline`` imports them.

``file/`` reads the TOML text. ``input_check.py`` checks the settings of an input, ``source_options.py`` has the
options of source and sink that the parts stand for, and ``security.py`` the token and the files of TLS. ``views.py``
makes the views of inputs and tables; ``value_columns.py`` converts values to columns, with the formats in
``values/``, and rows to records. ``table_outputs.py`` is for outputs that are tables, ``shared_reads.py`` writes
several outputs by one query, and ``plots.py`` draws pictures of the outputs.

``supervision.py`` decides, without input and output, which query is started again after an error and when
(``restart_policy.py``), and ``runner.py`` carries that out. ``batch_report.py`` reads the reports of Spark, and
``status/`` shows the state over HTTP.
"""
