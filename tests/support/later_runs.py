"""Trainings with and without deferred rewards, and what must be the same of both."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from toy_environments import Corridor

from vinoreward import PictureInInfo, RewardLater

SEED = 11
BUFFER = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


def small(**options: Any) -> dict[str, Any]:
    """Return a small learner's arguments; a new table, as SB3 writes into it."""
    sizes = {"learning_starts": 12, "batch_size": 16, "buffer_size": 400}
    return {"device": "cpu", "policy_kwargs": {"net_arch": [8]}, **sizes, **options}


class Steered(gym.ActionWrapper[Any, Any, Any]):
    """A corridor for algorithms with continuous actions: to the right where they are positive."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def action(self, action: Any) -> int:
        return int(action[0] > 0)


class ThreadCorridor(Corridor):
    """A corridor that may be rendered from any thread."""

    renders_in_threads = True


def drawn_corridor() -> gym.Env[Any, Any]:
    """A corridor whose picture is asked for; here, where other processes import it."""
    return PictureInInfo(Steered(ThreadCorridor(render_mode="rgb_array")), only_last=True)


@dataclass
class Trained:
    """What a training leaves behind."""

    replay: dict[str, Any]
    place: tuple[int, bool]
    weights: list[np.ndarray]
    counters: tuple[Any, ...]
    episodes: list[tuple[float, int]]
    drawn: list[Any]


def trained(
    algorithm: Any, env: Any, steps: int = 80, policy: str = "MlpPolicy", **options: Any
) -> Trained:
    """Train from fixed seeds; close the environment."""
    torch.set_num_threads(1)
    model = algorithm(policy, env, seed=SEED, **small(**options))
    model.learn(steps, callback=options.get("callback"))
    left = left_by(model)
    model.get_env().close()
    return left


def left_by(model: Any) -> Trained:
    """Return what a training has left."""
    buffer = model.replay_buffer
    return Trained(
        {name: copy.deepcopy(getattr(buffer, name)) for name in BUFFER},
        (buffer.pos, buffer.full),
        [value.detach().numpy().copy() for value in model.policy.state_dict().values()],
        (model.num_timesteps, model._episode_num, model._n_updates, getattr(model, "_n_calls", 0)),
        [(info["r"], info["l"]) for info in model.ep_info_buffer],
        [np.random.random(4).tolist(), random.random(), torch.rand(4).tolist()],
    )


def assert_same(found: Trained, expected: Trained) -> None:
    """Compare every element."""
    assert found.place == expected.place
    for name in BUFFER:
        these, those = found.replay[name], expected.replay[name]
        if isinstance(those, dict):
            assert set(these) == set(those)
            for key in those:
                np.testing.assert_array_equal(these[key], those[key], err_msg=f"{name} {key}")
        else:
            np.testing.assert_array_equal(these, those, err_msg=name)
    for one, other in zip(found.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    assert found.counters == expected.counters
    assert found.episodes == expected.episodes
    assert found.drawn == expected.drawn


def later(algorithm: Any) -> Any:
    """Return the algorithm with deferred rewards."""
    return RewardLater.of(algorithm)
