"""Starting processes of Python, and delaying Ctrl-C.

Processes that we start find the modules found here, but not those of the current folder, which may
be a stranger's run or bundle with a ``json.py`` in it. Python's ``-c``, and so ``multiprocessing``,
would search it first.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from vinoreward.errors import ConfigError

SAFE_PATH = "PYTHONSAFEPATH"
"""Keeps Python 3.11 or newer from putting the current folder on the path."""
STOPS = (signal.SIGINT, signal.SIGTERM)
"""Signals that ask a training to end; often they reach all of its processes."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables by which numeric libraries learn how many threads to start."""
_OURS = "vinoreward"
"""Any text will do as the value of SAFE_PATH; this one says who set it."""
_STARTING = threading.RLock()
_START = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1))\n"


def python_command(script: str, *arguments: str) -> list[str]:
    """Return the command that runs a script's source in a new, isolated Python (``-I``).

    It gets the absolute folders of ``sys.path``, and the arguments as ``sys.argv[1:]``.
    """
    folders = [folder for folder in sys.path if isinstance(folder, str) and os.path.isabs(folder)]
    own = str(Path(__file__).resolve().parents[1])
    if own not in folders:  # it was found through a folder that is not absolute
        folders.append(own)
    return [sys.executable, "-I", "-c", _START + script, json.dumps(folders), *arguments]


@contextlib.contextmanager
def environment_variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables in this block, for the processes that start in it."""
    with _STARTING:  # each thread restores what it replaced
        before = {name: os.environ.get(name) for name in values}
        os.environ.update(values)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


@contextlib.contextmanager
def starting_processes(environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """Keep processes that start in this block from searching the current folder for modules.

    They get these environment variables, too.

    Raises:
        ConfigError: Python 3.10, which has no such setting, would run a file of that folder.
    """
    if sys.version_info < (3, 11) and not searches_current_folder():
        file = shadow(Path.cwd())
        if file is not None:
            raise ConfigError(
                f"{file} would be run by Python {sys.version_info[0]}.{sys.version_info[1]} in "
                "place of its own module. Expected a current folder without such files; start "
                "from another folder, or with Python 3.11 or newer, which does not look there."
            )
    safe = {} if os.environ.get(SAFE_PATH) else {SAFE_PATH: _OURS}
    with environment_variables({**(environment or {}), **safe}):
        yield


def thread_limits() -> dict[str, str]:
    """Return variables that let a new process compute on one thread, or on what the user has set.

    Else each of 16 workers starts as many threads as the machine has cores.
    """
    set_by_user = os.environ.get(THREADS[0], "1")
    return {name: os.environ.get(name, set_by_user) for name in THREADS}


def forget_safe_path() -> None:
    """Let processes that an environment starts in this child search folders as usual."""
    if os.environ.get(SAFE_PATH) == _OURS:
        del os.environ[SAFE_PATH]


def searches_current_folder() -> bool:
    """Return whether this process finds modules in the current folder."""
    here = Path.cwd()
    return any(Path(folder).absolute() == here for folder in map(str, sys.path))


def shadow(folder: Path) -> Path | None:
    """Return a file of the folder that has the name of one of Python's own modules."""
    for name in sorted(sys.stdlib_module_names.difference(sys.builtin_module_names)):
        spec = importlib.machinery.PathFinder.find_spec(name, [str(folder)])
        if spec is not None and spec.origin is not None:
            return Path(spec.origin)
    return None


@contextlib.contextmanager
def interrupt_between() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Delay Ctrl-C within the block; yield a function that raises it, after calling its argument.

    A second Ctrl-C is not delayed. Outside the main thread, where no signals arrive, nothing is.
    """
    asked: list[int] = []

    def note(number: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    def check(before: Callable[[], None]) -> None:
        if asked:
            before()
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield check
        return
    previous = signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, previous)
