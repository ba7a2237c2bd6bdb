"""The PPO of skrl in the place of Stable-Baselines3's: the same training, records and policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.callbacks import BaseCallback
from train_runs import config

from vinoreward.errors import ConfigError, OutputError
from vinoreward_training.configs import PlayConfig
from vinoreward_training.play.command import play
from vinoreward_training.policy.checkpoint import build_model
from vinoreward_training.policy.train import SETTINGS, train
from vinoreward_training.runs.report import EPISODE_COLUMNS, read_table
from vinoreward_training.tasks.many import make_batch

RANDOM = "PandaHoverRandom-v0"
SMALL: dict[str, Any] = {
    "n_steps": 24,
    "batch_size": 24 * 8,
    "n_epochs": 4,
    "policy_kwargs": {"net_arch": [16], "log_std_init": -2.5},
}


def model_of(learner: str, array: str = "numpy", **more: Any) -> Any:
    env = make_batch(8, RANDOM, {"array": array}, backend="oracle")
    given = {**SMALL, **more}
    return build_model("PPO", env, given, seed=0, learner=learner)


@pytest.mark.parametrize("array", ["numpy", "torch"])
def test_an_iteration_is_sb3_s(array: str) -> None:
    """Rollout, what follows where an episode is cut short, advantages and updates are the same.

    Of one batch the order does not matter; else the two draw other random numbers for it.
    """
    given = {"gamma": 0.9, "learning_rate": 0.01, "ent_coef": 0.01, "vf_coef": 0.1}
    models = [model_of(learner, array, **given) for learner in ("sb3", "skrl")]
    begun = {name: value.clone() for name, value in models[1].policy.state_dict().items()}
    for model in models:
        torch.manual_seed(0)
        model.learn(24 * 8)
    theirs, ours = (model.policy.state_dict() for model in models)
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, atol=1e-4, rtol=1e-3)
    assert any((ours[name] - value).abs().max() > 0.01 for name, value in begun.items())


def test_a_training_is_recorded_resumed_and_its_policy_played(tmp_path: Path) -> None:
    runs = [tmp_path / "one", tmp_path / "other"]
    given: dict[str, Any] = {
        "env": RANDOM,
        "vec_env": "batched",
        "num_envs": 8,
        "algorithm": "PPO",
        "algorithm_kwargs": SMALL,
        "learner": "skrl",
        "timesteps": 384,
        "stop_when_solved": None,
    }
    results = [train(config(out, **given)) for out in runs]
    assert results[0].steps == 384 and results[0].final.claimed is not None
    policies = [torch.load(out / "policy.pt", weights_only=True) for out in runs]
    for name, value in policies[0].items():
        assert torch.equal(value, policies[1][name]), "one seed, one policy"
    assert len(read_table(runs[0] / "episodes.csv", EPISODE_COLUMNS)) >= 32
    assert play(PlayConfig(run=runs[0], episodes=2, film=0)).returns
    more = train(SETTINGS.of(out=runs[0], resume=True, timesteps=576, progress=False))
    assert more.steps == 576


def test_the_preset_is_its_own() -> None:
    given = {"out": Path("x"), "vec_env": "batched", "learner": "skrl"}
    ppo, sac = (SETTINGS.of(algorithm=name, **given) for name in ("PPO", "SAC"))
    assert (ppo.num_envs, ppo.algorithm_kwargs["n_steps"]) == (1024, 5)
    assert sac.num_envs == 16 and "n_steps" not in sac.algorithm_kwargs
    assert SETTINGS.of(algorithm="PPO", out=Path("x")).algorithm_kwargs == {}


def test_a_callback_can_end_it() -> None:
    class Stop(BaseCallback):
        def _on_step(self) -> bool:
            return self.num_timesteps < 80

    model = model_of("skrl")
    model.learn(10**6, callback=Stop())
    assert model.num_timesteps == 80


def test_divergence_is_told() -> None:
    model = model_of("skrl", learning_rate=1e30)
    with pytest.raises(OutputError, match="training has diverged"):
        model.learn(10 * 24 * 8)


@pytest.mark.parametrize(
    ("env", "changes", "words"),
    [
        ("CartPole-v1", {}, "continuous actions"),
        (RANDOM, {"normalize_advantage": False}, "normalize_advantage=False is not for"),
        (RANDOM, {"clip_range_vf": 0.2}, "clip_range_vf=0.2 is not for --learner skrl"),
        (RANDOM, {"policy_kwargs": {"optimizer_kwargs": {"eps": 1}}}, "has its own Adam"),
    ],
)
def test_what_it_cannot_do_is_refused(
    tmp_path: Path, env: str, changes: dict[str, Any], words: str
) -> None:
    given = {**SMALL, "batch_size": 24, **changes}
    kwargs = {"algorithm": "PPO", "learner": "skrl", "algorithm_kwargs": given}
    with pytest.raises(ConfigError, match=words):
        train(config(tmp_path / "run", env=env, **kwargs))


def test_evaluations_take_the_mean_action() -> None:
    model = model_of("skrl")
    seen = np.zeros((3, *model.observation_space.shape), np.float32)
    actions = [model.predict(seen, deterministic=True)[0] for _ in range(2)]
    np.testing.assert_array_equal(*actions)
