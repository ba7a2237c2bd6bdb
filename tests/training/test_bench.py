"""The statistics behind the figures, and how rows are chosen, kept and printed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from vinoreward.errors import ConfigError, RunFolderError
from vinoreward_training.bench import batches
from vinoreward_training.bench import command as bench
from vinoreward_training.bench.command import memory_rows, run_script
from vinoreward_training.bench.rewards import backends_rows
from vinoreward_training.bench.rows import (
    Row,
    Timing,
    figure,
    interleaved,
    markdown,
    paired_ratios,
    quartiles,
    speed_row,
    turns,
)
from vinoreward_training.bench.trainings import (
    TUNED_ON,
    Training,
    compared,
    seeds_note,
    solved_row,
    train_to_solved,
    training_seeds,
)
from vinoreward_training.configs import BenchConfig
from vinoreward_training.policy.train import SETTINGS

times = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=30)


@given(times)
def test_quartiles_are_in_order_and_within_the_values(values: list[float]) -> None:
    low, middle, high = quartiles(values)
    slack = 1e-9 * max(values)
    assert min(values) - slack <= low <= middle + slack
    assert middle <= high + slack
    assert high <= max(values) + slack


@given(times, st.floats(0.1, 10))
def test_the_ratio_to_a_fixed_multiple_is_that_multiple(values: list[float], factor: float) -> None:
    ratios = paired_ratios([value * factor for value in values], values)
    assert quartiles(ratios) == pytest.approx((factor,) * 3)


@given(times, st.lists(st.floats(0.1, 10), min_size=30, max_size=30))
def test_a_round_that_slows_both_does_not_change_the_ratio(
    values: list[float], slowness: list[float]
) -> None:
    slow = [4.0 * value * s for value, s in zip(values, slowness, strict=False)]
    fast = [value * s for value, s in zip(values, slowness, strict=False)]
    assert paired_ratios(slow, fast) == pytest.approx([4.0] * len(slow))


@pytest.mark.parametrize(("slow", "fast"), [([], []), ([1.0], [1.0, 2.0]), ([1.0], [0.0])])
def test_times_that_cannot_be_paired_are_refused(slow: list[float], fast: list[float]) -> None:
    with pytest.raises(ConfigError, match="cannot be paired"):
        paired_ratios(slow, fast)


def test_quartiles_of_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="no values"):
        quartiles([])


def test_candidates_take_turns_and_the_order_turns_round() -> None:
    order: list[str] = []
    timings = interleaved(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")},
        rounds=3,
        calls={"a": 2},
        warm_up=0,
    )
    assert order == ["a", "a", "b", "b", "a", "a", "a", "a", "b"]
    assert len(timings["a"].wall) == len(timings["b"].cpu) == 3
    assert min(timings["a"].wall) > 0


def test_an_order_may_be_drawn_for_every_round() -> None:
    names = ["a", "b", "c", "d"]
    found = list(turns(names, 20, np.random.default_rng(0)))
    orders = {tuple(name for _, name in found[start : start + 4]) for start in range(0, 80, 4)}
    assert {frozenset(order) for order in orders} == {frozenset(names)}
    assert len(orders) > 4
    assert [index for index, _ in found] == sorted(list(range(20)) * 4)


def test_warm_up_is_not_measured() -> None:
    calls: list[int] = []
    timings = interleaved({"a": lambda: calls.append(1)}, rounds=1, calls=1, warm_up=5)
    assert len(calls) == 6
    assert len(timings["a"].wall) == 1


def test_each_turn_settles_before_it_is_measured() -> None:
    calls: list[int] = []
    timings = interleaved({"a": lambda: calls.append(1)}, rounds=3, calls=2, warm_up=5, settle=4)
    assert len(calls) == 5 + 3 * (4 + 2)
    assert len(timings["a"].wall) == 3


def test_nothing_to_measure_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one of each"):
        interleaved({}, rounds=3)
    with pytest.raises(ConfigError, match="at least one of each"):
        interleaved({"a": lambda: None}, rounds=0)


def test_a_speed_row_compares_processor_time_and_judges_its_target() -> None:
    slow = Timing(wall=(9.0, 9.0, 9.0), cpu=(6.0, 6.0, 6.0))
    fast = Timing(wall=(1.0, 1.0, 1.0), cpu=(2.0, 1.0, 1.0))
    row = speed_row("name", "what", slow, fast, at_least=5.0)
    assert row.value == 6.0
    assert row.low == 4.5
    assert row.met is True
    assert row.details["ratio_wall"] == [9.0, 9.0, 9.0]
    assert speed_row("name", "what", slow, fast, at_least=7.0).met is False
    assert speed_row("name", "what", slow, fast).met is None


def test_the_table_says_what_was_not_measured_and_what_was_not_met() -> None:
    table = markdown(
        [
            Row("a", "first", 12.345, low=11.0, high=13.0, spread="quartiles", met=True),
            Row("b", "second", None, target=">= 5 x", met=False, note="no INT8"),
        ]
    )
    assert "| a | first | 12.3 x | 11 to 13 (quartiles) |  | yes |" in table
    assert "| b | second (no INT8) | not measured |  | >= 5 x | **no** |" in table


@pytest.mark.parametrize(
    ("target", "value", "met"),
    [
        (">= 5 x", 5.0, True),
        (">= 5 x", 4.9, False),
        ("< 1 %", 1.0, False),
        ("> 95 %", 95.1, True),
        ("<= 350 MB, without torch", 350.0, True),
        (f"< {1e6:g} ms", 2.0, True),
        (f">= {2.5e-7:g} s", 1e-7, False),
        (">= 5 x", None, False),
        ("", 3.0, None),
        ("5 of 5 solved in < 8000 steps", 3.0, None),
    ],
)
def test_a_bound_is_met_or_not(target: str, value: float | None, met: bool | None) -> None:
    assert Row("a", "what", value, target=target).met is met


def test_what_is_said_of_a_target_counts() -> None:
    assert Row("a", "what", 300.0, target="<= 350 MB, without torch", met=False).met is False


def test_figures_are_short() -> None:
    assert figure(2250, "steps") == "2,250 steps"
    assert figure(1234.5, "MB") == "1234 MB"
    assert figure(0.123456, "%") == "0.123 %"


def test_rows_are_chosen_by_name_group_or_all() -> None:
    assert bench.chosen(["all"]) == list(bench.ROWS)
    assert bench.chosen(["quick"]) == list(bench.QUICK)
    assert len(bench.chosen(["actors"])) == 10 and "actor-pong" in bench.chosen(["actors"])
    assert bench.chosen(["camera", "backends", "camera"]) == ["backends", "camera"]
    with pytest.raises(ConfigError, match="no row 'speed'"):
        bench.chosen(["speed"])
    with pytest.raises(ConfigError, match="no rows"):
        bench.chosen([])


def test_measured_rows_are_kept_when_resuming(tmp_path: Path) -> None:
    row = {"name": "install", "what": "w", "value": 1.0, "unit": "MB"}
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "install.json").write_text(json.dumps({"rows": [row]}), encoding="utf-8")
    assert bench.run(BenchConfig(rows=("install",), out=tmp_path, resume=True)) == 0
    stored = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    assert stored["rows"][0]["value"] == 1.0
    assert stored["commands"] == {"install": "vinoreward bench --rows install"}
    assert {"cpu", "cores", "versions", "commit", "python"} <= set(stored["machine"])
    assert "| install | w | 1 MB |" in (tmp_path / "bench.md").read_text(encoding="utf-8")


def test_a_row_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    for text in ("{}", '{"rows": ' + "[" * 100_000):
        (tmp_path / "rows" / "install.json").write_text(text, encoding="utf-8")
        with pytest.raises(RunFolderError, match="remove the file"):
            bench.measured(tmp_path, "install")


def test_every_row_has_a_function() -> None:
    assert all(callable(bench.function_of(name)) for name in bench.ROWS)


@pytest.mark.slow
def test_the_reward_path_and_the_backends_are_measured_on_the_shipped_bundle(
    tmp_path: Path,
) -> None:
    rows = backends_rows(BenchConfig(out=tmp_path, rounds=1))
    assert {row.name for row in rows} == {"backends"}
    assert any("openvino fp32" in row.what for row in rows)
    assert all(row.value is None or row.value > 0 for row in rows)


@pytest.mark.slow
def test_memory_is_measured_in_a_process_without_torch(tmp_path: Path) -> None:
    resident, growth = memory_rows(BenchConfig(out=tmp_path, memory_steps=20))
    assert resident.details["imported"] == {
        "samples": resident.details["imported"]["samples"],
        "torch": False,
        "pybullet": False,
    }
    assert resident.value is not None
    assert 20 < resident.value < 2000
    assert growth.value is not None


def test_the_command_of_a_row_names_every_option_that_changes_its_figure() -> None:
    assert bench.command(BenchConfig(), ["camera"]) == "vinoreward bench --rows camera"
    config = BenchConfig(scenes=300, resume=True, out=Path("runs/quiet"), article_bundle="a/b")
    assert bench.command(config, ["camera", "int8"]) == (
        "vinoreward bench --rows camera int8 --article-bundle a/b --scenes 300"
    )


def test_rows_measured_on_another_commit_say_so(tmp_path: Path) -> None:
    row = {"name": "install", "what": "w", "value": 1.0, "unit": "MB"}
    machine = {"commit": "0123abc", "cpu": "another processor"}
    stored = {"rows": [row], "command": "vinoreward bench --rows install", "machine": machine}
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "install.json").write_text(json.dumps(stored), encoding="utf-8")
    bench.run(BenchConfig(rows=("install",), out=tmp_path, resume=True))
    text = (tmp_path / "bench.md").read_text(encoding="utf-8")
    assert "Measured elsewhere: install (commit 0123abc, another processor)." in text
    stored = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    assert stored["measured"]["install"]["machine"] == machine


def training(seed: int, solved_at: int | None, seconds: float) -> Training:
    return Training(seed, solved_at, solved_at or 8000, seconds, true=1.0, claimed=1.0, episodes=9)


def test_trainings_use_seeds_that_nothing_was_tuned_on() -> None:
    seeds = training_seeds(BenchConfig())
    assert list(seeds) == [100, 101, 102, 103, 104]
    assert not set(seeds) & set(TUNED_ON)
    assert seeds_note(seeds) == (
        "training seeds 100 to 104; the hyper-parameters were tuned on seeds 0 to 19"
    )
    assert "on some of which" in seeds_note([5, 100])


def test_solved_counts_every_seed() -> None:
    runs = [training(100, 2000, 9.0), training(101, 1500, 9.0), training(102, None, 30.0)]
    row = solved_row("solve", "what", runs, 8000)
    assert (row.value, row.low, row.high, row.met) == (1750.0, 1500.0, 2000.0, False)
    assert "2 of 3 solved" in row.spread
    assert solved_row("solve", "what", runs[:2], 8000).met is True
    assert solved_row("solve", "what", runs[:2], 1800).met is False
    nothing = solved_row("solve", "what", runs[2:], None)
    assert (nothing.value, nothing.met) == (None, False)


def test_wall_times_are_compared_whole_and_per_step() -> None:
    whole, step = compared(training(100, 2000, 10.0), training(100, 1000, 500.0))
    assert (whole.value, whole.met) == (50.0, True)
    assert step.value == pytest.approx(100.0)
    assert compared(training(100, 2000, 10.0), training(100, 1000, 100.0))[0].met is False
    bound, _ = compared(training(100, 2000, 10.0), training(100, None, 500.0))
    assert bound.met is False and "lower bound" in bound.note
    unsolved, _ = compared(training(100, None, 10.0), training(100, 1000, 500.0))
    assert unsolved.value is None and unsolved.met is False


@pytest.mark.slow
def test_a_training_for_a_row_uses_the_preset_and_goes_on_where_it_was_stopped(
    tmp_path: Path,
) -> None:
    def trained(steps: int, resume: bool) -> Training:
        config = BenchConfig(out=tmp_path, evaluation_episodes=2, resume=resume)
        return train_to_solved(config, "a", "PandaHover-v0", seed=3, steps=steps, backend="oracle")

    first = trained(40, resume=False)
    settled = yaml.safe_load((tmp_path / "train" / "a" / "config.yaml").read_text(encoding="utf-8"))
    assert settled["algorithm_kwargs"] == SETTINGS.of().algorithm_kwargs
    assert (settled["eval_every"], settled["eval_episodes"]) == (250, 2)
    second = trained(80, resume=True)
    assert (first.steps, second.steps) == (40, 80)
    assert second.seconds > first.seconds
    assert trained(80, resume=True) == second


def test_a_measured_process_runs_no_code_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('this ran')")
    monkeypatch.chdir(tmp_path)
    script = "import json, sys, vinoreward; print(json.dumps(sys.argv[1:]))"
    assert run_script(script, ["a", "b"]) == ["a", "b"]


@pytest.mark.slow
def test_a_batch_is_timed_with_and_without_the_learned_reward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    smaller = {"STATES": (4, 64), "LOOKED_AT": (4, 8), "LEARNED": 8, "LARGE": 64}
    for name, value in {**smaller, "SMALL": 4, "SCALAR_STEPS": 4}.items():
        monkeypatch.setattr(batches, name, value)
    rows = batches.batch_rows(BenchConfig(rounds=1))
    assert {row.name for row in rows} == {"batch"}
    rates = [row for row in rows if row.unit == "steps/s"]
    assert [row.target for row in rates] == [">= 100000 steps/s", ">= 2000 steps/s"]
    assert all(row.value is not None and row.value > 0 for row in rows)
