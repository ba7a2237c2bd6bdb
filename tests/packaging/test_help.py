"""Every command explains itself, without the heavy libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vinoreward_training.cli import COMMANDS

SCRIPT = """
import contextlib, io, json, sys
from vinoreward_training.cli import main
text = io.StringIO()
code = None
with contextlib.redirect_stdout(text):
    try:
        code = main(sys.argv[1:])
    except SystemExit as stop:
        code = stop.code
heavy = [name for name in ("torch", "pybullet", "openvino", "nncf", "warp") if name in sys.modules]
print(json.dumps({"code": code, "text": text.getvalue(), "heavy": heavy}))
"""


def helped(folder: Path, *arguments: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        cwd=folder,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def test_the_console_command_lists_all_commands(tmp_path: Path) -> None:
    found = helped(tmp_path, "--help")
    assert found["code"] == 0
    for name in COMMANDS:
        assert f"\n  {name} " in str(found["text"])


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_each_command_has_help_with_examples_and_loads_nothing_heavy(
    command: str, tmp_path: Path
) -> None:
    found = helped(tmp_path, command, "--help")
    assert not found["code"]
    assert f"vinoreward {command}" in str(found["text"])
    assert "Examples" in str(found["text"])
    assert found["heavy"] == []
