"""Paired evaluation: full and compressed policy play the same episodes, without exploring."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from vinoreward.actor_learner.actor_network import Refused
from vinoreward.actor_learner.environments import failures_told
from vinoreward.actor_learner.executors.registry import make_executor
from vinoreward.actor_learner.spaces import in_space
from vinoreward.closing import Closing
from vinoreward.errors import ConfigError, OutputError
from vinoreward.monitoring.returns import PairedReturns
from vinoreward.policies.distributions import Exploration, act
from vinoreward.policies.policy import Policy
from vinoreward.policies.spec import PolicySpec
from vinoreward_training.actor_tasks import make_task
from vinoreward_training.evaluate_policy import Rate, rate

FIRST_SEED = 1_000_000
"""Far from those of training."""
FINAL_SEED = 2_000_000
WIDTH = 10
"""Environments that are played at once, at most."""


@dataclass(frozen=True)
class Played:
    """What a policy did.

    Attributes:
        version: the learner's that it was made of.
        returns: (S,) undiscounted, in the order of the seeds; the game's score where there is one.
        lengths: (S,) steps.
        claimed: how often the reward's own judgement called the last state a success, None if it
            says nothing.
        true: how often the simulator did, None likewise.
    """

    version: int
    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    claimed: Rate | None
    true: Rate | None

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(self.returns.mean())

    @property
    def error(self) -> float:
        """Standard error of the mean return."""
        return float(self.returns.std(ddof=1) / np.sqrt(len(self.returns)))


@dataclass(frozen=True)
class Pair:
    """An evaluation.

    Attributes:
        seeds: of the episodes.
        full: in full precision.
        compressed: the compressed one on the same seeds, None if there was none that could act.
        refused: why it could not, in words; empty if it could.
    """

    seeds: tuple[int, ...]
    full: Played
    compressed: Played | None
    refused: str = ""

    @property
    def returns(self) -> PairedReturns | None:
        """For a monitor: only if both are of the same version, so that only compression differs."""
        if self.compressed is None or self.compressed.version != self.full.version:
            return None
        return PairedReturns(self.full.returns, self.compressed.returns)


def executor_of(executor: str) -> str:
    """Return what plays full-precision policies of actors with this executor."""
    # Eager PyTorch gives the same outputs, later.
    return "openvino" if executor.startswith("torch") else executor


class Evaluator(Closing):
    """Plays episodes with policies; keeps its environments.

    Args:
        task: see :func:`~vinoreward_training.actor_tasks.make_task`.
        options: of the environment.
        executor: of full-precision policies; compressed ones say theirs.
    """

    def __init__(self, task: str, options: Mapping[str, Any], executor: str) -> None:
        self._task, self._options = task, dict(options)
        self._executor = executor_of(executor)
        self._envs: list[gym.Env[Any, Any]] = []

    def pair(self, full: Policy, compressed: Policy | None, seeds: Sequence[int]) -> Pair:
        """Let both policies play the episodes of the seeds.

        Raises:
            ConfigError: an environment fails.
        """
        played = self.play(full, seeds, self._executor)
        if compressed is None:
            return Pair(tuple(seeds), played, None)
        try:
            return Pair(tuple(seeds), played, self.play(compressed, seeds, compressed.engine))
        except OutputError as error:
            # Training goes on with the full one, as actors do.
            found = Refused.of(compressed.version, error)
            return Pair(tuple(seeds), played, None, found.why)

    def play(self, policy: Policy, seeds: Sequence[int], engine: str) -> Played:
        """Play one episode for each seed, a few side by side, with the best actions."""
        width = min(WIDTH, len(seeds))
        while len(self._envs) < width:
            self._envs.append(make_task(self._task, **self._options))
        rows: list[_Row] = []
        with make_executor(engine, width) as executor:
            # The compiled form is for the actors' batch.
            executor.refresh(policy.replace(blob=None))
            for start in range(0, len(seeds), width):
                rows += self._block(policy, executor.infer, seeds[start : start + width], width)
        return Played(
            policy.version,
            np.array([row.reward if row.score is None else row.score for row in rows]),
            np.array([row.length for row in rows]),
            _rate([row.claimed for row in rows]),
            _rate([row.true for row in rows]),
        )

    def _block(self, policy: Policy, infer: Any, seeds: Sequence[int], width: int) -> list[_Row]:
        spec = policy.spec
        envs = self._envs[: len(seeds)]
        # Rows without an episode are computed and ignored: the batch has one size.
        observations = np.zeros((width, *spec.observation_shape), dtype=spec.observation_dtype)
        for at, (env, seed) in enumerate(zip(envs, seeds, strict=True)):
            observations[at] = self._row(spec, self._asked(env.reset, seed=seed)[0])
        rows = [_Row() for _ in envs]
        random = np.random.default_rng(0)
        while not all(row.over for row in rows):
            acted = act(spec, infer(observations), random, Exploration(greedy=True)).actions
            for at, (env, row) in enumerate(zip(envs, rows, strict=True)):
                if row.over:
                    continue
                # As actors give it: with normalise_actions=False the limits are the task's own.
                action = in_space(acted[at], env.action_space)
                stepped = self._asked(env.step, int(action) if spec.discrete else action)
                observation, reward, terminated, truncated, info = stepped
                observations[at] = self._row(spec, observation)
                row.add(float(reward), bool(terminated or truncated), info)
        return rows

    def _asked(self, ask: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Return what an environment answers; say whose fault it is where it fails."""
        with failures_told(
            f"an environment of {self._task} failed in an evaluation",
            "one that plays every episode; mend it and go on with --resume",
        ):
            return ask(*arguments, **options)

    def _row(self, spec: PolicySpec, observation: Any) -> Any:
        if np.shape(observation) != spec.observation_shape:
            raise ConfigError(
                f"an environment of {self._task} gave an observation of {np.shape(observation)} "
                f"in an evaluation. Expected {spec.observation_shape}; mend it and go on with "
                "--resume."
            )
        return observation

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            env.close()
        self._envs = []


@dataclass
class _Row:
    """One episode."""

    reward: float = 0.0
    length: int = 0
    over: bool = False
    claimed: bool | None = None
    true: bool | None = None
    score: float | None = None

    def add(self, reward: float, over: bool, info: Mapping[str, Any]) -> None:
        self.reward += reward
        self.length += 1
        self.over = over
        if over:
            self.claimed = bool(info["is_success"]) if "is_success" in info else None
            self.true = bool(info["true_success"]) if "true_success" in info else None
            self.score = float(info["score"]) if "score" in info else None


def _rate(flags: Sequence[bool | None]) -> Rate | None:
    known = [flag for flag in flags if flag is not None]
    return rate(sum(known), len(known)) if len(known) == len(flags) else None
