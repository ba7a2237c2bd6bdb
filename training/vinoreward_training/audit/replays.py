"""What an audit can tell of an environment that offers no interventions.

Where resets differ, the actions that led to a claim are played again from another start: a claim
that depends on what the reset put there must go. And it tells how much of the log-odds the robot's
own state explains: all of it, if the classifier looks at the robot alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError
from vinoreward.rewards.calibration import clopper_pearson
from vinoreward.rewards.classifier import Classifier
from vinoreward.wrappers.true_success import Truth
from vinoreward_training.audit.battery import Battery, look
from vinoreward_training.audit.causes import LEAST_CLAIMS, RESTORED, STAY

REPLAYS = 50
"""Claims whose actions are played again."""
STEPS = 10_000
"""Steps to play for them."""
FRAMES = 1500
"""Steps of which log-odds and robot state are compared, at most."""
LEAST_FRAMES = 200
MORE = 0.5
"""Share by which the robot's state may explain more of the log-odds than of the truth."""
_NEIGHBOURS = 10
_LARGEST = 10.0
"""Log-odds beyond this say no more."""

Floats = npt.NDArray[np.float64]


@dataclass
class Replays:
    """What came of the same actions from another start."""

    claims: int = 0
    """Claims met."""
    steps: int = 0
    replayed: int = 0
    """Those of them whose actions could be played again, from a start that looks otherwise."""
    stay: int = 0
    """Of these, claimed again."""
    failures: int = 0
    """Of these, no success by the environment's own truth."""
    false: int = 0
    """Failures that are claimed."""
    alike: int = 0
    """Claims whose other start looked the same, so that playing again tells nothing."""
    told: bool = False
    """Whether the environment tells the truth."""
    robot: tuple[float, float] | None = None
    """Shares of the log-odds and of the truth that the robot's state explains; the truth's is NaN
    where it is not known. None without a robot's state, or with too few steps."""
    frames: list[tuple[Floats, float, bool | None, int]] = field(default_factory=list, repr=False)
    """Robot's state, log-odds, truth and number of the episode."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        values = dataclasses.asdict(dataclasses.replace(self, frames=[]))
        del values["frames"]
        return values

    def faults(self) -> list[str]:
        """Return a sentence for each fault."""
        found = []
        if clopper_pearson(self.false, self.failures, 0.95, "lower")[0] > STAY:
            found.append(
                f"of {self.failures} failures, met by playing a claim's actions again from another "
                f"start, it claims {self.false}"
            )
        if self.robot is not None and self.robot[0] - self.robot[1] > MORE:
            of_claims, of_truth = self.robot
            found.append(
                f"the robot's own state explains {of_claims:.0%} of the log-odds, and "
                f"{of_truth:.0%} of the truth"
            )
        return found

    @property
    def note(self) -> str:
        """How much this says."""
        parts = []
        if self.replayed < LEAST_CLAIMS:
            parts.append(
                f"The actions of {self.replayed} claims were played again from another start, too "
                f"few to say anything ({self.claims} claims in {self.steps} steps"
                + (f"; {self.alike} starts looked alike)." if self.alike else ").")
            )
        else:
            known = (
                f"; {self.failures} of these were failures, {self.false} of them claimed"
                if self.told
                else "; the environment does not tell which of them are true"
            )
            parts.append(
                f"Of {self.replayed} claims {self.stay} stay when the same actions are played from "
                f"another start{known}."
            )
        if self.robot is not None:
            of_claims, of_truth = self.robot
            truth = "" if np.isnan(of_truth) else f", and {of_truth:.0%} of the truth"
            parts.append(f"The robot's state explains {of_claims:.0%} of the log-odds{truth}.")
        return " ".join(parts)


def play_again(
    classifier: Classifier,
    env: Any,
    image: Callable[[Any], npt.NDArray[np.uint8]],
    act: Callable[[Any], Any] | None,
    found: Replays,
    fooled: Battery,
    *,
    seed: int,
    robot: Sequence[int] = (),
    truth: Truth | None = None,
    claims: int = REPLAYS,
    steps: int = STEPS,
) -> Iterator[str]:
    """Play until there are enough claims; play each one's actions from another start.

    Args:
        classifier: as it will judge.
        env: the environment.
        image: takes its image, given an observation.
        act: plays, given an observation; None plays at random.
        found: takes the counts.
        fooled: takes images of false claims.
        seed: of episodes and actions.
        robot: numbers of the flattened observation that are the robot's own state.
        truth: reads the truth from ``info``; None: from the usual keys.
        claims: to play again.
        steps: to play at most.

    Yields:
        What is done next.

    Raises:
        ConfigError: a number that the observation does not have.
    """
    truth = Truth() if truth is None else truth
    random = np.random.default_rng([seed, 0x5A3E])
    env.action_space.seed(int(random.integers(2**31)))
    episode = 0
    while found.replayed < claims and found.steps < steps:
        yield f"played again: {found.replayed} of {claims}"
        episode += 1
        start = int(random.integers(2**31))
        observation, _ = env.reset(seed=start)
        first, actions, ended = image(observation), [], False
        while not ended and found.steps < steps:
            action = env.action_space.sample() if act is None else act(observation)
            actions.append(action)
            observation, _, terminated, truncated, info = env.step(action)
            found.steps += 1
            ended = bool(terminated or truncated)
            seen = image(observation)
            judged = look(classifier, seen[None])
            if robot:
                _note(found, classifier, env, observation, seen, truth(info), episode, robot)
            if judged.paid[0]:
                found.claims += 1
                _again(classifier, env, image, actions, first, found, fooled, truth, random)
                break  # the frames of one episode resemble each other
    if robot and len(found.frames) >= LEAST_FRAMES:
        found.robot = _shares(found.frames)


def _again(
    classifier: Classifier,
    env: Any,
    take: Callable[[Any], npt.NDArray[np.uint8]],
    actions: Sequence[Any],
    first: npt.NDArray[np.uint8],
    found: Replays,
    fooled: Battery,
    truth: Truth,
    random: np.random.Generator,
) -> None:
    observation, _ = env.reset(seed=int(random.integers(2**31)))
    if float(np.abs(first.astype(np.float64) - take(observation)).mean()) <= RESTORED:
        found.alike += 1
        return
    info: dict[str, Any] = {}
    for number, action in enumerate(actions, 1):
        observation, _, terminated, truncated, info = env.step(action)
        found.steps += 1
        if (terminated or truncated) and number < len(actions):
            return
    image = take(observation)
    judged, true = look(classifier, image[None]), truth(info)
    found.replayed += 1
    claimed = bool(judged.paid[0])
    found.stay += claimed
    if true is not None:
        found.told = True
        found.failures += not true
        found.false += claimed and not true
        if claimed and not true:
            fooled.show(image[None], judged.probability, "same actions from another start")


def _note(
    found: Replays,
    classifier: Classifier,
    env: Any,
    observation: Any,
    image: npt.NDArray[np.uint8],
    true: bool | None,
    episode: int,
    robot: Sequence[int],
) -> None:
    from gymnasium.spaces.utils import flatten

    if len(found.frames) >= FRAMES:
        return
    numbers = np.asarray(flatten(env.observation_space, observation), np.float64)
    if max(robot) >= len(numbers) or min(robot) < 0:
        raise ConfigError(
            f"--robot-state is {' '.join(map(str, robot))}, and an observation has {len(numbers)} "
            "numbers. Expected those of the robot's own state, from 0."
        )
    log_odds = float(np.clip(classifier.predict(image[None]).log_odds[0], -_LARGEST, _LARGEST))
    found.frames.append((numbers[list(robot)], log_odds, true, episode))


def _shares(frames: Sequence[tuple[Floats, float, bool | None, int]]) -> tuple[float, float]:
    """Return which shares of log-odds and truth the robot's state explains."""
    states = np.stack([one for one, *_ in frames])
    episodes = np.array([episode for *_, episode in frames])
    log_odds = np.array([one for _, one, *_ in frames])
    truths = [true for _, _, true, _ in frames]
    of_truth = float("nan")
    if all(true is not None for true in truths):
        of_truth = explained(states, np.array(truths, np.float64), episodes)
    return explained(states, log_odds, episodes), of_truth


def explained(states: Floats, values: Floats, episodes: npt.NDArray[np.int64]) -> float:
    """Return the share of the variance of values (N,) that states (N, K) explain, 0 to 1.

    R² of the mean of the nearest neighbours from other episodes; 0 where the values do not vary.
    """
    from scipy.spatial import KDTree

    scaled = states / np.maximum(states.std(axis=0), 1e-9)
    halves = np.unique(episodes, return_inverse=True)[1] % 2
    spread = float(values.var())
    if spread <= 1e-12 or len(np.unique(halves)) < 2:
        return 0.0
    errors = np.zeros(len(values))
    for half in (0, 1):
        known, asked = halves != half, halves == half
        count = min(_NEIGHBOURS, int(known.sum()))
        _, near = KDTree(scaled[known]).query(scaled[asked], k=count)
        guess = values[known][near.reshape(int(asked.sum()), count)].mean(axis=1)
        errors[asked] = (values[asked] - guess) ** 2
    return float(np.clip(1.0 - errors.mean() / spread, 0.0, 1.0))
