"""What tests of the command vinoreward actors share: short trainings, and what they wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vinoreward_actors.command.run import read_rows
from vinoreward_training.cli import main

SMALL = ("--task", "CartPole-v0", "--network", "2x32")
FEW = ("--evaluation-episodes", "2")


def trained(out: Path, steps: int, *more: str, every: int = 0) -> dict[str, Any]:
    """Train with the command, evaluating ``every`` so many steps; return the summary."""
    arguments = ["actors", *SMALL, *FEW, "--steps", str(steps), "--evaluate-every", str(every)]
    assert main([*arguments, *more, "--out", str(out)]) == 0
    return summary_of(out)


def summary_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return found


def rows_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [row for row in read_rows(folder) if row["kind"] == kind]
