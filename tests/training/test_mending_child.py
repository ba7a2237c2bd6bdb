"""Work in a child process beside other work: its result or None, and nothing is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import child_work
import pytest
from waiting import until

from vinoreward.processes import THREADS
from vinoreward_training.mending import child as module
from vinoreward_training.mending.child import in_child

SUPPORT = Path(child_work.__file__).parent


def process(folder: Path) -> Path:
    """What the system says of the child that wrote its number."""
    return Path("/proc") / (folder / "pid").read_text()


def gone(folder: Path) -> bool:
    """Whether that child has ended."""
    path = process(folder) / "stat"
    return not path.exists() or path.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_result_comes_back_and_nothing_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with in_child(partial(child_work.double, {"a": 1})) as answer:
        found = answer()
    assert found == ([{"a": 1}] * 2, bytes(1 << 20))
    with in_child(partial(child_work.reads, tmp_path)) as read:
        assert read() == "nothing to read"
    assert not process(tmp_path).exists()
    assert capfd.readouterr() == ("", "")


def test_a_child_leads_a_session_and_computes_on_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So Ctrl-C on the terminal reaches its parent alone."""
    for name in THREADS:
        monkeypatch.delenv(name, raising=False)
    with in_child(partial(child_work.situation, tmp_path)) as answer:
        assert answer() == (True, ["1"] * len(THREADS))


@pytest.mark.parametrize("work", [child_work.fails, child_work.dies, child_work.dies_as_it_answers])
def test_of_what_fails_there_is_no_result(
    tmp_path: Path, work: Callable[..., object], capfd: pytest.CaptureFixture[str]
) -> None:
    with in_child(partial(work, tmp_path)) as answer:
        until(lambda: (tmp_path / "pid").exists() and gone(tmp_path))
        assert answer() is None
    assert not process(tmp_path).exists()
    assert capfd.readouterr() == ("", "")


def test_without_room_for_a_process_there_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", full)
        with in_child(partial(child_work.double, 1)) as answer:
            assert answer() is None
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("least", "times"), [(600.0, 0.0), (0.0, 1e4)])
def test_a_child_may_take_some_time_or_longer_than_its_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: float, times: float
) -> None:
    monkeypatch.setattr(module, "PATIENCE", least)
    monkeypatch.setattr(module, "TIMES", times)
    with in_child(partial(child_work.takes_a_moment, tmp_path)) as answer:
        until((tmp_path / "pid").exists)
        assert answer() == "done"


def test_a_child_that_hangs_is_given_up_and_may_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "SAID_AFTER", 0.1)
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    monkeypatch.setattr(module, "TIMES", 1.0)
    with in_child(partial(child_work.waits, tmp_path)) as answer:
        until((tmp_path / "pid").exists)
        assert answer() is None
    assert "waiting for the other process" in capsys.readouterr().out
    assert not process(tmp_path).exists() and (tmp_path / "closed").exists()


def test_a_child_that_does_not_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE", 0.1)
    with in_child(partial(child_work.stubborn, tmp_path)):
        until((tmp_path / "pid").exists)
    assert not process(tmp_path).exists()


def test_ctrl_c_does_not_wait_for_a_child_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE", 600.0)
    with pytest.raises(KeyboardInterrupt), in_child(partial(child_work.impatient, tmp_path)):
        until((tmp_path / "pid").exists)
    assert not process(tmp_path).exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_of_the_block_ends_the_child(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), in_child(partial(child_work.waits, tmp_path)):
        until((tmp_path / "pid").exists)
        raise error
    assert not process(tmp_path).exists() and (tmp_path / "closed").exists()


@pytest.mark.parametrize("work", ["child_work.waits, folder", "child_work.stubborn, folder, 0.2"])
def test_a_killed_parent_leaves_no_child_and_its_script_runs_once(
    tmp_path: Path, work: str
) -> None:
    """A script without ``if __name__ == "__main__"``; the child may close, and must end."""
    script = tmp_path / "script.py"
    script.write_text(
        "import functools, pathlib, time\n"
        "import child_work\n"
        "from vinoreward_training.mending.child import in_child\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "with (folder / 'runs').open('a') as log:\n"
        "    log.write('once ')\n"
        f"with in_child(functools.partial({work})):\n"
        "    time.sleep(600)\n"
    )
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(SUPPORT))))
    parent = subprocess.Popen([sys.executable, script], env=os.environ | {"PYTHONPATH": path})
    until((tmp_path / "pid").exists)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    until(lambda: gone(tmp_path))
    assert (tmp_path / "closed").exists() == ("waits" in work)
    assert (tmp_path / "runs").read_text() == "once "
