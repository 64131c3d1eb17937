from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tidelog.spark.worker_python import worker_python

pyspark = pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")
HOME = Path(os.path.realpath(pyspark.__file__)).parent
GIVEN = tuple(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
"""The path of these tests, by which they may have another PySpark than the installed one."""
PRINT = """\
import os, pyspark, sys
print(os.environ["PYTHONPATH"], sys.prefix, pyspark.__file__, sys.argv[1:], sep="\\n")
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for scripts. Its name has characters that a shell would interpret."""
    folder = tmp_path / "a 'b' $c"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


def sparks_path(*user: str) -> str:
    """The PYTHONPATH that Spark gives to a process on the driver, where it has its own part twice."""
    [jar] = HOME.glob("jars/spark-core_*.jar")
    [py4j] = HOME.glob("python/lib/py4j-*-src.zip")
    own = [str(HOME / "python" / "lib" / "pyspark.zip"), str(py4j), str(jar)]
    return os.pathsep.join([*own, *own, *user])


@pytest.mark.parametrize("user", [(), ("/of/the/user", "/of/another.jar")], ids=["no path", "a path"])
def test_it_is_this_python_with_the_installed_pyspark_and_the_users_path(cache: Path, user: tuple[str, ...]) -> None:
    script = worker_python("local[2]")
    environ = {**os.environ, "PYTHONPATH": sparks_path(*user, *GIVEN)}
    run = subprocess.run([script, "-c", PRINT, "a b", "*"], env=environ, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [
        ":".join((*user, *GIVEN)),
        sys.prefix,
        str(HOME / "__init__.py"),
        "['a b', '*']",
    ]
    assert Path(script).parent == cache / "tidelog"
    assert worker_python("local") == script
    assert [each.name for each in (cache / "tidelog").iterdir()] == [Path(script).name]


@pytest.mark.parametrize(("given", "then"), [({}, "1"), ({"OMP_NUM_THREADS": "3"}, "3")], ids=["none", "three"])
def test_numpy_has_one_thread_unless_the_user_says_so(cache: Path, given: dict[str, str], then: str) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | given
    environ["PYTHONPATH"] = sparks_path()
    script = [worker_python("local"), "-c", "import os; print(os.environ['OMP_NUM_THREADS'])"]
    assert subprocess.run(script, env=environ, capture_output=True, text=True, check=True).stdout == f"{then}\n"


def test_a_script_that_was_changed_is_written_again(cache: Path) -> None:
    script = Path(worker_python("local"))
    whole = script.read_text()
    script.write_text(whole[:5])
    assert worker_python("local") == str(script)
    assert script.read_text() == whole


@pytest.mark.parametrize("master", ["spark://host:7077", "k8s://https://host", "yarn", ""])
def test_machines_of_a_cluster_do_not_have_the_script(cache: Path, master: str) -> None:
    assert worker_python(master) == sys.executable
    assert not cache.exists()


def test_without_a_folder_for_it_there_is_no_script(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write_text("no folder")
    assert worker_python("local") == sys.executable
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: Path("/proc/none"))
    assert worker_python("local") == sys.executable
