"""Stages of a command that runs other commands; when it is resumed, finished stages are skipped."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vinoreward.files import read_json, write_json
from vinoreward_training.runs.run_folder import CONFIG, reading

Facts = dict[str, Any]


class Stages:
    """Runs each stage once; writes the facts of a finished stage to a file, and then skips it.

    Args:
        folder: of the run; the files are ``stages/NAME.json``.
        names: of all stages, in order.
    """

    def __init__(self, folder: Path, names: list[str]) -> None:
        self._folder, self._names = folder / "stages", names
        self.seconds: dict[str, float] = {}
        self.facts: Facts = {}

    def stage(self, name: str, work: Callable[[], Facts], *, keep: bool = True) -> Facts:
        """Run ``work``, which returns facts, unless it is finished; ``keep=False``: always."""
        title = f"[{self._names.index(name) + 1}/{len(self._names)}] {name}"
        file = self._folder / f"{name}.json"
        if file.is_file():
            facts: Facts = _read(file, "facts")
            seconds = float(_read(file, "seconds"))
            print(f"{title}: done before ({seconds:.0f} s)", flush=True)
        else:
            print(f"{title} …", flush=True)
            began = time.perf_counter()
            with _without_next():
                facts = work()
            seconds = time.perf_counter() - began
            if keep:
                write_json(file, {"seconds": seconds, "facts": facts})
            print(f"{title}: {seconds:.0f} s", flush=True)
        self.seconds[name] = seconds
        self.facts.update(facts)
        return facts


def resumed(folder: Path) -> dict[str, Any]:
    """Return the options of a stage's run in ``folder``, which continue it if it was started."""
    return {"out": folder, "resume": (folder / CONFIG).is_file()}


def _read(file: Path, name: str) -> Any:
    with reading(file, "what this command writes; remove it to run that stage again"):
        return read_json(file)[name]


@contextlib.contextmanager
def _without_next() -> Iterator[None]:
    """Hide the suggested next commands that stages print: the next stage starts by itself."""
    out, partial = sys.stdout, ""

    def write(text: str) -> int:
        nonlocal partial
        *lines, partial = (partial + text).split("\n")
        shown = [line for line in lines if not line.startswith(("next:", "Continue with:"))]
        out.write("".join(f"{line}\n" for line in shown))
        return len(text)

    stream: Any = SimpleNamespace(write=write, flush=out.flush)
    try:
        with contextlib.redirect_stdout(stream):
            yield
    finally:
        if partial:
            write("\n")
