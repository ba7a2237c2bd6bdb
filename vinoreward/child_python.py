"""Processes of Python that we start find the modules found here, and not the current folder's.

Python's ``-c``, by which ``multiprocessing`` starts its children and its resource tracker as well,
looks in the current folder first. That may be a stranger's run or bundle, with a ``json.py`` or a
``multiprocessing.py`` in it.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from vinoreward.errors import ConfigError

SAFE_PATH = "PYTHONSAFEPATH"
"""Keeps Python 3.11 or newer from putting the current folder on the path."""
_OURS = "vinoreward"
"""Any text will do as its value; this one says who set it."""
_STARTING = threading.RLock()
_START = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1))\n"


def python_command(script: str, *arguments: str) -> list[str]:
    """Return the command that runs a script in a new Python, which finds the modules found here.

    The new Python is isolated (``-I``) and gets the folders of ``sys.path`` that are absolute.

    Args:
        script: Python source.
        *arguments: its ``sys.argv[1:]``.
    """
    folders = [folder for folder in sys.path if isinstance(folder, str) and os.path.isabs(folder)]
    own = str(Path(__file__).resolve().parents[1])
    if own not in folders:  # it was found through a folder that is not absolute
        folders.append(own)
    return [sys.executable, "-I", "-c", _START + script, json.dumps(folders), *arguments]


@contextlib.contextmanager
def starting_processes(environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """Let processes started in this block not look for modules in the current folder.

    Args:
        environment: further variables that they get.

    Raises:
        ConfigError: Python 3.10, which cannot be told so, would run a file of that folder.
    """
    _refuse_shadows()
    given = {**(environment or {})}
    if not os.environ.get(SAFE_PATH):
        given[SAFE_PATH] = _OURS
    with _STARTING:  # several threads start some, and each puts back what it found
        before = {name: os.environ.get(name) for name in given}
        os.environ.update(given)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def forget_safe_path() -> None:
    """Let processes that an environment starts in this child be as they are elsewhere."""
    if os.environ.get(SAFE_PATH) == _OURS:
        del os.environ[SAFE_PATH]


def searches_current_folder() -> bool:
    """Return whether this process finds modules in the current folder."""
    here = Path.cwd()
    return any(Path(folder).absolute() == here for folder in map(str, sys.path))


def _refuse_shadows() -> None:
    if sys.version_info >= (3, 11) or searches_current_folder():
        return
    found = shadow(Path.cwd())
    if found is not None:
        raise ConfigError(
            f"{found} would be run by Python {sys.version_info[0]}.{sys.version_info[1]} in place "
            "of its own module. Expected a current folder without such files; start from another "
            "folder, or with Python 3.11 or newer, which does not look there."
        )


def shadow(folder: Path) -> Path | None:
    """Return a file of the folder that has the name of one of Python's own modules."""
    for name in sorted(sys.stdlib_module_names.difference(sys.builtin_module_names)):
        found = importlib.machinery.PathFinder.find_spec(name, [str(folder)])
        if found is not None and found.origin is not None:
            return Path(found.origin)
    return None
