"""Whole trainings of Stable-Baselines3's models with ``accelerate``, against the same without it.

In turns, one thread, one seed a round. Where learning takes most of the time, nothing is replaced,
and the figure shows what it costs to find that out.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from stable_baselines3 import DQN, PPO, SAC

import vinoreward_envs  # noqa: F401 - registers PandaHover
from harness import Benchmark, Row, Timing, Value, one_thread, times, turns, wall_and_cpu
from vinoreward_actors import accelerate


@dataclass(frozen=True)
class Training:
    """One training: how its model is made, and how long it is."""

    make: Callable[[int], Any]
    steps: int
    target: str


def _wide(seed: int) -> Any:
    # An epoch of one batch: acting takes most of the time.
    policy = {"net_arch": [2048] * 3}
    return PPO(
        "MlpPolicy", "CartPole-v1", n_steps=512, n_epochs=1, batch_size=512,
        policy_kwargs=policy, seed=seed, device="cpu",
    )  # fmt: skip


def _hover(seed: int) -> Any:
    return SAC("MlpPolicy", gym.make("PandaHover-v0"), seed=seed, device="cpu")


TRAININGS = {
    "PPO CartPole 3×2048, one epoch": Training(_wide, 8192, "≥1.7×"),
    "PPO CartPole": Training(lambda seed: PPO("MlpPolicy", "CartPole-v1", seed=seed), 8192, "≥1×"),
    "DQN CartPole": Training(lambda seed: DQN("MlpPolicy", "CartPole-v1", seed=seed), 8192, "≥1×"),
    "SAC Pendulum": Training(lambda seed: SAC("MlpPolicy", "Pendulum-v1", seed=seed), 2000, "≥1×"),
    "SAC PandaHover": Training(_hover, 1500, "≥1×"),
}
ROWS = {
    f"accelerate {name}": Row(f"a whole training, plain over accelerated: {name}", one.target)
    for name, one in TRAININGS.items()
}


def measure(options: Any) -> Iterator[tuple[str, Value]]:
    """Train each model with and without, in turns."""
    one_thread()
    for name, training in TRAININGS.items():
        spent: dict[str, list[Any]] = {"plain": [], "accelerated": []}
        for index, kind in turns(spent, options.rounds):
            model = training.make(options.seed + index)
            learns = model if kind == "plain" else accelerate(model)
            began = wall_and_cpu()
            with contextlib.redirect_stdout(io.StringIO()):
                learns.learn(training.steps)
            spent[kind].append(wall_and_cpu() - began)
        seconds = {kind: Timing(*zip(*each, strict=True)) for kind, each in spent.items()}
        yield f"accelerate {name}", times(seconds["plain"], seconds["accelerated"])


BENCH = Benchmark("Compressed actors", ROWS, measure, rounds=3, seed=0)

if __name__ == "__main__":
    sys.exit(BENCH.main())
