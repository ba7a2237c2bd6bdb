"""The command line of another Python that runs a script with this one's modules."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

_START = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1))\n"


def python_command(script: str, *arguments: str) -> list[str]:
    """Return the command that runs a script in a new Python, which finds the modules found here.

    Python's ``-c`` and ``-m`` look for modules in the current folder first. That may be a
    stranger's bundle with a ``json.py`` in it. So the new Python is isolated (``-I``) and gets the
    folders of ``sys.path`` that are absolute.

    Args:
        script: Python source.
        *arguments: its ``sys.argv[1:]``.
    """
    folders = [folder for folder in sys.path if isinstance(folder, str) and os.path.isabs(folder)]
    own = str(Path(__file__).resolve().parents[1])
    if own not in folders:  # it was found through a folder that is not absolute
        folders.append(own)
    return [sys.executable, "-I", "-c", _START + script, json.dumps(folders), *arguments]
