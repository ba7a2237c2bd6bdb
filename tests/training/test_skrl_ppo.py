"""The PPO of skrl in the place of Stable-Baselines3's: the same training, records and policies."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from stable_baselines3.common.callbacks import BaseCallback
from train_runs import config

from vinoreward.errors import ConfigError, OutputError
from vinoreward_training.configs import PlayConfig
from vinoreward_training.configs.task import RewardedTask
from vinoreward_training.play.command import play
from vinoreward_training.policy.checkpoint import build_model
from vinoreward_training.policy.train import SETTINGS, train
from vinoreward_training.runs.report import EPISODE_COLUMNS, read_table
from vinoreward_training.tasks.many import make_batch

RANDOM = "PandaHoverRandom-v0"
SMALL: dict[str, Any] = {
    "n_steps": 24, "batch_size": 24 * 8, "n_epochs": 4,
    "policy_kwargs": {"net_arch": [16], "log_std_init": -2.5},
}  # fmt: skip


def model_of(learner: str, array: str = "numpy", **more: Any) -> Any:
    env = make_batch(8, RewardedTask(env=RANDOM, env_kwargs={"array": array}, backend="oracle"))
    given = {**SMALL, **more}
    return build_model("PPO", env, given, seed=0, learner=learner)


@pytest.mark.parametrize("array", ["numpy", "torch"])
def test_an_iteration_is_sb3_s(array: str) -> None:
    """Rollout, what follows where an episode is cut short, advantages and updates are the same.

    Of one batch the order does not matter; else the two draw other random numbers for it.
    """
    given = {
        "gamma": 0.9, "gae_lambda": 0.8, "learning_rate": 0.01, "ent_coef": 0.01, "vf_coef": 0.1,
        "clip_range": 0.01, "max_grad_norm": 0.05,
    }  # fmt: skip
    models = [model_of(learner, array, **given) for learner in ("sb3", "skrl")]
    begun = {name: value.clone() for name, value in models[1].policy.state_dict().items()}
    for model in models:
        torch.manual_seed(0)
        model.learn(24 * 8)
    theirs, ours = (model.policy.state_dict() for model in models)
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, atol=1e-4, rtol=1e-3)
    assert any((ours[name] - value).abs().max() > 0.01 for name, value in begun.items())
    assert models[0]._n_updates == models[1]._n_updates == 4
    rewards = [[one["r"] for one in model.ep_info_buffer] for model in models]
    assert rewards[0] == rewards[1] and len(rewards[0]) > 8


@pytest.mark.parametrize(("batch", "steps"), [(24, 8), (191, 2), (500, 1)])
def test_it_takes_as_many_gradient_steps_as_sb3(batch: int, steps: int) -> None:
    taken = []
    for learner in ("sb3", "skrl"):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            model = model_of(learner, batch_size=batch)
        assert all("truncated mini-batch" in str(one.message) for one in warned)
        model.learn(24 * 8)
        optimizer = model.policy.optimizer if learner == "sb3" else model.agent.optimizer
        taken.append({int(one["step"]) for one in optimizer.state.values()})
    assert taken == [{4 * steps}, {4 * steps}]


def test_a_stop_within_a_rollout_leaves_nothing_of_it() -> None:
    """The next rollout begins at its first step."""

    class Stop(BaseCallback):
        def _on_step(self) -> bool:
            return self.num_timesteps != 80

    model = model_of("skrl")
    model.learn(10**6, callback=Stop())
    assert model.num_timesteps == 80
    model.learn(24 * 8, reset_num_timesteps=False)
    objects, ended = (
        model.agent.memory.get_tensor_by_name(name) for name in ("observations", "terminated")
    )
    objects, goes_on = objects[..., 2:], ~ended[:-1, :, 0]
    assert torch.equal(objects[1:][goes_on], objects[:-1][goes_on])
    assert (objects[1:] != objects[:-1]).any()


def test_a_training_is_recorded_resumed_and_its_policy_played(tmp_path: Path) -> None:
    out = tmp_path / "run"
    given: dict[str, Any] = {
        "env": RANDOM, "vec_env": "batched", "num_envs": 8, "algorithm": "PPO", "learner": "skrl",
        "algorithm_kwargs": SMALL, "timesteps": 384, "stop_when_solved": None,
    }  # fmt: skip
    result = train(config(out, **given))
    assert result.steps == 384 and result.final.claimed is not None
    assert len(read_table(out / "episodes.csv", EPISODE_COLUMNS)) >= 32
    assert play(PlayConfig(run=out, episodes=2, film=0)).returns
    more = train(SETTINGS.of(out=out, resume=True, timesteps=576))
    assert more.steps == 576


def test_divergence_is_told() -> None:
    model = model_of("skrl", learning_rate=1e30)
    with pytest.raises(OutputError, match="training has diverged"):
        model.learn(10 * 24 * 8)


@pytest.mark.parametrize(
    ("env", "changes", "words"),
    [
        ("CartPole-v1", {}, "continuous actions"),
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
