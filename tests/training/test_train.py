"""Training: repeatable, with claimed and true success side by side, and through an encoder."""

from __future__ import annotations

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
from toy_environments import HEIGHT, LATENT, save_toy_bundle, save_toy_encoder
from train_runs import SMALL, SMALL_DQN, Corridor, config

from vinoreward.errors import (
    ConfigError,
    ImageMismatchError,
    ModelNotFoundError,
)
from vinoreward.wrappers.true_success import Truth
from vinoreward_training.cli import main
from vinoreward_training.configs import PlayConfig
from vinoreward_training.play.command import play
from vinoreward_training.policy.checkpoint import build_model, read_description
from vinoreward_training.policy.evaluate import EvalStep, Evaluation, evaluate, rate
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


@pytest.mark.parametrize(("cells", "claimed", "true"), [(1, 0, 0), (2, 5, 0), (3, 5, 5), (4, 5, 0)])
def test_success_is_that_of_the_last_state(cells: int, claimed: int, true: int) -> None:
    steps: list[EvalStep] = []
    found = evaluate(Walk(cells), Corridor(), 5, seed=0, watch=steps.append)
    assert found.claimed is not None and found.true is not None
    assert (found.claimed.successes, found.claimed.trials) == (claimed, 5)
    assert (found.true.successes, found.true.trials) == (true, 5)
    assert found.mean_return == found.mean_length == 4.0
    expected = [(episode, step, step == 4) for episode in range(5) for step in range(5)]
    assert [(one.episode, one.step, one.last) for one in steps] == expected


@pytest.mark.parametrize(
    ("claimed", "true", "cheats"),
    [(23, 10, True), (27, 0, True), (98, 95, False), (10, 12, False), (86, 74, True)],
)
def test_a_policy_cheats_whose_claims_are_significantly_false(
    claimed: int, true: int, cheats: bool
) -> None:
    assert Evaluation(rate(claimed, 100), rate(true, 100), 0.0, 1.0).cheats is cheats
    assert not Evaluation(rate(claimed, 100), None, 0.0, 1.0).cheats


@pytest.mark.parametrize(
    ("told", "key", "claimed"),
    [
        ({"succeed": float, "step": int}, "succeed", None),
        ({"success": lambda true: np.array([true], np.float32)}, "success", None),
        # The environment's own, as no classifier scores.
        ({"is_success": np.float64, "success": _not}, "is_success", None),
        # A learned reward claims under is_success and moves the environment's own.
        ({"is_success": _not, "original_is_success": bool, "reward_prob": float},
         "original_is_success", 5),
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
        arrived, truth, steps = cells == 3, Truth(), []
        env = Telling(**told)
        found = evaluate(Walk(cells), env, 5, seed=0, watch=steps.append, truth=truth)
        assert found.truth_key == truth.key == key
        assert (found.true is None) == (key is None)
        assert found.true is None or found.true.successes == (5 if arrived else 0)
        assert (None if found.claimed is None else found.claimed.successes) == (
            None if claimed is None else (0 if arrived else 5)
        )
        told_of = [False, False, arrived, arrived] if key else [None] * 4
        assert [one.true for one in steps[1:5]] == told_of


def test_a_truth_that_is_named_is_the_one_read() -> None:
    told: dict[str, Any] = {"true_success": _not, "at_goal": bool}
    found = evaluate(Walk(3), Telling(**told), 5, seed=0, truth=Truth("at_goal"))
    assert found.true is not None and found.true.successes == 5 and found.truth_key == "at_goal"
    assert "info['at_goal']" in found.lines()[1]
    with pytest.raises(ConfigError, match=r"'nothing' \(it has at_goal, true.*truth"):
        evaluate(Walk(3), Telling(**told), 1, seed=0, truth=Truth("nothing"))


@pytest.mark.parametrize("cells", [2, 3])
def test_is_success_by_name_is_the_environments_own_and_not_the_claim(cells: int) -> None:
    told: dict[str, Any] = {"is_success": _not, "original_is_success": bool, "reward_prob": float}
    found = evaluate(Walk(cells), Telling(**told), 5, seed=0, truth=Truth("is_success"))
    assert found.true is not None and found.true.successes == (5 if cells == 3 else 0)
    assert found.claimed is not None and found.claimed.successes == (0 if cells == 3 else 5)
    del told["original_is_success"]
    with pytest.raises(ConfigError, match="an info without 'original_is_success'"):
        evaluate(Walk(cells), Telling(**told), 5, seed=0, truth=Truth("is_success"))


def test_actions_that_begin_elsewhere_than_at_0_are_refused() -> None:
    """SB3 would play 0 and 1 of -1 and 0."""
    space = gym.spaces.Discrete(2, start=-1)
    env = gym.wrappers.TransformAction(Corridor(), lambda action: action + 1, space)
    with pytest.raises(ConfigError, match=r"counts from 0\..*TransformAction.*action \+ -1"):
        build_model("PPO", env, {}, seed=0)


@given(st.lists(st.floats(0, 1), max_size=30), st.integers(1, 12))
def test_rolling_mean_is_the_mean_of_the_last_values(values: list[float], window: int) -> None:
    found = rolling_mean(np.array(values, dtype=np.float64), window)
    naive = [np.mean(values[max(0, i + 1 - window) : i + 1]) for i in range(len(values))]
    np.testing.assert_allclose(found, np.array(naive, dtype=np.float64), atol=1e-12)


def test_a_run_writes_what_it_promises_and_names_the_next_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    settings = yaml.safe_dump({"algorithm_kwargs": SMALL, "timesteps": 999})
    (tmp_path / "c.yaml").write_text(settings, encoding="utf-8")
    arguments = ["--config", str(tmp_path / "c.yaml"), "--timesteps", "120", "--out", str(out)]
    arguments += ["--backend", "oracle", "--eval-every", "50", "--final-episodes", "3"]
    assert main(["train", *arguments]) == 0
    assert f"vinoreward play --run {out}" in capsys.readouterr().out
    names = "config.yaml checkpoint.pt policy.pt policy.json episodes.csv evaluations.csv"
    for name in [*names.split(), "learning_curve.png", "report.html", "summary.json"]:
        assert (out / name).stat().st_size > 0, name
    assert list((out / "logs").rglob("events.out.tfevents*"))
    assert not [path for path in out.rglob("*") if path.suffix in (".pkl", ".zip")]
    episodes = read_table(out / "episodes.csv", EPISODE_COLUMNS)
    assert list(episodes[0]) == ["step", "reward", "length", "claimed", "true", "ood"]
    evaluations = read_table(out / "evaluations.csv", EVALUATION_COLUMNS)
    assert [row["step"] for row in evaluations] == [50, 100, 120]
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["final"]["true"]["trials"] == 3


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path: Path) -> None:
    texts = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        train(config(tmp_path / name, seed=seed))
        files = [tmp_path / name / f for f in ("episodes.csv", "evaluations.csv")]
        texts.append([file.read_text(encoding="utf-8") for file in files])
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.full
def test_sac_solves_the_task_and_stops(tmp_path: Path) -> None:
    result = train(SETTINGS.of(out=tmp_path / "run", backend="oracle"))
    assert result.solved_at is not None and result.solved_at < 8000
    assert result.final.true is not None
    assert result.final.true.value >= 0.95 and result.final.true.trials == 100


@pytest.mark.parametrize(
    ("algorithm", "more", "env"),
    [
        ("TD3", {"learning_starts": 40, "action_noise": 0.1}, {}),
        # Without a learned reward an environment trains as it is.
        ("A2C", {"n_steps": 8}, {"env": "CartPole-v1", "backend": "openvino"}),
    ],
)
def test_other_algorithms_and_environments_by_name(
    tmp_path: Path, algorithm: str, more: dict[str, Any], env: dict[str, str]
) -> None:
    small = {"policy_kwargs": {"net_arch": [16]}, **more}
    changes = {"timesteps": 128, "eval_every": 64, "algorithm_kwargs": small, **env}
    first = train(config(tmp_path / "run", algorithm=algorithm, **changes))
    assert first.steps == 128 and (first.final.claimed is None) == bool(env)
    assert train(SETTINGS.of(out=tmp_path / "run", resume=True, timesteps=192)).steps == 192


class Blind(toy_environments.Corridor):
    """Tells the truth as its own is_success alone, which a learned reward moves aside."""

    def step(self, action: Any) -> Any:
        *found, info = super().step(action)
        return (*found, {"is_success": info["true_success"]})


gym.register("Blind-v0", entry_point=Blind)


@pytest.mark.parametrize("key", [None, "is_success"])
def test_both_curves_of_a_learned_reward_and_where_the_truth_is_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str | None
) -> None:
    bundle = toy_environments.save_toy_bundle(tmp_path / "toy")
    told = {"env": "Blind-v0", "bundle": str(bundle.path), "truth": key, "backend": "openvino"}
    out = tmp_path / "run"
    assert run(config(out, **told, algorithm_kwargs=SMALL_DQN)) == 0
    said = capsys.readouterr().out
    assert said.count("true success is read from info['original_is_success']") == 1
    assert "(info['original_is_success'])" in said
    rows = read_table(out / "evaluations.csv", EVALUATION_COLUMNS)
    assert rows and all(row["claimed"] is not None and row["true"] is not None for row in rows)
    board = " ".join(path.read_text("latin-1") for path in out.rglob("events.out.*"))
    assert "rollout/claimed_success" in board and "rollout/true_success" in board


# --- through an encoder ------------------------------------------------------------------------


PIXELS = "PandaHoverPixels-v0"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Takes the hover scene's images, made small."""
    folder = tmp_path_factory.mktemp("encoder") / "toy"
    return str(save_toy_encoder(folder, resize="pil_bilinear").path)


def test_a_policy_learns_from_the_latent_and_plays_and_goes_on_through_its_encoder(
    tmp_path: Path, encoder: str
) -> None:
    out = tmp_path / "run"
    train(config(out, env=PIXELS, encoder=encoder, timesteps=80))
    recorded = yaml.safe_load((out / "config.yaml").read_text(encoding="utf-8"))
    for found in (recorded, vars(read_description(out))):
        assert found["encoder"] == encoder
    weights = torch.load(out / "policy.pt", weights_only=True)
    assert weights["actor.latent_pi.0.weight"].shape == (16, LATENT)
    result = play(PlayConfig(run=out, episodes=2, film=1))
    assert result.evaluation.true is not None
    assert result.film is not None and result.film.stat().st_size > 0
    assert train(SETTINGS.of(out=out, resume=True, timesteps=90)).steps == 90


def test_images_without_an_encoder_take_cnn_policy(tmp_path: Path) -> None:
    small = {"learning_starts": 100, "buffer_size": 50}
    train(config(tmp_path / "run", env=PIXELS, timesteps=12, algorithm_kwargs=small))
    weights = torch.load(tmp_path / "run" / "policy.pt", weights_only=True)
    assert any("features_extractor.cnn" in name for name in weights)


def test_an_encoder_that_does_not_fit_is_named(tmp_path: Path) -> None:
    strict, classifier = save_toy_encoder(tmp_path / "a"), save_toy_bundle(tmp_path / "b")
    for path, kind, words in (
        ("no-such-encoder", ModelNotFoundError, "no-such-encoder"),
        (strict.path, ImageMismatchError, f"{HEIGHT}"),
        (classifier.path, ConfigError, "classifier"),
    ):
        with pytest.raises(kind, match=words):
            train(config(tmp_path / "run", env=PIXELS, encoder=str(path)))
    assert not (tmp_path / "run").exists(), "nothing is left of a run that cannot start"
