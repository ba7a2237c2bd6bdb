"""Bench rows about what the learned reward costs a training: by each learner."""

from __future__ import annotations

from typing import Any

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
from vinoreward_training.tasks.many import make_batch

TASK = TASKS[0]
OVERHEADS: dict[Learner, str] = {"sb3": "<= 1.05 x", "fused": ""}
"""Learner to the bar of what the learned reward may cost it in a batch."""

ENVIRONMENT = "PandaHover-v0"
TOGETHER = 32
"""Environments in a batch."""


def learners_rows(config: BenchConfig) -> list[Row]:
    """Return seconds until solved for each learner of SAC, and what the reward costs."""
    names = learners()
    runs = paired(
        config,
        names,
        config.seeds,
        lambda name, seed: run_once(config, TASK, seed, "--learner", name),
    )
    rows = [
        row
        for name in names
        for row in rows_of(config, "learners", TASK, runs[name], "--learner", name)
    ]
    return rows + [_overhead(config, name) for name in names]


def learners() -> tuple[Learner, ...]:
    """Return what trains SAC."""
    return tuple(OVERHEADS)


def _overhead(config: BenchConfig, learner: Learner) -> Row:
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


def overhead_batched_rows(config: BenchConfig) -> list[Row]:
    """Compare wall time of a training in one batch with the learned and the oracle's reward."""
    settled = SETTINGS.of(env=ENVIRONMENT, timesteps=config.overhead_steps)

    def seconds(arm: str, seed: int) -> Any:
        options: dict[str, Any] = {"bundle": config.bundle}
        if arm == "oracle":
            options = {"backend": "oracle"}
        spent = train_seconds(make_batch(TOGETHER, ENVIRONMENT, **options), settled, seed)
        print(f"  {arm} reward, seed {seed}: {spent[0]:.1f} s", flush=True)
        return spent

    times = paired(config, ("learned", "oracle"), config.seeds, seconds)
    wall, cpu, thread = (
        {arm: [float(one[at]) for one in found] for arm, found in times.items()} for at in range(3)
    )

    return [
        median_row(
            "overhead-batched",
            f"training wall time with the learned reward over that with the oracle reward, "
            f"{TOGETHER} environments in one batch, {ENVIRONMENT}, "
            f"{config.overhead_steps} steps of SAC with --learner sb3",
            paired_ratios(*wall.values()),
            "seeds, wall times",
            target=OVERHEADS["sb3"],
            note=f"by processor time {quartiles(paired_ratios(*cpu.values()))[1]:.3g} x, by that "
            f"of the learner's thread alone, {quartiles(paired_ratios(*thread.values()))[1]:.3g} x",
            details={"seconds": wall, "processor_seconds": cpu, "thread_seconds": thread},
        )
    ]
