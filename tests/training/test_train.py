"""Training: repeatable, with claimed and true success side by side."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import toy_environments
import yaml
from hypothesis import given
from hypothesis import strategies as st
from train_runs import SMALL, Corridor, config

from vinoreward.errors import (
    ConfigError,
)
from vinoreward.wrappers.true_success import Truth
from vinoreward_training.cli import main
from vinoreward_training.policy.checkpoint import build_model
from vinoreward_training.policy.evaluate import Moment, evaluate
from vinoreward_training.policy.train import SETTINGS, run, train
from vinoreward_training.runs.report import (
    EPISODE_COLUMNS,
    EVALUATION_COLUMNS,
    read_table,
    rolling_mean,
)


class Walk:
    """Walks right for the first ``count`` steps of each episode."""

    def __init__(self, count: int) -> None:
        self.count = count

    def predict(self, observation: Any, *, deterministic: bool = False) -> tuple[int, None]:
        assert deterministic
        return int(observation[0] < self.count), None


@pytest.mark.parametrize(("cells", "claimed", "true"), [(1, 0, 0), (2, 5, 0), (3, 5, 5), (4, 5, 0)])
def test_success_is_that_of_the_state_where_the_agent_stopped(
    cells: int, claimed: int, true: int
) -> None:
    found = evaluate(Walk(cells), Corridor(), 5, seed=0)
    assert found.claimed is not None
    assert found.true is not None
    assert (found.claimed.successes, found.claimed.trials) == (claimed, 5)
    assert (found.true.successes, found.true.trials) == (true, 5)
    assert found.mean_return == found.mean_length == 4.0


@pytest.mark.parametrize("algorithm", ["DQN", "PPO"])
def test_actions_that_begin_elsewhere_than_at_0_are_refused(algorithm: str) -> None:
    """SB3 would play 0 and 1 of -1 and 0."""
    space = gym.spaces.Discrete(2, start=-1)
    moved = gym.wrappers.TransformAction(Corridor(), lambda action: action + 1, space)
    with pytest.raises(ConfigError, match=r"counts from 0\..*TransformAction.*action \+ -1"):
        build_model(algorithm, moved, {}, seed=0)
    build_model(algorithm, Corridor(), {}, seed=0)


def test_several_actions_that_begin_elsewhere_than_at_0_are_refused() -> None:
    def env_of(*start: int) -> gym.Env[Any, Any]:
        space = gym.spaces.MultiDiscrete([2, 2], start=start)
        return gym.wrappers.TransformAction(Corridor(), lambda action: int(action[0]), space)

    with pytest.raises(ConfigError, match=r"action \+ \[-1, 5\], .*MultiDiscrete\(\[2, 2\]\)"):
        build_model("PPO", env_of(-1, 5), {}, seed=0)
    build_model("PPO", env_of(0, 0), {}, seed=0)


def test_the_interval_is_clopper_pearson() -> None:
    found = evaluate(Walk(3), Corridor(), 100, seed=0)
    assert found.true is not None
    # All of n: the lower bound is (alpha / 2) ** (1 / n).
    assert found.true.low == pytest.approx(0.025 ** (1 / 100))
    assert found.true.high == 1.0


def test_whoever_watches_sees_the_reset_and_every_step() -> None:
    seen: list[Moment] = []
    evaluate(Walk(3), Corridor(), 2, seed=0, watch=seen.append)
    assert [(m.episode, m.step, m.last) for m in seen[:5]] == [
        (0, 0, False),
        (0, 1, False),
        (0, 2, False),
        (0, 3, False),
        (0, 4, True),
    ]
    assert len(seen) == 10


def test_where_nobody_knows_the_success_none_is_reported() -> None:
    class Left:
        def predict(self, observation: Any, *, deterministic: bool = False) -> tuple[int, None]:
            return 0, None

    env = gym.make("CartPole-v1")
    found = evaluate(Left(), env, 2, seed=0)
    env.close()
    assert found.claimed is None
    assert found.true is None


class Telling(Corridor):
    """Says under names of its own whether the third cell is reached; may say more."""

    def __init__(self, **told: Callable[[bool], Any]) -> None:
        self.told = told

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *found, info = super().step(action)
        true = info["true_success"]
        return (*found, {key: tell(true) for key, tell in self.told.items()})  # type: ignore[return-value]


def _not(value: bool) -> bool:
    return not value


@pytest.mark.parametrize(
    ("told", "key", "claimed"),
    [
        ({"success": bool, "step": int}, "success", None),
        ({"succeed": float}, "succeed", None),
        ({"success": lambda true: np.array([true], np.float32)}, "success", None),
        # Its own word, as no classifier judges.
        ({"is_success": np.float64, "success": _not}, "is_success", None),
        # A learned reward claims under is_success and moves the environment's own.
        ({"is_success": _not, "original_is_success": bool, "reward_prob": float},
         "original_is_success", 5),
        ({"is_success": _not, "reward_prob": float, "success": bool}, "success", 5),
        ({"is_success": _not, "reward_prob": float}, None, 5),
        ({"true_success": bool, "original_is_success": _not, "is_success": _not},
         "true_success", 5),
        ({"goal_distance": float}, None, None),
    ],
)  # fmt: skip
def test_the_truth_is_found_and_never_taken_for_the_claim(
    told: dict[str, Any], key: str | None, claimed: int | None
) -> None:
    for cells in (2, 3):
        arrived = cells == 3
        truth = Truth()
        found = evaluate(Walk(cells), Telling(**told), 5, seed=0, truth=truth)
        assert found.truth_key == truth.key == key
        assert (found.true is None) == (key is None)
        assert found.true is None or found.true.successes == (5 if arrived else 0)
        assert (None if found.claimed is None else found.claimed.successes) == (
            None if claimed is None else (0 if arrived else 5)
        )
        seen: list[Moment] = []
        evaluate(Walk(cells), Telling(**told), 1, seed=0, watch=seen.append)
        told_of = [None, False, False, arrived, arrived] if key else [None] * 5
        assert [moment.true for moment in seen] == told_of


def test_a_truth_that_is_named_is_the_one_read() -> None:
    told: dict[str, Any] = {"true_success": _not, "at_goal": bool}
    found = evaluate(Walk(3), Telling(**told), 5, seed=0, truth=Truth("at_goal"))
    assert found.true is not None and found.true.successes == 5 and found.truth_key == "at_goal"
    assert "info['at_goal']" in found.lines()[1]
    with pytest.raises(ConfigError, match=r"'nothing' \(it has at_goal, true.*--truth-key"):
        evaluate(Walk(3), Telling(**told), 1, seed=0, truth=Truth("nothing"))
    for wrong in ("yes", [True, False], float("nan"), None):
        with pytest.raises(ConfigError, match="a single 1 or 0"):
            evaluate(Walk(3), Telling(success=lambda _, w=wrong: w), 1, seed=0)


@pytest.mark.parametrize("cells", [2, 3])
def test_the_environments_own_is_success_by_name_is_not_the_claim(cells: int) -> None:
    """A capture records is_success; the classifier of its images claims under that name."""
    told: dict[str, Any] = {"is_success": _not, "original_is_success": bool, "reward_prob": float}
    found = evaluate(Walk(cells), Telling(**told), 5, seed=0, truth=Truth("is_success"))
    assert found.true is not None and found.true.successes == (5 if cells == 3 else 0)
    assert found.claimed is not None and found.claimed.successes == (0 if cells == 3 else 5)
    alone = evaluate(Walk(cells), Telling(is_success=bool), 5, seed=0, truth=Truth("is_success"))
    assert alone.true == found.true and alone.claimed is None
    del told["original_is_success"]
    with pytest.raises(ConfigError, match="an info without 'original_is_success'"):
        evaluate(Walk(cells), Telling(**told), 5, seed=0, truth=Truth("is_success"))


def test_no_episodes_is_an_error() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        evaluate(Walk(1), Corridor(), 0, seed=0)


@given(st.lists(st.floats(0, 1), max_size=30), st.integers(1, 12))
def test_rolling_mean_is_the_mean_of_the_last_values(values: list[float], window: int) -> None:
    found = rolling_mean(np.array(values, dtype=np.float64), window)
    naive = [np.mean(values[max(0, i + 1 - window) : i + 1]) for i in range(len(values))]
    np.testing.assert_allclose(found, np.array(naive, dtype=np.float64), atol=1e-12)


def test_a_run_writes_what_it_promises_and_names_the_next_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    (tmp_path / "c.yaml").write_text(
        yaml.safe_dump({"algorithm_kwargs": SMALL, "timesteps": 999}), encoding="utf-8"
    )
    arguments = ["--config", str(tmp_path / "c.yaml"), "--timesteps", "120", "--out", str(out)]
    arguments += ["--backend", "oracle", "--eval-every", "50", "--final-episodes", "3"]
    assert main(["train", *arguments, "--no-progress"]) == 0
    assert f"vinoreward play --run {out}" in capsys.readouterr().out
    names = "config.yaml checkpoint.pt policy.pt policy.json episodes.csv evaluations.csv"
    for name in [*names.split(), "learning_curve.png", "report.html", "summary.json"]:
        assert (out / name).stat().st_size > 0, name
    assert list((out / "logs").rglob("events.out.tfevents*"))
    episodes = read_table(out / "episodes.csv", EPISODE_COLUMNS)
    assert list(episodes[0]) == ["step", "reward", "length", "claimed", "true", "ood"]
    assert sum(int(row["length"] or 0) for row in episodes) <= 120
    assert [row["step"] for row in read_table(out / "evaluations.csv", EVALUATION_COLUMNS)] == [
        50,
        100,
        120,
    ]
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["final"]["true"]["trials"] == 3


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path: Path) -> None:
    texts = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        train(config(tmp_path / name, seed=seed))
        files = [tmp_path / name / f for f in ("episodes.csv", "evaluations.csv")]
        texts.append([file.read_text(encoding="utf-8") for file in files])
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]
    first, second = (torch.load(tmp_path / n / "policy.pt", weights_only=True) for n in "ab")
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.slow
def test_sac_solves_the_task_and_stops(tmp_path: Path) -> None:
    result = train(SETTINGS.of(out=tmp_path / "run", backend="oracle", progress=False))
    assert result.solved_at is not None
    assert result.solved_at < 8000
    assert result.final.true is not None
    assert result.final.true.value >= 0.95
    assert result.final.true.trials == 100


@pytest.mark.parametrize("algorithm", ["TD3", "PPO", "A2C"])
def test_other_algorithms_by_name(tmp_path: Path, algorithm: str) -> None:
    small: dict[str, Any] = {"policy_kwargs": {"net_arch": [16]}}
    if algorithm == "PPO":
        small |= {"n_steps": 64, "batch_size": 32}
    if algorithm == "A2C":
        small |= {"n_steps": 8}
    if algorithm == "TD3":
        small |= {"learning_starts": 40, "action_noise": 0.1}
    changes = {"timesteps": 128, "eval_every": 64, "checkpoint_every": 64}
    first = config(tmp_path / "run", algorithm=algorithm, algorithm_kwargs=small, **changes)
    assert train(first).steps == 128
    again = SETTINGS.of(out=tmp_path / "run", resume=True, timesteps=192)
    assert train(again).steps == 192


def test_an_environment_without_a_learned_reward_trains_as_it_is(tmp_path: Path) -> None:
    small = {"learning_starts": 20, "batch_size": 8, "policy_kwargs": {"net_arch": [8]}}
    result = train(
        config(
            tmp_path / "run",
            env="CartPole-v1",
            algorithm="DQN",
            algorithm_kwargs=small,
            timesteps=80,
        )
    )
    assert result.solved_at is None
    assert result.final.true is None


@pytest.mark.parametrize("key", [None, "is_success"])
def test_both_curves_of_a_learned_reward_and_where_the_truth_is_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str | None
) -> None:
    """The truth is an environment's own is_success here, which the wrapper moves aside."""

    class Blind(toy_environments.Corridor):
        def step(self, action: Any) -> Any:
            *found, info = super().step(action)
            return (*found, {"is_success": info["true_success"]})

    gym.register("Blind-v0", entry_point=Blind)
    try:
        bundle = toy_environments.save_toy_bundle(tmp_path / "toy")
        small = {"learning_starts": 20, "batch_size": 8, "policy_kwargs": {"net_arch": [8]}}
        told = {"env": "Blind-v0", "wrap_bundle": True, "bundle": str(bundle.path)}
        told |= {"truth_key": key}
        out = tmp_path / "run"
        found = config(out, **told, algorithm="DQN", algorithm_kwargs=small, backend="openvino")
        assert run(found) == 0
    finally:
        del gym.registry["Blind-v0"]
    said = capsys.readouterr().out
    assert said.count("true success is read from info['original_is_success']") == 1
    assert "(info['original_is_success'])" in said
    for name in ("episodes.csv", "evaluations.csv"):
        with (out / name).open(encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
        assert rows and all(row["claimed"] and row["true"] for row in rows)
    board = " ".join(path.read_text("latin-1") for path in out.rglob("events.out.*"))
    assert "rollout/claimed_success" in board and "rollout/true_success" in board


def test_evaluations_that_take_most_of_the_time_are_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vinoreward_training.policy.callbacks.LONG_EVALUATIONS", 0.0)
    idle = {**SMALL, "learning_starts": 1000}  # acts at random: learning takes no time
    train(config(tmp_path / "run", eval_episodes=40, algorithm_kwargs=idle))
    said = capsys.readouterr().out
    assert said.count("Evaluations took") == 1
    assert "--eval-every 500, --eval-episodes 10." in said
    train(config(tmp_path / "rare", eval_every=10_000, algorithm_kwargs=idle))
    assert "Evaluations took" not in capsys.readouterr().out
