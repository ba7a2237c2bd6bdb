"""Playing tasks, for tests of them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np

from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_actors.actor_learner.acting.evaluation import Evaluator
from vinoreward_actors.command.build import FACTORY


def evaluator(task: str, options: dict[str, Any] | None = None, how: str = "numpy") -> Evaluator:
    """What ``vinoreward actors`` evaluates a task with."""
    return Evaluator(EnvironmentSpec(FACTORY, {"name": task, **(options or {})}), how)


def play(env: gym.Env[Any, Any], steps: int, *, reset: bool = True) -> list[Any]:
    """Return what an environment says to actions that its own seeded space draws."""
    seen: list[Any] = [env.reset()[0]] if reset else []
    for _ in range(steps):
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        seen.append((observation, reward, terminated, truncated))
        if terminated or truncated:
            seen.append(env.reset()[0])
    return seen


def same(one: list[Any], other: list[Any]) -> bool:
    flat = [
        [x for step in seen for x in (step if isinstance(step, tuple) else (step,))]
        for seen in (one, other)
    ]
    return len(flat[0]) == len(flat[1]) and all(
        np.array_equal(a, b) for a, b in zip(*flat, strict=True)
    )


def run_python(code: str) -> str:
    inherited = {key: value for key, value in os.environ.items() if key != "MUJOCO_GL"}
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=inherited,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout
