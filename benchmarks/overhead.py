"""Training wall time with the learned reward over that with the simulator's own, in turns."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import gymnasium as gym
import yaml

from harness import TRAININGS, Benchmark, Row, Value, median, one_thread, turns
from scenes import BUNDLE

ENV = "PandaHover-v0"
ROWS = {"overhead": Row("training wall time, learned reward over the simulator's own", "≤1.25×")}


def seconds(backend: str, steps: int, seed: int) -> float:
    """Return the seconds of a training of SAC with the preset of the command.

    Not counted is what loads the network and the camera: a run pays that once.
    """
    from stable_baselines3 import SAC

    one_thread()
    preset = files("vinoreward_training") / "presets" / f"{ENV}.yaml"
    arguments = yaml.safe_load(preset.read_text(encoding="utf-8"))["algorithm_kwargs"]
    with contextlib.closing(gym.make(ENV, backend=backend, bundle=BUNDLE)) as env:
        env.reset(seed=seed)
        env.step(env.action_space.sample())
        model = SAC("MlpPolicy", env, seed=seed, device="cpu", **arguments)
        began = time.perf_counter()
        model.learn(steps)
        spent = time.perf_counter() - began
    print(f"  {backend}, seed {seed}: {spent:.1f} s", flush=True)
    return spent


def measure(options: Any) -> Iterator[tuple[str, Value]]:
    """Train with each reward and seed."""
    spent: dict[str, list[float]] = {"openvino": [], "oracle": []}
    for index, backend in turns(spent, options.seeds):
        spent[backend].append(seconds(backend, options.steps, options.first_seed + index))
    ratios = [a / b for a, b in zip(spent["openvino"], spent["oracle"], strict=True)]
    yield "overhead", median(ratios, "×")


BENCH = Benchmark("Trainings", ROWS, measure, seeds=5, steps=2000, first_seed=TRAININGS)

if __name__ == "__main__":
    sys.exit(BENCH.main())
