"""Evaluation of a policy: claimed and true success with exact intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ConfigError
from vinoreward.rewards.calibration import clopper_pearson
from vinoreward.wrappers.true_success import Truth, claim_of

if TYPE_CHECKING:
    from vinoreward_training.sb3 import BatchedVecEnv


class Policy(Protocol):
    """Chooses actions: an SB3 model, or anything with its ``predict``."""

    def predict(self, observation: Any, *, deterministic: bool = False) -> tuple[Any, Any]:
        """Return the action for one observation, and an unused state."""
        ...  # pragma: no cover


@dataclass(frozen=True)
class Rate:
    """``successes`` of ``trials`` with its Clopper-Pearson interval."""

    successes: int
    trials: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """The observed share, 0 to 1."""
        return self.successes / self.trials

    def __str__(self) -> str:
        return (
            f"{self.successes}/{self.trials} = {self.value:.1%} "
            f"(95 % interval {self.low:.1%} to {self.high:.1%})"
        )


@dataclass(frozen=True)
class Evaluation:
    """Results of a policy over some episodes."""

    claimed: Rate | None
    """Episodes whose last step the classifier claims as a success; None without a classifier."""
    true: Rate | None
    """Episodes whose last step is a true success; None if the truth is unknown."""
    mean_return: float
    mean_length: float
    truth_key: str | None = None
    """Key of ``info`` that the truth was read from."""

    @property
    def cheats(self) -> bool:
        """Whether false claims significantly exceed 5 % of the episodes, as for the alarm."""
        if self.claimed is None or self.true is None:
            return False
        false = max(0, self.claimed.successes - self.true.successes)
        return clopper_pearson(false, self.true.trials, 0.95, "lower")[0] > 0.05

    def lines(self) -> list[str]:
        """Return both rates as printed lines, with the key of ``info`` that gave the true one."""
        where = f" (info[{self.truth_key!r}])" if self.true is not None and self.truth_key else ""
        return [
            f"claimed success: {self.claimed or 'not known'}",
            f"true success:    {self.true or 'not known (see --truth)'}{where}",
        ]

    def rates(self) -> list[dict[str, object]]:
        """Return both rates as a report's table."""
        return [
            rate_row("claimed by the classifier", self.claimed),
            rate_row("true, by the simulator", self.true),
        ]


@dataclass(frozen=True)
class EvalStep:
    """One state of an evaluated episode."""

    episode: int
    step: int
    """0 right after the reset."""
    reward: float
    info: Mapping[str, Any]
    last: bool
    claimed: bool | None = None
    """Success according to the classifier; None without one."""
    true: bool | None = None
    """True success; None if it is unknown."""


def rate(successes: int, trials: int, confidence: float = 0.95) -> Rate:
    """Return a rate with its two-sided Clopper-Pearson interval."""
    low, high = clopper_pearson(successes, trials, confidence)
    return Rate(successes, trials, float(low), float(high))


def rate_of(flags: NDArray[np.bool_] | None) -> Rate | None:
    """Return the rate of true flags; None if there are no flags."""
    return None if flags is None else rate(int(flags.sum()), len(flags))


def evaluate(
    model: Policy,
    env: gym.Env[Any, Any],
    episodes: int,
    seed: int,
    watch: Callable[[EvalStep], None] | None = None,
    *,
    truth: Truth | None = None,
    ended: Callable[[int], None] | None = None,
) -> Evaluation:
    """Run the deterministic policy for ``episodes`` episodes, seeded ``seed``, ``seed + 1``, ….

    The last step of an episode decides about its success: an agent that reached the goal and left
    it did not succeed. ``watch`` is called after each reset and step, e.g. to film; ``ended`` after
    each episode, with the number of episodes so far.
    """
    if episodes < 1:
        raise ConfigError(
            f"found {episodes} evaluation episodes. Expected at least 1; ask for more."
        )
    truth = Truth() if truth is None else truth
    found: list[_Ended] = []
    for episode in range(episodes):
        observation, info = env.reset(seed=seed + episode)
        if watch is not None:
            # After a reset only a known key is read: is_success may mean something else there.
            known = truth.key is not None or "true_success" in info
            started = truth(info, last=False) if known else None
            watch(EvalStep(episode, 0, 0.0, info, False, None, started))
        total, steps, over = 0.0, 0, False
        while not over:
            action, _ = model.predict(observation, deterministic=True)
            action = np.asarray(action)[()]  # a scalar for Discrete, as some environments hash it
            observation, reward, terminated, truncated, info = env.step(action)
            over = bool(terminated or truncated)
            total += float(reward)
            steps += 1
            if watch is not None:
                success = claim_of(info), truth(info, last=over)
                watch(EvalStep(episode, steps, float(reward), info, over, *success))
        found.append(_Ended(claim_of(info), truth(info), total, steps))
        if ended is not None:
            ended(len(found))
    return _evaluation(found, truth)


def evaluate_batch(
    model: Policy,
    env: BatchedVecEnv,
    episodes: int,
    seed: int,
    *,
    truth: Truth | None = None,
    ended: Callable[[int], None] | None = None,
) -> Evaluation:
    """Evaluate as :func:`evaluate`, over the same episodes, in a batch of environments.

    An environment whose episode has ended starts the next episode that has not been started.
    """
    truth = Truth() if truth is None else truth
    found: dict[int, _Ended] = {}
    numbers = np.arange(env.num_envs)
    upcoming = env.num_envs
    observations = env.reset_where(np.ones(env.num_envs, np.bool_), (seed + numbers).tolist())
    while len(found) < episodes:
        actions, _ = model.predict(observations, deterministic=True)
        observations, _, dones, infos = env.step(actions)
        if not dones.any():
            continue
        for i in np.flatnonzero(dones).tolist():
            recorded = infos[i]["episode"]
            end = _Ended(claim_of(infos[i]), truth(infos[i]), recorded["r"], recorded["l"])
            if numbers[i] < episodes:
                found[int(numbers[i])] = end
            numbers[i], upcoming = upcoming, upcoming + 1
        observations = env.reset_where(dones, (seed + numbers).tolist())
        if ended is not None:
            ended(len(found))
    return _evaluation([found[episode] for episode in range(episodes)], truth)


@dataclass(frozen=True)
class _Ended:
    """How an episode ended."""

    claimed: bool | None
    true: bool | None
    total: float
    """Undiscounted return."""
    steps: int


def _evaluation(ended: Sequence[_Ended], truth: Truth) -> Evaluation:
    return Evaluation(
        claimed=_rate_of_known([one.claimed for one in ended]),
        true=_rate_of_known([one.true for one in ended]),
        mean_return=float(np.mean([one.total for one in ended])),
        mean_length=float(np.mean([one.steps for one in ended])),
        truth_key=truth.key,
    )


def _rate_of_known(flags: list[bool | None]) -> Rate | None:
    known = [flag for flag in flags if flag is not None]
    return rate(sum(known), len(known)) if len(known) == len(flags) else None


def rate_row(name: str, result: Rate | None) -> dict[str, object]:
    """Return a row of a report's table."""
    if result is None:
        return {"success": name, "episodes": "not known to this environment"}
    return {
        "success": name,
        "episodes": f"{result.successes}/{result.trials}",
        "rate": f"{result.value:.1%}",
        "95 % interval": f"{result.low:.1%} to {result.high:.1%}",
    }
