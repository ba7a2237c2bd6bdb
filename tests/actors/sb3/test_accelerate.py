"""``accelerate``: Stable-Baselines3's own training, with a faster network that acts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

from vinoreward.errors import ConfigError
from vinoreward_actors import accelerate

Make = Callable[[], Any]
BACKENDS = ("openvino", "onnxruntime")


def made(kind: Any, env: str, policy: dict[str, Any] | None = None, **arguments: Any) -> Any:
    network = {"net_arch": [32, 32], **(policy or {})}
    return kind("MlpPolicy", env, policy_kwargs=network, seed=3, **arguments)


MODELS: dict[str, tuple[Make, int]] = {
    "ppo-logits": (lambda: made(PPO, "CartPole-v1", n_steps=64), 160),
    "ppo-means": (lambda: made(PPO, "Pendulum-v1", n_steps=64), 160),
    "ppo-elu": (lambda: made(PPO, "CartPole-v1", {"activation_fn": nn.ELU}, n_steps=64), 160),
    "a2c": (lambda: made(A2C, "CartPole-v1", {"activation_fn": nn.SiLU}), 40),
    "sac": (lambda: made(SAC, "Pendulum-v1", learning_starts=20), 60),
    "td3": (lambda: made(TD3, "Pendulum-v1", learning_starts=20), 60),
    "dqn": (lambda: made(DQN, "CartPole-v1", learning_starts=20), 80),
}


def weights(model: Any) -> torch.Tensor:
    return torch.cat([one.detach().flatten() for one in model.policy.parameters()])


@pytest.mark.parametrize("name", MODELS)
def test_in_fp32_it_learns_what_the_model_alone_learns(name: str) -> None:
    make, steps = MODELS[name]
    alone = make()
    begun = weights(alone)
    alone.learn(steps)
    model = make()  # seeds Stable-Baselines3's one generator anew
    assert accelerate(model, "onnxruntime", "fp32").learn(steps) is model
    assert model.num_timesteps == alone.num_timesteps
    moved = float((weights(alone) - begun).abs().max())
    assert moved > 1e-3
    assert float((weights(model) - weights(alone)).abs().max()) < 0.02 * moved


def test_what_acted_is_what_the_rollout_says() -> None:
    """The log probabilities of INT8 actions are the INT8 network's; the values are the model's."""
    env = make_vec_env("CartPole-v1", n_envs=4, seed=0)
    model = PPO("MlpPolicy", env, n_steps=32, n_epochs=1, learning_rate=0.0, seed=0)
    accelerated = accelerate(model, "openvino", "int8")
    accelerated.learn(128)
    buffer = model.rollout_buffer
    seen = torch.from_numpy(buffer.observations.reshape(-1, 4))
    actions = torch.from_numpy(buffer.actions.reshape(-1)).long()
    with torch.no_grad():
        values, log_pi, _ = model.policy.evaluate_actions(seen, actions)
    assert np.allclose(buffer.values.reshape(-1), values.flatten().numpy(), atol=1e-5)
    difference = np.abs(buffer.log_probs.reshape(-1) - log_pi.numpy())
    assert 0 < difference.max() < 0.05
    assert accelerated.chosen == ("openvino", "int8")


def test_int8_ends_where_its_actions_are_not_the_policys(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, n_epochs=1, seed=0)

    def disturb(places: dict[str, Any], _: Any) -> bool:
        with torch.no_grad():  # after the acting network took over its weights
            model.policy.action_net.bias[0] += 0.1
        return True

    accelerated = accelerate(model, "openvino", "int8")
    accelerated.learn(64, callback=disturb)
    assert accelerated.chosen == ("openvino", "fp32")
    assert "nats" in capsys.readouterr().out


def test_callbacks_statistics_and_files_are_stable_baselines3s(tmp_path: Path) -> None:
    env = VecNormalize(make_vec_env("Pendulum-v1", n_envs=2, seed=0))
    model = PPO("MlpPolicy", env, n_steps=64, seed=0)
    saved = CheckpointCallback(100, str(tmp_path))
    judge = VecNormalize(make_vec_env("Pendulum-v1", n_envs=1), training=False)
    evaluated = EvalCallback(judge, n_eval_episodes=1, eval_freq=100, verbose=0)
    accelerate(model, "onnxruntime", "fp32").learn(512, callback=[saved, evaluated])
    assert env.obs_rms.count > 500
    assert len(model.ep_info_buffer) == 2  # Monitor's
    assert np.isfinite(evaluated.last_mean_reward)
    again = PPO.load(next(tmp_path.glob("*.zip")), env=env)
    again.learn(128)
    model.learn(128, reset_num_timesteps=False)  # without it


def test_auto_measures_where_much_is_left_to_act(capsys: pytest.CaptureFixture[str]) -> None:
    def make() -> Any:
        return PPO("MlpPolicy", "CartPole-v1", n_steps=256, n_epochs=1, batch_size=256, seed=0)

    measured, short = accelerate(make()), accelerate(make())
    measured.learn(10**7, callback=lambda places, _: places["self"].num_timesteps < 600)
    precisions = [f"{name} {each}" for name in BACKENDS for each in ("fp32", "int8")]
    assert set(measured.timings) == {"own", *precisions}
    assert "the whole training" in capsys.readouterr().out
    short.learn(600)
    assert set(short.timings) == {"own"} and short.chosen is None
    assert "too little" in capsys.readouterr().out


UNSUPPORTED: dict[str, Make] = {
    "gsde": lambda: SAC("MlpPolicy", "Pendulum-v1", use_sde=True, learning_starts=10, train_freq=8),
    "dict": lambda: PPO("MultiInputPolicy", Monitor(Pairs()), n_steps=256),
    "mish": lambda: PPO(
        "MlpPolicy", "CartPole-v1", n_steps=256, policy_kwargs={"activation_fn": nn.Mish}
    ),
}


class Halved(ActorCriticPolicy):
    """Uses Stable-Baselines3's layers in another way."""

    def _get_action_dist_from_latent(self, latent_pi: Any) -> Any:
        return super()._get_action_dist_from_latent(latent_pi / 2)


class Pairs(gym.Env[Any, Any]):
    observation_space = gym.spaces.Dict({"a": gym.spaces.Box(-1, 1, (2,))})
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return {"a": np.zeros(2, np.float32)}, {}

    def step(self, action: Any) -> Any:
        return {"a": np.zeros(2, np.float32)}, 0.0, True, False, {}


def test_a_policy_that_computes_something_else_is_left_alone() -> None:
    model = PPO(Halved, "CartPole-v1", n_steps=64, seed=0)
    with pytest.raises(ConfigError, match="differ"):
        accelerate(model, "onnxruntime", "fp32").learn(64)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_it_cannot_run_trains_as_before(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = UNSUPPORTED[name]()
    accelerate(model).learn(600)
    assert "plain Stable-Baselines3 trains: found model=" in capsys.readouterr().out
    assert model.num_timesteps >= 600
    with pytest.raises(ConfigError) as caught:
        accelerate(model, "openvino", "fp32")
    assert caught.value.field == "model"
