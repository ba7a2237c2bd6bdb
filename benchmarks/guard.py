"""The guard in random play of PandaHoverRandom-v0: its cost, and its alarms on clean images."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium as gym

from harness import SCENES, Benchmark, Row, Value, interleaved, one_thread, rare, times
from scenes import BUNDLE
from vinoreward_training.profile import Stepper

ENV = "PandaHoverRandom-v0"
ROWS = {
    "guard step": Row("a step with the guard over one without", "≤1.05×"),
    "guard images": Row("… clean images that are out of distribution", "≤1 %"),
    "guard episodes": Row("… clean episodes with such an image", "≤2 %"),
}


def measure(options: Any) -> Iterator[tuple[str, Value]]:
    """Time steps in turns; then play clean episodes."""
    one_thread()
    with contextlib.ExitStack() as stack:

        def made(on_ood: str) -> gym.Env[Any, Any]:
            env = gym.make(ENV, bundle=BUNDLE, on_ood=on_ood)
            return stack.enter_context(contextlib.closing(env))

        both = {one: Stepper(made(one)) for one in ("withhold", "ignore")}
        timings = interleaved(both, rounds=options.rounds, calls=100, warm_up=20)
        yield "guard step", times(timings["withhold"], timings["ignore"])
        scores = played(made("withhold"), options.episodes, options.seed)
    found = [[score > 1.0 for score in episode] for episode in scores]
    yield "guard images", rare(sum(map(sum, found)), sum(map(len, found)))
    yield "guard episodes", rare(sum(map(any, found)), len(found))


def played(env: gym.Env[Any, Any], episodes: int, seed: int) -> list[list[float]]:
    """Return the OOD score of each step, by episode of random play."""
    env.action_space.seed(seed)
    scores: list[list[float]] = []
    for episode in range(episodes):
        env.reset(seed=seed + episode)
        over, inside = False, []
        while not over:
            _, _, terminated, truncated, info = env.step(env.action_space.sample())
            inside.append(float(info.get("reward_ood", 0.0)))
            over = terminated or truncated
        scores.append(inside)
    return scores


BENCH = Benchmark("Learned rewards", ROWS, measure, rounds=20, episodes=600, seed=SCENES)

if __name__ == "__main__":
    sys.exit(BENCH.main())
