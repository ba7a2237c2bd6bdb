"""Writes docs/benchmarks.md from figures.jsonl: one row for each figure's newest record."""

from __future__ import annotations

import json
import string
import sys
from pathlib import Path
from typing import Any

from harness import FIGURES, ROOT
from vinoreward.files import write_text

PAGE = ROOT / "docs" / "benchmarks.md"
HEAD = """# Benchmarks

Each row is printed by its command, which also appends it with commit, machine, seeds and date to
`benchmarks/figures.jsonl`; `python benchmarks/page.py` makes this page of that file, and
`make bench` runs the short ones.

What a figure compares took turns in one process: it is the median over the rounds, with quartiles
in brackets, of processor time where nothing else is said. Shares have their 95 % interval. Ratios
carry over to another machine, milliseconds do not. Scenes have seeds from 1,000,000 on, trainings
from 100 on; hyper-parameters were tuned on seeds 0 to 19. **Bold** figures miss their target.
A † stands where the same comparison was made in November 2026, before these scripts (Python 3.11,
OpenVINO 2026.4, PyTorch 2.15, ONNX Runtime 1.31).
"""


def read(path: Path = FIGURES) -> list[dict[str, Any]]:
    """Return the records of a file, in its order."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def newest(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the last record of each name, where its first one stood."""
    return list({record["name"]: record for record in records}.values())


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def page(records: list[dict[str, Any]]) -> str:
    """Return the page of these records."""
    shown = newest(records)
    machines = list(dict.fromkeys(one["machine"]["name"] for one in shown))
    letters = dict(zip(machines, string.ascii_uppercase, strict=False))
    parts = [HEAD]
    for section in dict.fromkeys(one["section"] for one in shown):
        rows = []
        for one in (one for one in shown if one["section"] == section):
            figure = f"**{one['figure']}**" if one["met"] is False else one["figure"]
            old = " †" if one.get("archived") else ""
            command = f"`{one['command']}`" if one["command"] else "measured once"
            letter = letters[one["machine"]["name"]]
            rows.append([one["what"], f"{figure}{old}", one["target"], command, letter])
        heads = ["what", "figure", "target", "command", "machine"]
        parts.append(f"## {section}\n\n{table(heads, rows)}")
    named = [[letter, name] for name, letter in letters.items()]
    parts.append(f"## The machines\n\n{table(['', 'machine'], named)}")
    return "\n".join(parts)


def main() -> int:
    """Write the page; return 0."""
    write_text(PAGE, page(read()))
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
