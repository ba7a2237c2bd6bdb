"""DQN and PPO learn with their presets, in the steps of a training, where nothing can be fooled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from vinoreward_training.policy.train import SETTINGS, train

SIZE = 7


class Grid(gym.Env[np.ndarray, Any]):
    """Walk from a random cell to another within 40 steps, one way at a time or two at once."""

    observation_space = gym.spaces.Box(0.0, 1.0, (4,), np.float32)

    def __init__(self, both: bool = False) -> None:
        self.both = both
        self.action_space: gym.Space[Any] = gym.spaces.Discrete(4)
        if both:
            self.action_space = gym.spaces.MultiDiscrete([3, 3])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        start, goal = self.np_random.choice(SIZE * SIZE, 2, replace=False)
        self.at, self.goal = (np.array(divmod(int(cell), SIZE)) for cell in (start, goal))
        self.steps = 0
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        return (np.concatenate([self.at, self.goal]) / (SIZE - 1)).astype(np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        ways = ((1, 0), (-1, 0), (0, 1), (0, -1))
        way = np.asarray(action) - 1 if self.both else np.array(ways[action])
        self.at = np.clip(self.at + way, 0, SIZE - 1)
        self.steps += 1
        info = {"success": bool((self.at == self.goal).all())}
        return self.observe(), 0.0, False, self.steps >= 40, info


gym.register("Grid-v0", entry_point=Grid)


@pytest.mark.full
@pytest.mark.parametrize(("both", "algorithm"), [(False, "DQN"), (True, "PPO")])
def test_a_grid_is_learned(tmp_path: Path, both: bool, algorithm: str) -> None:
    settings = SETTINGS.of(
        out=tmp_path / "run", env="Grid-v0", env_kwargs={"both": both},
        backend="oracle", eval_every=2000,
    )  # fmt: skip
    assert (settings.algorithm, settings.timesteps) == (algorithm, 8000)
    found = train(settings).final.true
    assert found is not None and found.successes >= 90, "with SB3's defaults 8 and 59 of 100"
