"""Work in a child process beside other work: its result or None, and nothing is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import child_work
import pytest

from vinoreward_training.mending import child as module
from vinoreward_training.mending.child import in_child

SUPPORT = Path(child_work.__file__).parent


def until(true: Callable[[], bool], seconds: float = 30.0) -> bool:
    ends = time.monotonic() + seconds
    while not true():
        if time.monotonic() > ends:
            return False
        time.sleep(0.05)
    return True


def gone(folder: Path) -> bool:
    """Whether the child that wrote its number has ended."""
    path = Path("/proc") / (folder / "pid").read_text() / "stat"
    return not path.exists() or path.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_result_comes_back(tmp_path: Path) -> None:
    with in_child(child_work.double, {"a": 1}) as answer:
        found = answer()
    assert found == ([{"a": 1}] * 2, bytes(1 << 20))
    with in_child(child_work.reads, tmp_path) as answer:
        assert answer() == "nothing to read"
    assert until(lambda: gone(tmp_path))


@pytest.mark.parametrize("work", [child_work.fails, child_work.dies])
def test_of_what_fails_there_is_no_result(tmp_path: Path, work: Callable[..., None]) -> None:
    with in_child(work, tmp_path) as answer:
        assert answer() is None
    assert gone(tmp_path)


def test_without_room_for_a_process_there_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", full)
        with in_child(child_work.double, 1) as answer:
            assert answer() is None
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_child_that_hangs_is_given_up_and_may_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "SAID_AFTER", 0.1)
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    with in_child(child_work.waits, tmp_path) as answer:
        assert until((tmp_path / "pid").exists)
        assert answer() is None
    assert "waiting for the other process" in capsys.readouterr().out
    assert gone(tmp_path) and (tmp_path / "closed").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_of_the_block_ends_the_child(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), in_child(child_work.waits, tmp_path):
        assert until((tmp_path / "pid").exists)
        raise error
    assert gone(tmp_path) and (tmp_path / "closed").exists()


def test_a_killed_parent_leaves_no_child_and_its_script_runs_once(tmp_path: Path) -> None:
    """A script without ``if __name__ == "__main__"``."""
    script = tmp_path / "script.py"
    script.write_text(
        "import pathlib, time\n"
        "import child_work\n"
        "from vinoreward_training.mending.child import in_child\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "with (folder / 'runs').open('a') as log:\n"
        "    log.write('once ')\n"
        "with in_child(child_work.waits, folder):\n"
        "    time.sleep(600)\n"
    )
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(SUPPORT))))
    parent = subprocess.Popen([sys.executable, script], env=os.environ | {"PYTHONPATH": path})
    assert until((tmp_path / "pid").exists)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert until(lambda: gone(tmp_path)) and (tmp_path / "closed").exists()
    assert (tmp_path / "runs").read_text() == "once "
