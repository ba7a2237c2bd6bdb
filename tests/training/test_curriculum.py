"""RandomizationCurriculum: ranges that widen while a policy learns."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

pytest.importorskip("stable_baselines3")

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from vinoreward.errors import ConfigError
from vinoreward_envs.randomization import LAB
from vinoreward_training.sb3 import BatchedVecEnv, RandomizationCurriculum


@pytest.mark.parametrize("batched", [True, False])
def test_ranges_follow_the_steps_done(batched: bool) -> None:
    if batched:
        env: Any = BatchedVecEnv(
            gym.make_vec(
                "PandaHover-v0", 4, vectorization_mode="vector_entry_point", backend="oracle"
            )
        )
        inside = [env.batch.unwrapped]
    else:
        env = make_vec_env("PandaHover-v0", 4, env_kwargs={"backend": "oracle"})
        inside = [each.unwrapped for each in env.envs]
    asked = []

    def ranges(steps: int) -> Any:
        asked.append(steps)
        return LAB.scaled(min(1.0, steps / 200))

    model = PPO("MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=1, device="cpu")
    model.learn(256, callback=RandomizationCurriculum(ranges, every=100))
    assert asked == [0, 100, 200]
    assert [each.randomization for each in inside] == [LAB] * len(inside)


def test_what_cannot_be_set_is_refused() -> None:
    with pytest.raises(ConfigError, match="every=0"):
        RandomizationCurriculum(lambda steps: LAB, every=0)
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32, device="cpu")
    with pytest.raises(ConfigError, match="without a randomization"):
        model.learn(32, callback=RandomizationCurriculum(lambda steps: LAB))
