"""The rows of a batch that stays on its device, measured on a processor in small."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from vinoreward import Bundle, Classifier
from vinoreward_training.bench.gpu import device_rows, gpu_rows, of_size
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


def test_a_bundle_of_another_size_can_be_timed(tmp_path: Path) -> None:
    small = of_size(Bundle.load("panda-hover-classifier"), tmp_path / "small", 64, 48)
    with Classifier(small, backend="torch") as classifier:
        judged = classifier.judge(small.golden.images)
    assert judged.odd is not None and len(judged.odd) == 4
