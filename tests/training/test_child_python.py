"""Processes that are started find the user's modules, and none of the current folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vinoreward.processes import shadow

LOCAL = """
import os
from engine_runs import config, started, take

if __name__ == "__main__":
    with started(config(environment="environments_of_the_user:make")) as engine:
        take(engine)
    print(os.environ.get("PYTHONSAFEPATH"))
"""
RAY = """
import sys
from pathlib import Path
from vinoreward_actors.actor_learner.engines.ray.cluster import Cluster

class Told:
    def path(self):
        return sys.path

cluster = Cluster(1)
try:
    told = cluster.ray.remote(num_cpus=0)(Told).remote()
    found = cluster.ray.get(told.path.remote())
finally:
    cluster.close()
print("there" if str(Path.cwd()) in found or "" in found else "None")
"""
ENVIRONMENTS = """
import os
from faulty_environments import Numbered

def make():
    assert "PYTHONSAFEPATH" not in os.environ, "the simulator's own processes would inherit it"
    return Numbered()
"""
HOSTILE = "import pathlib; pathlib.Path(__file__).with_name('run').touch(); raise SystemExit(1)\n"


@pytest.mark.parametrize("script", [LOCAL, pytest.param(RAY, marks=pytest.mark.slow)])
def test_the_current_folder_is_not_looked_in(tmp_path: Path, script: str) -> None:
    if script == RAY:
        pytest.importorskip("ray")
    own, theirs = tmp_path / "own", tmp_path / "theirs"
    own.mkdir()
    theirs.mkdir()
    (own / "script.py").write_text(script)
    (own / "environments_of_the_user.py").write_text(ENVIRONMENTS)
    for name in ("multiprocessing", "vinoreward", "socketserver"):
        (theirs / f"{name}.py").write_text(HOSTILE)
    folders = [*(folder for folder in sys.path if folder), str(Path(__file__).parent)]
    done = subprocess.run(
        [sys.executable, str(own / "script.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        cwd=theirs,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert not (theirs / "run").exists()
    if sys.version_info < (3, 11) and script == LOCAL:
        assert done.returncode == 1 and "would be run by Python 3.10" in done.stderr
        return
    assert (done.returncode, done.stdout.split()) == (0, ["None"]), done.stderr


def test_what_python_3_10_would_run_is_found(tmp_path: Path) -> None:
    (tmp_path / "logging").mkdir()
    (tmp_path / "numpy.py").write_text("")
    (tmp_path / "sys.py").write_text("")
    assert shadow(tmp_path) is None
    (tmp_path / "multiprocessing").mkdir()
    (tmp_path / "multiprocessing" / "__init__.py").write_text("")
    found = shadow(tmp_path)
    assert found == tmp_path / "multiprocessing" / "__init__.py"
