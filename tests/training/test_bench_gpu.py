"""The rows of a batch that stays on its device, measured on a processor in small."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from vinoreward import Bundle, Classifier
from vinoreward_training.bench import gpu
from vinoreward_training.bench.gpu import device_rows, gpu_rows, of_size
from vinoreward_training.bench.rows import Row
from vinoreward_training.bench.seconds import Task
from vinoreward_training.configs import BenchConfig


@pytest.mark.slow
def test_steps_and_their_parts_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vinoreward_envs.panda_hover_vector.STAYS_ON_CPU", True)
    rows = device_rows(BenchConfig(rounds=1), "cpu", 2, (1, 2))
    assert all(row.value is not None and row.value > 0 for row in rows)
    units = ["steps/s", "us", "us", "steps/s", "us", "us", "x", "steps/s", "steps/s", "x"]
    assert [row.unit for row in rows] == units
    assert [row.target for row in rows if row.unit == "steps/s"] == [
        ">= 100000 steps/s",
        ">= 200000 steps/s",
        "",
        "",
    ]
    assert "96x128" in rows[0].what and "64x64" in rows[3].what


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_is_said_what_is_missing() -> None:
    rows = gpu_rows(BenchConfig())
    assert [(row.value, row.met, row.note) for row in rows] == 2 * [
        (None, False, "needs a CUDA device")
    ]


@pytest.mark.parametrize("installed", [True, False])
def test_trainings_on_the_device_are_timed_without_the_bars_of_two_cores(
    installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[Task] = []

    def task_rows(config: BenchConfig, name: str, task: Task, *options: str) -> list[Row]:
        trained.append(task)
        return [Row(name, " ".join((task.env, *options)), 1.0)]

    def device_rows(config: BenchConfig, device: str, count: int, sizes: Sequence[int]) -> Any:
        return [Row("gpu", f"{device} {count} {min(sizes)} {max(sizes)}", 1.0)]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "device_rows", device_rows)
    monkeypatch.setattr(gpu, "task_rows", task_rows)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: installed or None)
    steps, *rows = gpu_rows(BenchConfig())
    assert steps.what == "cuda:0 4096 16 16384"
    names = ["PandaHover-v0", "PandaHoverRandom-v0", "PandaHoverPixels-v0"]
    if not installed:
        assert [row.value for row in rows] == 3 * [None] and not trained
        assert all(row.note == "needs the extra skrl" for row in rows)
        assert all(name in row.what for name, row in zip(names, rows, strict=True))
        return
    options = "--learner skrl --algorithm PPO --backend torch --device cuda"
    assert [row.what for row in rows] == [f"{name} {options}" for name in names]
    assert trained == [Task(name, None, pixels="Pixels" in name) for name in names]


def test_a_bundle_of_another_size_can_be_timed(tmp_path: Path) -> None:
    small = of_size(Bundle.load("panda-hover-classifier"), tmp_path / "small", 64, 48)
    with Classifier(small, backend="torch") as classifier:
        judged = classifier.predict(small.golden.images)
    assert judged.ood_score is not None and len(judged.ood_score) == 4
