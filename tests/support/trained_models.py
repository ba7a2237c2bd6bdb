"""What a training leaves behind, and that two have left the same."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

BUFFER = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


@dataclass
class Trained:
    """What a training leaves behind."""

    replay: dict[str, Any]
    place: tuple[int, bool]
    weights: list[np.ndarray]
    counters: tuple[Any, ...]
    episodes: list[tuple[float, int]]
    drawn: list[Any]


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
    for name, values in expected.replay.items():
        np.testing.assert_array_equal(found.replay[name], values, err_msg=name)
    for one, other in zip(found.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    assert found.counters == expected.counters
    assert found.episodes == expected.episodes
    assert found.drawn == expected.drawn
