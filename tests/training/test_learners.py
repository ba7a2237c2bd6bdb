"""Learners beside Stable-Baselines3's own: the same updates, records, checkpoints and policies."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.buffers import ReplayBufferSamples
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import DummyVecEnv
from train_runs import SMALL, config

from vinoreward.errors import ConfigError, MissingExtraError, ModelCorruptError, OutputError
from vinoreward_training.configs import PlayConfig
from vinoreward_training.configs.task import RewardedTask
from vinoreward_training.play.command import play
from vinoreward_training.policy.checkpoint import (
    build_model,
    restore_checkpoint,
    save_checkpoint,
    save_policy,
)
from vinoreward_training.policy.fused_sac import Transitions
from vinoreward_training.policy.train import SETTINGS, train
from vinoreward_training.runs.report import EPISODE_COLUMNS, read_table
from vinoreward_training.tasks.environments import make_env
from vinoreward_training.tasks.many import make_batch

RANDOM = "PandaHoverRandom-v0"
ORACLE = RewardedTask(env=RANDOM, backend="oracle")
BATCHED: dict[str, Any] = {"vec_env": "batched", "num_envs": 8, "env": RANDOM}


def model_of(learner: str, env: Any = None, steps: int = 0, seed: int = 0, **more: Any) -> Any:
    """A small SAC on a batch that is paid by the truth."""
    env = make_batch(8, ORACLE) if env is None else env
    given = {**SMALL, "gradient_steps": 2, **more}
    model: Any = build_model("SAC", env, given, seed=seed, replay_size=800, learner=learner)
    if steps:
        model.learn(steps)
    else:
        model.set_logger(configure(None, []))
    return model


def networks(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.policy.state_dict().items()}


@pytest.mark.parametrize(
    ("critics", "layers"),
    [(1, [16]), (3, {"pi": [8], "qf": [16, 8]}), (2, [])],
    ids=["one critic", "three, with layers of their own", "no hidden layer"],
)
def test_a_gradient_step_on_many_transitions_is_that_of_sb3(
    monkeypatch: pytest.MonkeyPatch, critics: int, layers: Any
) -> None:
    """Each row differs, so that none may be taken for another; the losses are told alike."""
    more = {"ent_coef": "auto_0.7", "learning_rate": 0.01}
    more["policy_kwargs"] = {"net_arch": layers, "n_critics": critics}
    theirs, ours = (model_of(name, **more) for name in ("sb3", "fused"))
    ours.policy.load_state_dict(networks(theirs))
    draw = torch.Generator().manual_seed(0)
    seen, following = torch.rand(2, 64, 4, generator=draw) - 0.5
    actions, rewards = torch.rand(64, 2, generator=draw) - 0.5, torch.randn(64, generator=draw)
    ended = (torch.rand(64, generator=draw) < 0.3).float()
    sb3_s = ReplayBufferSamples(seen, actions, following, ended[:, None], rewards[:, None], None)
    batch = Transitions(seen[None], actions[None], rewards[None], following[None], ended[None])
    monkeypatch.setattr(theirs.replay_buffer, "sample", lambda *_, **__: sb3_s)
    monkeypatch.setattr(ours.replay_buffer, "sample", lambda *_: batch)
    for seed in range(3):
        for model in (theirs, ours):
            torch.manual_seed(seed)
            model.train(1, 64)
        for name in ("train/critic_loss", "train/actor_loss"):
            told = [model.logger.name_to_value[name] for model in (ours, theirs)]
            assert told[0] == pytest.approx(told[1], abs=1e-5, rel=1e-4), name
    for name, value in networks(theirs).items():
        torch.testing.assert_close(ours.policy.state_dict()[name], value, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("beyond", [-25.0, 5.0])
def test_a_deviation_beyond_its_limits_has_no_gradient(beyond: float) -> None:
    model = model_of("fused", steps=80, learning_starts=10**6)
    with torch.no_grad():
        model.actor.log_std.bias[0] = beyond
    before = networks(model)
    model.train(3, 64)
    for name in ("actor.log_std.weight", "actor.log_std.bias"):
        held, moved = model.policy.state_dict()[name]
        assert torch.equal(held, before[name][0]), name
        assert not torch.equal(moved, before[name][1]), name


@pytest.mark.parametrize("batched", [True, False])
def test_an_episode_s_last_observation_is_its_own(batched: bool) -> None:
    """Not that of the reset, whose object is elsewhere; only a success ends what follows."""
    env = None
    if not batched:
        env = DummyVecEnv([lambda: make_env(ORACLE) for _ in range(8)])
    model = model_of("fused", env, steps=400, learning_starts=10**6)
    kept = model.replay_buffer
    seen, following = (each[:50] for each in (kept.observations, kept.next_observations))
    assert kept.size() == 50
    torch.testing.assert_close(seen[..., 2:], following[..., 2:], atol=0, rtol=0)
    begun = (seen[1:, :, 2:] != seen[:-1, :, 2:]).any(-1)
    assert begun.sum() >= 8 * 4
    away = (following[..., :2] - following[..., 2:]).norm(dim=-1)
    ended = kept.terminated[: kept.size()].bool()
    assert ended.any() and torch.equal(ended, kept.rewards[: kept.size()] == 100)
    assert away[ended].max() < away[~ended].max()
    assert (begun & ~ended[:-1]).any(), "some are cut short, and those bootstrap"


def test_a_training_is_recorded_and_its_policy_played(tmp_path: Path) -> None:
    out = tmp_path / "run"
    given = {"timesteps": 200, "stop_when_solved": None, "learner": "fused", **BATCHED}
    result = train(config(out, **given))
    assert result.steps == 200 and result.final.claimed is not None
    assert len(read_table(out / "episodes.csv", EPISODE_COLUMNS)) >= 16
    assert play(PlayConfig(run=out, episodes=2, film=0)).returns
    more = train(SETTINGS.of(out=out, resume=True, timesteps=240))
    assert more.steps == 240


def test_training_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    model = model_of("fused", steps=160, ent_coef="auto")
    save_checkpoint(tmp_path / "c.pt", model)
    other = model_of("fused", steps=80, seed=5, ent_coef="auto")
    restore_checkpoint(tmp_path / "c.pt", other)
    assert (other.num_timesteps, other.replay_buffer.size()) == (160, 20)
    description = {"algorithm": "SAC", "algorithm_kwargs": SMALL, "learner": "fused"}
    for name, each in (("one", model), ("other", other)):
        np.random.seed(0)
        torch.manual_seed(0)
        each.train(gradient_steps=3, batch_size=16)
        (tmp_path / name).mkdir()
        save_policy(tmp_path / name, each, description)
    one, two = (
        torch.load(tmp_path / name / "policy.pt", weights_only=True) for name in ("one", "other")
    )
    for name, value in one.items():
        assert torch.equal(value, two[name]), name


def test_a_checkpoint_of_another_learner_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c.pt", model_of("fused", steps=80))
    with pytest.raises(ModelCorruptError, match="FusedSAC"):
        restore_checkpoint(tmp_path / "c.pt", model_of("sb3"))


def test_tensors_and_arrays_are_learned_from_alike() -> None:
    """A batch of tensors, as on a GPU, gives the training that NumPy's arrays give."""
    found = []
    for kind in ("numpy", "torch"):
        env = make_batch(8, dataclasses.replace(ORACLE, env_kwargs={"array": kind}))
        found.append(networks(model_of("fused", env, steps=160)))
    for name, value in found[0].items():
        assert torch.equal(value, found[1][name])


@pytest.mark.parametrize(
    ("learner", "env", "kwargs", "words"),
    [
        ("fused", "PandaHoverPixels-v0", {}, "vectors of numbers"),
        ("fused", RANDOM, {"use_sde": True}, "use_sde=True is not for --learner fused"),
        ("fused", RANDOM, {"ent_coef": "auto_-1"}, "at or below 0"),
        ("fused", RANDOM, {"policy_kwargs": {"optimizer_kwargs": {"eps": 1e-5}}},
         "optimizer_kwargs in policy_kwargs is not for --learner fused"),
        ("skrl", "CartPole-v1", {}, "continuous actions"),
        ("skrl", RANDOM, {"clip_range_vf": 0.2}, "clip_range_vf=0.2 is not for --learner skrl"),
        ("skrl", RANDOM, {"policy_kwargs": {"optimizer_kwargs": {"eps": 1}}}, "has its own Adam"),
    ],
    ids=lambda value: "",
)  # fmt: skip
def test_what_a_learner_cannot_do_is_refused(
    tmp_path: Path, learner: str, env: str, kwargs: dict[str, Any], words: str
) -> None:
    given: dict[str, Any] = {"env": env, "learner": learner, "algorithm_kwargs": kwargs}
    if learner == "skrl":
        given |= {"algorithm": "PPO", "algorithm_kwargs": {**PPO_SMALL, "batch_size": 24, **kwargs}}
    else:
        given |= {"vec_env": "batched", "num_envs": 8}
    with pytest.raises(ConfigError, match=words):
        train(config(tmp_path / "run", **given))


def test_without_its_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "vinoreward_training.policy.skrl_ppo", raising=False)
    for name in [one for one in sys.modules if one.partition(".")[0] == "skrl"] or ["skrl"]:
        monkeypatch.setitem(sys.modules, name, None)
    env = make_batch(2, ORACLE)
    with pytest.raises(MissingExtraError, match=r"--learner skrl needs skrl.*\[skrl\]"):
        build_model("PPO", env, SMALL, seed=0, learner="skrl")


# --- the PPO of skrl -----------------------------------------------------------------------------


PPO_SMALL: dict[str, Any] = {
    "n_steps": 24, "batch_size": 24 * 8, "n_epochs": 4,
    "policy_kwargs": {"net_arch": [16], "log_std_init": -2.5},
}  # fmt: skip


def ppo_of(learner: str, array: str = "numpy", **more: Any) -> Any:
    env = make_batch(8, RewardedTask(env=RANDOM, env_kwargs={"array": array}, backend="oracle"))
    given = {**PPO_SMALL, **more}
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
    models = [ppo_of(learner, array, **given) for learner in ("sb3", "skrl")]
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
            model = ppo_of(learner, batch_size=batch)
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

    model = ppo_of("skrl")
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
        "algorithm_kwargs": PPO_SMALL, "timesteps": 384, "stop_when_solved": None,
    }  # fmt: skip
    result = train(config(out, **given))
    assert result.steps == 384 and result.final.claimed is not None
    assert len(read_table(out / "episodes.csv", EPISODE_COLUMNS)) >= 32
    assert play(PlayConfig(run=out, episodes=2, film=0)).returns
    more = train(SETTINGS.of(out=out, resume=True, timesteps=576))
    assert more.steps == 576


def test_divergence_is_told() -> None:
    model = ppo_of("skrl", learning_rate=1e30)
    with pytest.raises(OutputError, match="training has diverged"):
        model.learn(10 * 24 * 8)
