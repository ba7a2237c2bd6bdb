"""A step of PandaHover-v0: alone, and of several stepped in one process with one classification."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from harness import SCENES, Benchmark, Row, Value, interleaved, one_thread, times
from scenes import BUNDLE
from vinoreward import ImageInInfo, VecLearnedReward
from vinoreward_training.profile import Stepper

TOGETHER = (4, 8)
ROWS = {
    f"steps {count}": Row(f"a step over one of {count} stepped together, as by --num-envs {count}")
    for count in TOGETHER
}


def measure(options: Any) -> Iterator[tuple[str, Value]]:
    """Time them in turns."""
    one_thread()
    with contextlib.ExitStack() as stack:
        alone = stack.enter_context(contextlib.closing(gym.make("PandaHover-v0", bundle=BUNDLE)))
        candidates: dict[str, Callable[[], object]] = {"alone": Stepper(alone)}
        for count in TOGETHER:
            candidates[str(count)] = _together(stack, count, options.seed)
        calls = {"alone": 40} | {str(count): 10 for count in TOGETHER}
        timings = interleaved(candidates, rounds=options.rounds, calls=calls)
    for count in TOGETHER:
        yield f"steps {count}", times(timings["alone"], timings[str(count)] / count)


def _together(stack: contextlib.ExitStack, count: int, seed: int) -> Callable[[], object]:
    from stable_baselines3.common.vec_env import DummyVecEnv

    def scene() -> gym.Env[Any, Any]:
        env = gym.make("PandaHover-v0", backend="none", bundle=BUNDLE, render_mode="rgb_array")
        return ImageInInfo(env)

    envs = VecLearnedReward(DummyVecEnv([scene] * count), BUNDLE, image_source="render")
    stack.callback(envs.close)
    envs.seed(seed)
    envs.reset()
    return lambda: envs.step(np.stack([envs.action_space.sample() for _ in range(count)]))


BENCH = Benchmark("Learned rewards", ROWS, measure, rounds=20, seed=SCENES)

if __name__ == "__main__":
    sys.exit(BENCH.main())
