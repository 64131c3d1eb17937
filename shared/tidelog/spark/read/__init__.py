"""Reading: what the source plans on the driver, and what a task reads.

The entry points are ``extents.py`` (which partitions there are, and where they begin and end), ``ranges.py`` (which
task reads which offsets) and ``task.py`` (a task reads its range). ``checkpoint_json.py`` has the offsets that a
stream keeps in Spark's checkpoint, ``data_loss.py`` describes which of them are gone, ``bounds.py`` has what filters
exclude, and ``arrow.py`` has the columns. ``source.py`` and ``checkpoint_planner.py`` import it.
"""
