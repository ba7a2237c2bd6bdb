"""Bench rows about stepping an environment: time per step and memory."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import gymnasium as gym

import vinoreward  # noqa: F401  (registers the environments)
from vinoreward.child_python import python_command
from vinoreward.errors import RunFolderError
from vinoreward_training.bench.network import one_thread
from vinoreward_training.bench.statistics import Row, interleaved, speed_row
from vinoreward_training.configs.bench import BenchConfig

IMPORTED = ("torch", "pybullet")
RESIDENT_LIMIT_MB = 350
GROWTH_LIMIT_MB = 2


class Stepper:
    """Steps an environment with random actions, over and over; resets are part of the call."""

    def __init__(self, env: gym.Env[Any, Any], seed: int = 0) -> None:
        self.env = env
        self._over = False
        env.action_space.seed(seed)
        env.reset(seed=seed)

    def __call__(self) -> None:
        """Take one step, after a reset where the last one ended the episode."""
        if self._over:
            self.env.reset()
        _, _, terminated, truncated, _ = self.env.step(self.env.action_space.sample())
        self._over = terminated or truncated


def step_rows(config: BenchConfig) -> list[Row]:
    """Time a step of our default environment against the article's, and the oracle's."""

    one_thread()
    with contextlib.ExitStack() as stack:

        def stepper(**arguments: Any) -> Stepper:
            made = gym.make("PandaHover-v0", bundle=config.bundle, **arguments)
            return Stepper(stack.enter_context(contextlib.closing(made)), config.seed)

        times = interleaved(
            {
                "ours": stepper(),
                "oracle": stepper(backend="oracle"),
                "article": stepper(backend="torch", fidelity="article"),
            },
            rounds=config.rounds,
            calls={"ours": 40, "oracle": 40, "article": 10},
        )
    return [
        speed_row(
            "step",
            'time of a PandaHover-v0 step, resets included: fidelity="article" with PyTorch over '
            "our default",
            times["article"],
            times["ours"],
        ),
        speed_row(
            "step",
            "time of a PandaHover-v0 step, resets included: our default over the oracle reward, "
            "which needs no picture",
            times["ours"],
            times["oracle"],
        ),
    ]


MEMORY_SCRIPT = """
import gc, json, sys
import gymnasium as gym
import vinoreward
from vinoreward_training.runs.machine import resident_bytes
bundle, steps = sys.argv[1], int(sys.argv[2])
env = gym.make("PandaHoverRandom-v0", backend="openvino", bundle=bundle)
env.action_space.seed(0)
env.reset(seed=0)
warm_up = max(1, steps // 10)
samples = []
for step in range(warm_up + steps):
    if step >= warm_up and (step - warm_up) % max(1, steps // 20) == 0:
        gc.collect()
        samples.append(resident_bytes())
    _, _, terminated, truncated, _ = env.step(env.action_space.sample())
    if terminated or truncated:
        env.reset()
gc.collect()
samples.append(resident_bytes())
env.close()
print(json.dumps({"samples": samples, "torch": "torch" in sys.modules,
                  "pybullet": "pybullet" in sys.modules}))
"""


def run_script(
    script: str, arguments: list[str], *, python: str | None = None, cwd: Path | None = None
) -> Any:
    """Run a Python script in a process of its own; return the JSON of its last output line.

    Args:
        script: Python source.
        arguments: its ``sys.argv[1:]``.
        python: another interpreter, with its own modules; None is this one, with this one's.
        cwd: where it runs.

    Raises:
        RunFolderError: it failed; the message ends with what it wrote.
    """
    command = [python, "-I", "-c", script, *arguments] if python else None
    done = subprocess.run(
        command or python_command(script, *arguments),
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    if done.returncode != 0:
        raise RunFolderError(
            f"a measured process ended with {done.returncode}. Expected 0. It wrote:\n"
            f"{done.stderr[-2000:]}"
        )
    return json.loads(done.stdout.strip().splitlines()[-1])


def memory_rows(config: BenchConfig) -> list[Row]:
    """Measure the resident memory of a process that only steps the environment."""
    found = run_script(MEMORY_SCRIPT, [config.bundle, str(config.memory_steps)])
    samples = [sample / 1e6 for sample in found["samples"]]
    growth, warm_up = samples[-1] - samples[0], max(1, config.memory_steps // 10)
    return [
        Row(
            "memory",
            f"greatest resident memory of a process that takes {config.memory_steps} steps of "
            "PandaHoverRandom-v0 with OpenVINO",
            max(samples),
            "MB",
            target=f"<= {RESIDENT_LIMIT_MB} MB",
            met=max(samples) <= RESIDENT_LIMIT_MB,
            note="; ".join(
                f"{name} was {'' if found[name] else 'not '}imported" for name in IMPORTED
            ),
            details={"samples_mb": samples, "imported": found},
        ),
        Row(
            "memory",
            f"its growth from the first to the last of {len(samples)} samples, after "
            f"{warm_up} steps to warm up",
            growth,
            "MB",
            low=min(samples) - samples[0],
            high=max(samples) - samples[0],
            spread="least and greatest sample less the first",
            target=f"<= {GROWTH_LIMIT_MB} MB",
            met=growth <= GROWTH_LIMIT_MB,
        ),
    ]
