"""The rows about compressed actors: pairs are pairs, and what did not arrive is not a figure."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from vinoreward.actor_learner.profile import PARTS, Breakdown
from vinoreward.policies.policy import random_policy
from vinoreward.policies.spec import mlp
from vinoreward.policies.wire import encode
from vinoreward_training import bench_actor_bits, bench_actor_training
from vinoreward_training.bench import ROWS
from vinoreward_training.bench_actor_bits import Variant, draw, stopped
from vinoreward_training.bench_actor_training import ARMS, Trained, returns, train
from vinoreward_training.bench_actors import actor_refresh_rows, wire_rows
from vinoreward_training.bench_settings import BenchConfig

QUIET = Breakdown(dict.fromkeys(PARTS, 1e-4), dict.fromkeys(PARTS, 1e-4), 100)


def trained(arm: str, seconds: float | None, seed: int = 0) -> Trained:
    return Trained(arm, seed, seconds, 1000, 200.0, QUIET, 0.5)


def found(*times: tuple[float | None, float | None]) -> dict[str, list[Trained]]:
    return {
        ARMS[0]: [trained(ARMS[0], slow, seed) for seed, (slow, _) in enumerate(times)],
        ARMS[1]: [trained(ARMS[1], fast, seed) for seed, (_, fast) in enumerate(times)],
    }


def test_every_row_has_a_function() -> None:
    import importlib

    for module, function in ROWS.values():
        assert callable(getattr(importlib.import_module(f"vinoreward_training.{module}"), function))


def test_a_ratio_is_the_median_of_pairs_of_one_seed() -> None:
    row = bench_actor_training._row(found((90, 30), (80, 20), (50, 25)), ARMS[1])
    assert row.value == pytest.approx(3.0) and row.met is True
    assert row.details["ratios"] == pytest.approx([3.0, 4.0, 2.0])


def test_a_training_that_did_not_arrive_leaves_no_figure() -> None:
    row = bench_actor_training._row(found((90, 30), (80, None)), ARMS[1])
    assert row.value is None and row.met is False
    assert "1 of 2 pairs did not arrive" in row.note and "not reached" in row.note


def test_the_wire_is_counted_not_computed() -> None:
    rows = wire_rows(BenchConfig(), bits=(32, 4))
    spec = mlp(24, 6, head="tanh", hidden=(2048,) * 3, activation="tanh")
    policy = random_policy(spec, BenchConfig().seed)
    for row, bits in zip(rows, (32, 4), strict=True):
        assert row.value == pytest.approx(encode(policy, bits=bits).nbytes / 1e6)
    assert rows[0].value is not None and rows[1].value is not None
    assert rows[1].value < rows[0].value / 7.5


def test_greedy_returns_count_the_first_episode_of_every_start() -> None:
    spec = mlp(4, 2, head="logits", hidden=(8,))
    policy = random_policy(spec, 0)
    first = returns(policy, 5, seed=3)
    assert first == returns(policy, 5, seed=3) and len(first) == 5
    assert all(8 <= value <= 200 for value in first)


def test_the_monitor_lets_the_same_policy_act_and_stops_another() -> None:
    spec = mlp(3, 1, head="tanh_gaussian", hidden=(16,))
    teacher = random_policy(spec, 0)
    seen = np.random.default_rng(0).standard_normal((600, 3)).astype(np.float32)
    assert not stopped(teacher, teacher, seen)
    assert stopped(teacher, random_policy(spec, 1, gain=4.0), seen)


def test_the_plot_is_written_whole(tmp_path: Path) -> None:
    one = Variant("8 bits", 72_000, 0.01, 0.0, 0.1, False)
    path = draw(tmp_path / "new" / "bits.png", [one, dataclasses.replace(one, stopped=True)])
    assert path.read_bytes()[:4] == b"\x89PNG"
    assert [file.name for file in path.parent.iterdir()] == ["bits.png"]


@pytest.mark.slow
def test_variants_of_a_policy_are_all_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_actor_bits, "TRAINING_STEPS", 400)
    monkeypatch.setattr(bench_actor_bits, "EPISODES", 3)
    rows = bench_actor_bits.bits_rows(BenchConfig(out=tmp_path))
    assert len(rows) == len(bench_actor_bits._variants())
    assert rows[0].value == 0.0 and rows[0].details["kl_max"] < 1e-9
    sizes = [row.details["nbytes"] for row in rows[:7]]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.slow
@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_trains(arm: str) -> None:
    one = train(arm, 0, most_steps=1500, hidden="2x32")
    assert one.steps >= 1500 or one.seconds is not None
    assert 8 <= one.evaluated <= 200 and one.profile.step_cpu > 0


@pytest.mark.slow
def test_refreshes_are_timed() -> None:
    rows = actor_refresh_rows(BenchConfig(rounds=2))
    assert len(rows) == 7 and all(row.value is not None for row in rows)
