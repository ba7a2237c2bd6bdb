"""The benchmarks' harness, and the page that is made of their figures."""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import harness
import page
from vinoreward.errors import ConfigError
from vinoreward_training.cli import commands

ROOT = Path(__file__).parents[1]
PARTS = {"harness", "page", "scenes", "trainings"}
"""Modules of the benchmarks that measure nothing themselves."""
SCRIPTS = sorted({path.stem for path in (ROOT / "benchmarks").glob("*.py")} - PARTS)
RECORDS = page.newest(page.read())
LIMIT = 80
"""Characters of a cell."""
seconds = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=30)


# Turns and statistics


def test_candidates_take_turns_and_the_order_turns_round() -> None:
    order: list[str] = []
    timings = harness.interleaved(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")},
        rounds=3,
        calls={"a": 2},
        warm_up=0,
    )
    assert order == ["a", "a", "b", "b", "a", "a", "a", "a", "b"]
    assert len(timings["a"].wall) == len(timings["b"].cpu) == 3


@given(seconds, st.lists(st.floats(0.1, 10), min_size=30, max_size=30))
def test_a_round_that_slows_both_does_not_change_the_ratio(
    values: list[float], slowness: list[float]
) -> None:
    fast = tuple(value * slow for value, slow in zip(values, slowness, strict=False))
    slow = tuple(4.0 * value for value in fast)
    # Other work on the machine is in the wall times alone.
    busy = harness.Timing(wall=(9e3,) * len(slow), cpu=slow)
    assert harness.times(busy, harness.Timing(fast, fast)).value == pytest.approx(4.0)


def test_figures_show_their_spread() -> None:
    assert harness.median([4.0, 1.0, 2.0, 3.0, 5.0], "×").figure == "3× (2–4)"
    assert harness.median([1234.5], "").figure == "1,234 (1,234–1,234)"
    assert harness.share(96, 100).figure == "96.0 % (90.1–98.9)"
    assert harness.rare(4, 1500).figure == "4 of 1,500 (<0.61 %)"
    assert harness.worst([3.0, 1.25], " s").figure == "3.0 s (best 1.2)"


@pytest.mark.parametrize(
    ("target", "value", "met"),
    [
        ("≥5×", 5.0, True),
        ("≥5×", 4.9, False),
        ("<1 %", 1.0, False),
        (">95 %", 95.1, True),
        ("<8,000, all seeds", 7999.0, True),
        ("≤5 s", None, False),
        ("", 3.0, None),
    ],
)
def test_a_target_is_met_or_not(target: str, value: float | None, met: bool | None) -> None:
    assert harness.Value("", value).meets(target) is met


# A script's command line, and what it records


@pytest.fixture
def bench() -> harness.Benchmark:
    def measure(options: Any) -> Iterator[tuple[str, harness.Value]]:
        if options.kind == "none":
            raise ConfigError("found no such thing.")
        yield "a", harness.Value("2×", 2.0)
        yield "b", harness.Value("3", 3.0)

    rows = {"a": harness.Row("first", "≥5×"), "b": harness.Row("second")}
    return harness.Benchmark("Things", rows, measure, kind=("one", "none"), rounds=4, seed=7)


def test_figures_are_appended_with_their_origin(
    bench: harness.Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/benchmarks/things.py"])
    file = tmp_path / "figures.jsonl"
    assert bench.main(["--rounds", "2", "--figures", str(file)]) == 1, "a target is missed"
    bench.main(["--figures", str(file)])
    first, second, again, _ = page.read(file)
    assert (first["name"], first["what"], first["figure"]) == ("a", "first", "2×")
    assert (first["met"], second["met"], again["met"]) == (False, None, False)
    assert first["command"] == "python benchmarks/things.py --rounds 2"
    assert again["command"] == "python benchmarks/things.py"
    assert first["options"] == {"kind": "one", "rounds": 2, "seed": 7}
    assert {"commit", "date", "machine"} <= set(first)
    assert {"name", "python", "versions"} <= set(first["machine"])


def test_what_was_measured_at_a_smaller_size_is_not_recorded(
    bench: harness.Benchmark,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(harness, "FIGURES", tmp_path / "figures.jsonl")
    bench.main(["--rounds", "3"])
    assert not (tmp_path / "figures.jsonl").exists()
    assert "not recorded, as it is below what the figure has: --rounds 3" in capsys.readouterr().out
    bench.main(["--rounds", "5"])
    assert len(page.read(tmp_path / "figures.jsonl")) == 2


# The page


def test_the_page_is_made_of_the_file() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.page(page.read())


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_page_says_what_a_script_measures(script: str) -> None:
    bench: harness.Benchmark = importlib.import_module(script).BENCH
    shown = [one for one in RECORDS if f"benchmarks/{script}.py" in one["command"]]
    for one in shown:
        row = bench.rows[one["name"]]
        assert (one["what"], one["target"], one["section"]) == (*vars(row).values(), bench.section)
        bench.parser().parse_args(shlex.split(one["command"])[2:])
    assert shown, "nothing was ever measured by it"


def test_the_commands_of_the_figures_are_there() -> None:
    for command in {one["command"] for one in RECORDS} - {""}:
        program, *words = shlex.split(command)
        if program == "python":
            assert (ROOT / words[0]).is_file(), command
        elif program == "make":
            assert f"\n{words[0]}:" in (ROOT / "Makefile").read_text(encoding="utf-8"), command
        else:
            assert program == "vinoreward" and words[0] in commands(), command


def test_cells_are_short() -> None:
    long = [
        (one["name"], key)
        for one in RECORDS
        for key in ("what", "figure", "target", "command")
        if len(one[key]) > LIMIT
    ]
    assert long == []
