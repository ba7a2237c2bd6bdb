"""The example of a small target is what it says."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

pytest.importorskip("pybullet")


@pytest.fixture
def reach(project_root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    path = project_root / "examples" / "reach_small_target" / "reach.py"
    spec = importlib.util.spec_from_file_location("reach", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "reach", module)
    spec.loader.exec_module(module)
    yield module
    gym.registry.pop("Reach-v0")


def test_the_policy_reaches_a_target_of_a_few_pixels(reach: ModuleType) -> None:
    env = gym.make("Reach-v0", render_mode="rgb_array")
    check_env(env.unwrapped)
    won, widths = 0, []
    for seed in range(8):
        observation, info = env.reset(seed=seed)
        image = np.asarray(env.render()).astype(int)
        red = (image[..., 0] > 110) & (image[..., 1] < 50) & (image[..., 2] < 50)
        columns = np.flatnonzero(red.any(axis=0))
        widths += [int(np.ptp(columns)) + 1] * bool(len(columns))  # else the arm hides it
        for _ in range(20):
            observation, _, _, _, info = env.step(reach.act(observation))
        won += info["is_success"]
    env.close()
    assert won == 8
    assert len(widths) > 4 and min(widths) >= 4 and max(widths) <= 8
