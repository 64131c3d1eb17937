"""The Python that Spark runs on this machine for its own processes, so that they start faster."""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile

SCRIPT = """\
#!/bin/sh
path=$PYTHONPATH:
path=${{path##*{jar}:}}
export OMP_NUM_THREADS=${{OMP_NUM_THREADS:-1}}
PYTHONPATH=${{path%:}} exec {python} "$@"
"""
"""Runs this program's Python without what Spark puts before the PYTHONPATH of its user, which ends with a JAR. Numpy
starts no threads for linear algebra, which would cost a tenth of the start: Spark says the same to its tasks, but not
to the processes that plan."""


def worker_python(master: str) -> str:
    """Return the path of a program for ``PYSPARK_PYTHON``: this program's Python; if ``master`` is on this machine
    (``local…``) a script that has it import PySpark from where it is installed.

    Spark puts its own copy of PySpark, a zip, before all else on the path of its Python processes. Each of them
    compiles what it imports from there. The script takes the zip off the path, and leaves the rest of the path as it
    was. It stays in ``tidelog`` below ``XDG_CACHE_HOME`` or ``~/.cache``, one for each environment; the machines of a
    cluster do not have it.

    Return ``sys.executable`` also where there can be no script: on Windows, if PySpark is not installed with its
    JARs, or if the folder cannot be written or may not have programs."""
    spec = find_spec("pyspark")
    home = Path(os.path.realpath(spec.origin)).parent if spec is not None and spec.origin is not None else None
    jars = sorted(home.glob("jars/spark-core_*.jar")) if home is not None else []
    if not master.startswith("local") or os.name != "posix" or len(jars) != 1:
        return sys.executable
    text = SCRIPT.format(jar=shlex.quote(str(jars[0])), python=shlex.quote(sys.executable))
    try:
        script = _written(os.fsencode(text))
    except (OSError, RuntimeError):  # there is no home
        return sys.executable
    return str(script) if os.access(script, os.X_OK) else sys.executable


def _written(text: bytes) -> Path:
    """Return the script with this text, which is written if it is not there. Other programs may do the same at the
    same time. Raises ``OSError``, or ``RuntimeError`` if there is no home."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    folder = (given if given.is_absolute() else Path.home() / ".cache") / "tidelog"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    script = folder / f"spark-python-{hashlib.sha256(text).hexdigest()[:16]}"
    if not script.is_file() or script.read_bytes() != text:
        with NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(text)
        Path(file.name).chmod(0o700)
        Path(file.name).replace(script)
    return script
