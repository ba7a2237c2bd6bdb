"""Bench rows about what the learned reward costs a training: by each learner, and deferred."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from typing import Any, get_args

from vinoreward_training.bench.rows import (
    Row,
    median_row,
    paired,
    paired_ratios,
    quartiles,
)
from vinoreward_training.bench.seconds import TASKS, rows_of, run_once
from vinoreward_training.bench.trainings import train_seconds
from vinoreward_training.configs import BenchConfig, TrainConfig
from vinoreward_training.configs.policies import Learner
from vinoreward_training.policy.train import SETTINGS
from vinoreward_training.runs.machine import EXTRAS, module_of
from vinoreward_training.tasks.environments import make_env
from vinoreward_training.tasks.many import make_batch, make_envs

TASK = TASKS[0]
OVERHEADS = {"sb3": "<= 1.05 x", "device": "", "skrl": "", "sbx": "<= 1.15 x"}
"""Learner to the bar of what the learned reward may cost it in a batch or deferred."""

ENVIRONMENT = "PandaHover-v0"
TOGETHER = 32
"""Environments in a batch."""
ARMS = {
    "batched": (f"{TOGETHER} environments in one batch, scored on all cores", "batched-oracle"),
    "sbx": (f"{TOGETHER} environments in one batch, --learner sbx", "sbx-oracle"),
    "later": ("scored in a thread while SAC trains", "oracle"),
    "later-service": ("scored in a shared service while SAC trains", "oracle"),
    "learned": ("scored within the step", "oracle"),
}
"""Ways to score, and the training with the oracle's reward that each is compared with."""
WITH_TARGET = {"batched": OVERHEADS["sb3"], "later": OVERHEADS["sb3"], "sbx": OVERHEADS["sbx"]}


def learners_rows(config: BenchConfig) -> list[Row]:
    """Return seconds until solved for each learner that is installed, and what the reward costs."""
    installed = [name for name in learners() if is_installed(name)]
    runs = paired(
        config,
        installed,
        config.seeds,
        lambda name, seed: run_once(config, TASK, seed, "--learner", name),
    )
    rows = [
        row
        for name in installed
        for row in rows_of(config, "learners", TASK, runs[name], "--learner", name)
    ]
    return rows + [_overhead(config, name) for name in installed]


def learners() -> tuple[str, ...]:
    """Return the names that ``--learner`` takes."""
    return get_args(Learner)


def is_installed(learner: str) -> bool:
    """Return whether all is there that a learner needs."""
    return all(importlib.util.find_spec(module_of(one)) for one in EXTRAS.get(learner, ()))


def _overhead(config: BenchConfig, learner: str) -> Row:
    """Time trainings of fixed length with the learned and the oracle reward, in turns."""
    steps = config.overhead_steps
    settled = SETTINGS.of(env=TASK.env, vec_env="batched", learner=learner, timesteps=steps)

    def seconds(kind: str, seed: int) -> Any:
        kwargs: dict[str, Any] = (
            {"backend": "oracle"} if kind == "oracle" else {"bundle": config.bundle}
        )
        env = make_batch(settled.num_envs, settled.env, **kwargs)
        spent = train_seconds(
            env, settled, seed, uncounted=(0, _compiled(settled, settled.num_envs))
        )
        print(f"  {learner}, {kind} reward, seed {seed}: {spent[0]:.1f} s", flush=True)
        return spent

    times = paired(config, ("learned", "oracle"), config.seeds, seconds)
    wall, cpu = (
        {kind: [float(one[at]) for one in found] for kind, found in times.items()}
        for at in range(2)
    )
    return median_row(
        "learners",
        f"training wall time with the learned reward over that with the oracle reward, in a batch, "
        f"{TASK.env}, {steps} steps with --learner {learner} after its preset",
        paired_ratios(*wall.values()),
        "seeds, wall times",
        target=OVERHEADS[learner],
        note=f"by processor time {quartiles(paired_ratios(*cpu.values()))[1]:.3g} x",
        details={"seconds": wall, "processor_seconds": cpu},
    )


def _compiled(settled: TrainConfig, environments: int) -> int:
    """Return steps until the first gradient steps are done, in which networks are compiled."""
    return int(settled.algorithm_kwargs["learning_starts"]) + 2 * environments


def later_rows(config: BenchConfig) -> list[Row]:
    """Compare training wall time with the learned reward, deferred or not, and the oracle's."""
    settled = SETTINGS.of(env=ENVIRONMENT, timesteps=config.overhead_steps)

    def deferred(**env_kwargs: Any) -> Any:
        return make_envs(
            1, ENVIRONMENT, env_kwargs, bundle=config.bundle, processes=False, draw_later=True
        )

    makers: dict[str, Callable[[], Any]] = {
        "later": deferred,
        "later-service": lambda: deferred(service="shared"),
        "batched": lambda: make_batch(TOGETHER, ENVIRONMENT, bundle=config.bundle),
        "batched-oracle": lambda: make_batch(TOGETHER, ENVIRONMENT, backend="oracle"),
        "learned": lambda: make_env(ENVIRONMENT, bundle=config.bundle),
        "oracle": lambda: make_env(ENVIRONMENT, bundle=config.bundle, backend="oracle"),
    }
    compiled = _compiled(settled, TOGETHER)
    if is_installed("sbx"):
        makers |= {"sbx": makers["batched"], "sbx-oracle": makers["batched-oracle"]}

    def seconds(arm: str, seed: int) -> Any:
        sbx = arm.startswith("sbx")
        spent = train_seconds(
            makers[arm](),
            dataclasses.replace(settled, learner="sbx") if sbx else settled,
            seed,
            later=arm.startswith("later"),
            # JAX compiles in the first gradient steps, which are not counted. The steps before are.
            uncounted=(compiled - 3 * TOGETHER, compiled) if sbx else (0, 0),
        )
        print(f"  {arm} seed {seed}: {spent[0]:.1f} s", flush=True)
        return spent

    times = paired(config, makers, config.seeds, seconds)
    wall, cpu, thread = (
        {arm: [float(one[at]) for one in times[arm]] for arm in makers} for at in range(3)
    )

    def ratio(seconds: dict[str, list[float]], arm: str) -> str:
        return f"{quartiles(paired_ratios(seconds[arm], seconds[ARMS[arm][1]]))[1]:.3g} x"

    return [
        median_row(
            "later",
            f"training wall time with the learned reward, {how}, over that with the oracle reward, "
            f"{ENVIRONMENT}, {config.overhead_steps} steps of SAC as vinoreward train runs it",
            paired_ratios(wall[arm], wall[oracle]),
            "seeds, wall times",
            target=WITH_TARGET.get(arm, ""),
            note=f"by processor time {ratio(cpu, arm)}, by that of the learner's thread alone, "
            f"{ratio(thread, arm)}",
            details={"seconds": wall, "processor_seconds": cpu, "thread_seconds": thread},
        )
        for arm, (how, oracle) in ARMS.items()
        if arm in makers
    ]
