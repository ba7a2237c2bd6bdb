"""Whole trainings with compressed actors, paired by seed: each is a preset of vinoreward actors.

``--task cartpole``: wall time from the first update until the actors' returns reach the preset's
target. The others: wall time per step of a fixed number of steps.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness import TRAININGS, Benchmark, Row, Value, median, turns
from vinoreward.errors import ConfigError
from vinoreward_actors.actor_learner.trainer import ActorLearner, Progress
from vinoreward_actors.command.build import Parts, build
from vinoreward_actors.command.config import ActorsConfig
from vinoreward_actors.command.settings import SETTINGS

EAGER = "fp32"
ARMS = {"int8": "int8", "fp32-8-environments": "eight environments, fp32"}
"""End of a preset's name to what it is called; batching is compression's strongest competitor."""
TASKS = {
    "cartpole": ("CartPole-v0 to 195, V-trace, 3×2048", "actorq/cartpole-{}"),
    "pong": ("Pong, V-trace, Original, a step", "accerl/pong-{}"),
    "dqn-1": ("DQN, CartPole-v0, 1 sample, a step", "actorq/cartpole-dqn-{}-spi1"),
    "dqn-16": ("… 16 samples per insert", "actorq/cartpole-dqn-{}"),
    "d4pg-1": ("D4PG, cartpole-balance, 1 sample, a step", "actorq/cartpole-balance-{}-spi1"),
    "d4pg-16": ("… 16 samples per insert", "actorq/cartpole-balance-{}"),
}  # fmt: skip
"""Name to what is trained and its preset."""
PONG = {EAGER: "original", "int8": "int8", "fp32-8-environments": "original-8-environments"}
WINDOW = 20
"""Last episodes of the actors: their mean return is compared with the target."""
ROWS = {
    f"actor training {task} {arm}": Row(
        f"{what}: eager over {said}", "≥3×" if (task, arm) == ("cartpole", "int8") else ""
    )
    for task, (what, _) in TASKS.items()
    for arm, said in ARMS.items()
}


def preset_of(task: str, arm: str) -> str:
    """Return the preset of an arm."""
    return TASKS[task][1].format(PONG[arm] if task == "pong" else arm)


@dataclass
class Watch:
    """Progress callback of a training: stops at the target, and says when it began."""

    trainer: ActorLearner
    parts: Parts
    target: float | None
    began: float | None = None
    warm: tuple[float, int] | None = None
    """Time and step from which everything was running."""
    reached: float | None = None

    def __call__(self, progress: Progress) -> bool:
        """Note the time; return whether the target is reached."""
        now = time.monotonic()
        # Starting processes and importing torch is no part of the comparison.
        self.began = self.began or now
        if self.warm is None and self.parts.warm(progress):
            self.warm = (now, progress.steps)
        recent = self.trainer.recent_returns[-WINDOW:]
        full = self.target is not None and len(recent) == WINDOW
        if full and statistics.fmean(recent) >= (self.target or 0.0):
            self.reached = now
        return self.reached is not None


def trained(config: ActorsConfig) -> float | None:
    """Train; return seconds to the target (None: not reached), or without one those of a step."""
    import torch

    torch.set_num_threads(1)
    # Evaluations beside the training would take part of its processors, which are timed.
    parts = build(dataclasses.replace(config, evaluate_every=0))
    trainer = parts.trainer(config, None)
    watch = Watch(trainer, parts, config.target)
    steps = trainer.learn(config.steps, watch).steps
    ended = watch.reached or time.monotonic()
    if watch.began is None or watch.warm is None:
        raise ConfigError(
            f"{config.task} was not learned from in {config.steps} steps. Expected enough for a "
            "first update; give it more --steps."
        )
    if config.target is not None:
        return None if watch.reached is None else ended - watch.began
    since, at = watch.warm
    return (ended - since) / (steps - at)


def measure(options: Any) -> Iterator[tuple[str, Value]]:
    """Train every arm with every seed, in turns."""
    spent: dict[str, list[float | None]] = {arm: [] for arm in (EAGER, *ARMS)}
    for index, arm in turns(spent, options.seeds):
        seed = options.first_seed + index
        config = SETTINGS.of(preset=preset_of(options.task, arm), seed=seed)
        if options.task != "cartpole":
            config = dataclasses.replace(config, steps=options.steps, target=None, actors=1)
        seconds = trained(config)
        print(f"  {arm}, seed {seed}: {seconds and f'{seconds:.3g} s'}", flush=True)
        spent[arm].append(seconds)
    for arm in ARMS:
        pairs = [(a, b) for a, b in zip(spent[EAGER], spent[arm], strict=True) if a and b]
        value = median([a / b for a, b in pairs], "×") if pairs else Value("not reached", None)
        if len(pairs) < options.seeds:
            value = Value(f"{value.figure}, {len(pairs)} of {options.seeds} seeds", None)
        yield f"actor training {options.task} {arm}", dataclasses.replace(value, details=spent)


BENCH = Benchmark(
    "Compressed actors",
    ROWS,
    measure,
    task=tuple(TASKS),
    seeds=3,
    steps=3000,
    first_seed=TRAININGS,
)

if __name__ == "__main__":
    sys.exit(BENCH.main())
