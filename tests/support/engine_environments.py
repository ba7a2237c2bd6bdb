"""Environments for tests of every engine: they note which process they live in, and fail on demand.

Actors import this module, so it is light.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from faulty_environments import Numbered, Remembers

from vinoreward_actors.compression.chain import CompressionContext
from vinoreward_actors.policies.policy import Policy


class Watched(Numbered):
    """Observations are (episode, step); a file for each process says what is true inside it.

    Args:
        folder: where the files go.
        owner: the test's own process, in which nothing fails.
        fault: see :class:`Numbered`.
        at: which step, counted over all episodes.
        once: the fault happens in one process only.
    """

    def __init__(
        self, folder: str, owner: int, fault: str = "", at: int = 0, once: bool = True
    ) -> None:
        super().__init__()
        self._folder = Path(folder)
        self._owner = owner
        self._told = (fault, at)
        self._once = once
        self._count = 0

    def step(self, action: Any) -> Any:
        self._count += 1
        if os.getpid() == self._owner:
            return super().step(action)
        if self._count == 2:
            self._note()
        fault, at = self._told
        if fault and self._count == at and self._due():
            self._fault = fault
            self._happen(self._observe(), 0.0)
        return super().step(action)

    def _due(self) -> bool:
        if not self._once:
            return True
        try:
            (self._folder / "fault").touch(exist_ok=False)
        except FileExistsError:
            return False
        (self._folder / "victim").write_text(str(os.getpid()))
        return True

    def _note(self) -> None:
        about = {
            "torch": "torch" in sys.modules,
            "threads": os.environ.get("OMP_NUM_THREADS"),
            "node": ray_node(),
        }
        part = self._folder / f"{os.getpid()}.part"
        part.write_text(json.dumps(about))
        part.rename(self._folder / f"{os.getpid()}.json")


class Falls(Numbered):
    """Fails at its twelfth step, in any process."""

    def step(self, action: Any) -> Any:
        if self._steps == 11:
            raise RuntimeError("the simulator fell over")
        return super().step(action)


class Fragile(Remembers):
    """Counts its pushes; something happens in one of them, once.

    Args:
        marker: a file that says that it has happened, and in which process.
        after: which push.
        fault: kill, or hang (SIGSTOP).
    """

    def __init__(self, marker: str, after: int, fault: str = "kill") -> None:
        super().__init__()
        self._file = Path(marker)
        self._after = after
        self._what = fault

    def compress(self, policy: Policy, context: CompressionContext) -> Policy:
        if self.count + 1 == self._after and not self._file.exists():
            self._file.write_text(str(os.getpid()))
            # To this thread: while another one takes the signal, this one could go on.
            signal.raise_signal(signal.SIGKILL if self._what == "kill" else signal.SIGSTOP)
        return super().compress(policy, context)


def ray_node() -> str:
    """Return the Ray node of this process, empty without Ray."""
    if "ray" not in sys.modules:
        return ""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def notes(folder: Path) -> dict[int, dict[str, Any]]:
    """What the environments have noted, by process."""
    return {int(path.stem): json.loads(path.read_text()) for path in folder.glob("*.json")}


def gone(pid: int) -> bool:
    """Whether a process has ended; one that only waits to be read has."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"
