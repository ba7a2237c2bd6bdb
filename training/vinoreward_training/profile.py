"""``vinoreward profile``: where the time of a training step goes, and what could be gained."""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from vinoreward.errors import ConfigError
from vinoreward.files import write_json
from vinoreward_training.configs import ProfileConfig
from vinoreward_training.configs.task import RewardedTask
from vinoreward_training.policy.checkpoint import build_model, suited_algorithms
from vinoreward_training.runs.machine import describe_machine
from vinoreward_training.runs.run_folder import RunFolder
from vinoreward_training.runs.settings import Settings
from vinoreward_training.tasks.environments import (
    dependencies_named,
    has_own_reward,
    make_env,
)
from vinoreward_training.tasks.recorded import task_of_bundle

SETTINGS = Settings(ProfileConfig, task=task_of_bundle)
PARTS = ("motion", "render", "preprocess", "infer", "other", "learner")
Step = Callable[[], object]


class Clock:
    """Seconds spent inside wrapped calls, by part; inner calls are taken out of outer ones."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = [0.0]

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the block's time as ``name``, less what blocks inside it count."""
        self._inner.append(0.0)
        began = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - began
            self.seconds[name] = self.seconds.get(name, 0.0) + spent - self._inner.pop()
            self._inner[-1] += spent

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function``, counted as ``name``."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return function(*args, **kwargs)

        return call

    def take(self) -> dict[str, float]:
        """Return the seconds since the last call and start again."""
        seconds, self.seconds = self.seconds, {}
        return seconds


class Stepper:
    """Steps an environment with random actions, over and over; resets are part of the call."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self.env = env
        self._over = False
        env.action_space.seed(0)
        env.reset(seed=0)

    def __call__(self) -> None:
        """Take one step, after a reset where the last one ended the episode."""
        if self._over:
            self.env.reset()
        _, _, terminated, truncated, _ = self.env.step(self.env.action_space.sample())
        self._over = terminated or truncated


def amdahl_bound(total: float, part: float) -> float:
    """Return how many times faster ``total`` gets if ``part`` of it takes no time; may be inf."""
    return float("inf") if part == total else total / (total - part)


def shares(samples: list[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return each part's mean and quartiles (seconds a step) and share of the whole."""
    means = {name: statistics.fmean(s.get(name, 0.0) for s in samples) for name in PARTS}
    total = sum(means.values())
    table = {}
    for name, mean in means.items():
        values = [sample.get(name, 0.0) for sample in samples]
        low, median, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
        share = mean / total if total else 0.0
        table[name] = {"mean": mean, "low": low, "median": median, "high": high, "share": share}
    return table


def measured(config: ProfileConfig, learn: Step | None = None) -> list[Mapping[str, float]]:
    """Step an environment; return the seconds of each part, step by step.

    Ours are timed inside; others are scored by the bundle, as in training. Where the images are
    in the observation, to draw them is part of the motion.
    """
    from tqdm import tqdm

    clock = Clock()
    own_reward = has_own_reward(config.env)
    if config.bundle is None and not own_reward:
        raise ConfigError(
            field="bundle", expected=f"a classifier, as {config.env} has none of its own"
        )
    with contextlib.ExitStack() as stack:
        env: Any = stack.enter_context(contextlib.closing(make_env(_task(config))))
        with_reward = env.has_wrapper_attr("classifier")  # the oracle has none
        classifier = env.get_wrapper_attr("classifier") if with_reward else None
        if own_reward:
            timed = env.unwrapped.scene.batch
            parts = {"home": "motion", "move": "motion", "images": "render"}
        else:
            timed = env.unwrapped
            parts = {"reset": "motion", "step": "motion", "render": "render"}
        for name, part in parts.items():
            setattr(timed, name, clock.timed(part, getattr(timed, name)))
        step: Step = Stepper(env)

        if classifier is not None:
            for backend in classifier.backends:  # Built here, so that loading is in no step.
                backend.infer_prepared = clock.timed("infer", backend.infer_prepared)
            classifier.prepare = clock.timed("preprocess", classifier.prepare)
        for _ in range(3):
            step()
        clock.take()
        samples: list[Mapping[str, float]] = []
        for _ in tqdm(range(config.steps), desc="profile", unit="step", disable=None):
            with clock.part("other"):
                step()
            if learn is not None:
                with clock.part("learner"):
                    learn()
            samples.append(clock.take())
        return samples


def _task(config: ProfileConfig) -> RewardedTask:
    """Return what is stepped; only times matter here, not the claims."""
    return RewardedTask(
        env=config.env,
        env_kwargs=config.env_kwargs,
        backend=config.backend,
        bundle=config.bundle,
        precision=config.precision,
        accept_foreign_images=config.bundle is not None,
    )


@contextlib.contextmanager
def learner_step(config: ProfileConfig) -> Iterator[Callable[[], object]]:
    """Yield a function that takes one gradient step of SAC, or of DQN for discrete actions."""
    import torch

    torch.set_num_threads(1)
    # The cheapest reward fills the buffer, as the reward does not change the time.
    backend = "oracle" if has_own_reward(config.env) else config.backend
    task = RewardedTask(env=config.env, env_kwargs=config.env_kwargs, backend=backend)
    with contextlib.closing(make_env(task)) as env:
        name = suited_algorithms(env.action_space)[0]
        if name == "PPO":
            raise ConfigError(
                field="learner",
                value=True,
                expected=f"actions of SAC or DQN, not {env.action_space}, to time a learner's step",
                remedy="add `learner=False` to time the rest",
            )
        model: Any = build_model(name, env, {}, seed=0, replay_size=500)
        model.learn(300)
        yield lambda: model.train(gradient_steps=1, batch_size=model.batch_size)


def run(config: ProfileConfig) -> int:
    """Measure, print the table and the bound, write JSON; return 0."""
    with RunFolder(config.out, config, resume=True) as folder:
        with (
            dependencies_named(config.env),
            learner_step(config) if config.learner else contextlib.nullcontext() as learn,
        ):
            table = shares(measured(config, learn))
        total = sum(row["mean"] for row in table.values())
        bound = amdahl_bound(total, table["infer"]["mean"])
        print(f"{'part':<12}{'ms/step':>10}{'quartiles':>20}{'share':>9}")
        for name, row in table.items():
            spread = f"{row['low'] * 1e3:.2f} to {row['high'] * 1e3:.2f}"
            print(f"{name:<12}{row['mean'] * 1e3:>10.2f}{spread:>20}{row['share']:>8.1%}")
        print(f"{'all':<12}{total * 1e3:>10.2f}")
        print(
            f"A backend that takes no time would make a training step at most {bound:.2f} times "
            "faster."
        )
        record = {"machine": describe_machine(), "parts_seconds": table, "total_seconds": total}
        finite = bound if np.isfinite(bound) else None
        write_json(folder / "profile.json", {**record, "steps": config.steps, "bound": finite})
    print(config.out / "profile.json")
    return 0
