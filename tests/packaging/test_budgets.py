"""Every world stays within its budget of lines, the table of docs/architecture.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def budgets() -> dict[str, int]:
    """Return folder and largest number of lines, row by row."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w/]+)/` \| ([\d,]+) \|", page, flags=re.MULTILINE)
    return {folder: int(lines.replace(",", "")) for folder, lines in rows}


@pytest.mark.parametrize(("folder", "most"), budgets().items())
def test_a_world_has_no_more_lines_than_its_budget(folder: str, most: int) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    lines = sum(file.read_text(encoding="utf-8").count("\n") for file in files)
    assert files and lines <= most, f"{folder} has {lines} lines of Python: take an idea away"


def test_every_folder_of_python_has_a_budget() -> None:
    packages = {folder.parent.name for folder in ROOT.glob("[a-z]*/vinoreward_*")}
    assert {*packages, "vinoreward", "tests", "benchmarks"} - {"assets"} <= budgets().keys()
