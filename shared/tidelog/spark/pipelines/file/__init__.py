"""The file of a pipeline as a text: where its settings are, of which type they are, and what they refer to. All of
it is pure, and needs neither Spark nor Java.

``toml_lines.py`` finds the line of every key, ``variables.py`` replaces ``${NAME}``, and ``toml_settings.py`` makes
objects of dataclasses from the tables and reports every wrong setting. ``intervals.py``, ``ddl.py`` and
``sql_names.py`` know as much of Spark's grammar as a check without Spark needs. ``consistency.py`` checks what the
parts of a pipeline mean for each other. The dataclasses themselves are in ``declaration.py`` above.
"""
