"""Every command explains itself, without the heavy libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from vinoreward_training.cli import commands

SCRIPT = """
import contextlib, io, json, sys
from vinoreward_training.cli import main

heavy = ("torch", "openvino", "pybullet", "warp", "nncf", "matplotlib")
found = {}
for command in sys.argv[1:]:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        try:
            code = main([*command.split(), "--help"])
        except SystemExit as stop:
            code = stop.code
    loaded = [name for name in heavy if name in sys.modules]
    found[command] = {"code": code, "text": text.getvalue(), "heavy": loaded}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def helped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each command (empty: the program itself) says with ``--help``, and what it loads.

    One process asks for all of them, as starting one takes longer than its help.
    """
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "", *commands()],
        cwd=tmp_path_factory.mktemp("elsewhere"),
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def test_the_console_command_lists_all_commands(helped: dict[str, dict[str, Any]]) -> None:
    assert helped[""]["code"] == 0
    for name in commands():
        assert f"\n  {name} " in helped[""]["text"]


@pytest.mark.parametrize("command", sorted(commands()))
def test_each_command_has_help_with_examples_and_loads_nothing_heavy(
    command: str, helped: dict[str, dict[str, Any]]
) -> None:
    found = helped[command]
    assert not found["code"]
    assert f"vinoreward {command}" in found["text"]
    assert "Examples" in found["text"]
    assert found["heavy"] == []
    assert found["text"].count("│ --") <= 15  # --help-all shows the others
