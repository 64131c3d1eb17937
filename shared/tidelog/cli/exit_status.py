"""The exit statuses of the commands, and what each means. Every command ends with one of these constants, or by an
error that ``main.fail`` or click turns into one."""

from __future__ import annotations

DONE = 0
"""The command did everything that was asked, and a check found nothing wrong."""
FAILED = 1
"""The cluster refused or could not be reached, a part of the work was not done, or a check found something."""
UNUSABLE = 2
"""The arguments, the configuration or a named file cannot be used. click ends with this status, too."""
INTERRUPTED = 130
"""Ctrl-C ended the command: 128 and the number of SIGINT, as shells count."""
BY_SIGNAL = 128
"""A command that a signal ended has this status plus the number of the signal."""

EXIT_CODES = (
    (DONE, "Done.", "all"),
    (DONE, "All records were acknowledged.", "`produce`"),
    (DONE, "Everything was sent, acknowledged and received.", "`bench`"),
    (DONE, "All copies on live servers were compared to the end, and are the same.", "`verify replicas`"),
    (DONE, "Nothing is wrong.", "`verify check`"),
    (DONE, "Every file is as it was.", "`backup --check`"),
    (DONE, "Stopped by Ctrl-C or SIGTERM, or at the end with `--to-end`.", "`mirror`"),
    (DONE, "Nothing but notes.", "`doctor`"),
    (DONE, "The file has no errors, though perhaps warnings.", "`pipeline check`"),
    (DONE, "All outputs are done.", "`pipeline run`"),
    (
        FAILED,
        "The cluster refused, no gateway was reached, or it took too long; stderr says which.",
        "all",
    ),
    (FAILED, "Some records were not acknowledged, or did not arrive.", "`produce`, `bench`"),
    (FAILED, "A line of the input is no record; all lines before it were sent.", "`produce`"),
    (FAILED, "Replicas differ, or some were not compared to the end.", "`verify replicas`"),
    (FAILED, "Something was lost, changed, out of order or stale: there are findings.", "`verify check`"),
    (FAILED, "The end could not be read: the history is not complete.", "`verify record`"),
    (FAILED, "A file is missing, damaged or changed.", "`backup --check`, `restore`"),
    (FAILED, "All was restored, but a group could not be set.", "`restore --groups`"),
    (FAILED, "There are problems or warnings.", "`doctor`"),
    (FAILED, "The rules do not allow it; there is no such rule.", "`acls check`; `acls remove`"),
    (FAILED, "It does not run; it is not live in time.", "`cluster end`, `pause`, `resume`; `cluster restart`"),
    (FAILED, "Something is left that no other server can lead.", "`servers drain`"),
    (FAILED, "It has no vote in time.", "`controllers add`"),
    (FAILED, "The file has errors; an output would fail.", "`pipeline check`; `pipeline try`"),
    (FAILED, "A record was lost.", "`demo`"),
    (FAILED, "An output has given up, or Spark has ended.", "`pipeline run`"),
    (UNUSABLE, "Wrong usage or configuration; a local cluster that cannot start.", "all"),
    (UNUSABLE, "A file is no history, or damaged; it exists already.", "`verify check`; `verify record`"),
    (INTERRUPTED, "Interrupted by Ctrl-C.", "all"),
    (INTERRUPTED, "Interrupted by Ctrl-C or SIGTERM: the outputs were stopped.", "`pipeline run`"),
)
"""Rows of the table in ``docs/cli.md``: (exit status, meaning, the commands that end with it)."""
