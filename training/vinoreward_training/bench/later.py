"""Bench row about deferred rewards: what the learned reward costs a training with and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vinoreward_training.bench.rows import Row, median_row, paired, paired_ratios, quartiles
from vinoreward_training.bench.trainings import train_seconds
from vinoreward_training.configs import BenchConfig
from vinoreward_training.policy.train import SETTINGS
from vinoreward_training.tasks.environments import make_env
from vinoreward_training.tasks.many import make_batch, make_envs

ENVIRONMENT = "PandaHover-v0"
TARGET = "<= 1.05 x"
TOGETHER = 32
"""Environments in a batch."""
ARMS = {
    "batched": (f"{TOGETHER} environments in one batch, scored on all cores", "batched-oracle"),
    "later": ("scored in a thread while SAC trains", "oracle"),
    "later-service": ("scored in a shared service while SAC trains", "oracle"),
    "learned": ("scored within the step", "oracle"),
}
"""Ways to score, and the training with the oracle's reward that each is compared with."""
WITH_TARGET = ("batched", "later")


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

    def seconds(arm: str, seed: int) -> Any:
        spent = train_seconds(makers[arm](), settled, seed, later=arm.startswith("later"))
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
            target=TARGET if arm in WITH_TARGET else "",
            note=f"by processor time {ratio(cpu, arm)}, by that of the learner's thread alone, "
            f"{ratio(thread, arm)}",
            details={"seconds": wall, "processor_seconds": cpu, "thread_seconds": thread},
        )
        for arm, (how, oracle) in ARMS.items()
    ]
