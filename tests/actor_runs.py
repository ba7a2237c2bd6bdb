"""What tests of the command vinoreward actors share: short trainings, and what they wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vinoreward_training.actors_record import read_rows

SMALL = ("--task", "CartPole-v0", "--network", "2x32", "--no-progress")
FEW = ("--evaluation-episodes", "2", "--final-episodes", "3")


def rows_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [row for row in read_rows(folder) if row["kind"] == kind]
