"""What the three forms of LearnedReward share: their arguments, classifier and scores."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ConfigError
from vinoreward.rewards.classifier import Classifier
from vinoreward.rewards.core import RewardCore, RewardMode, RewardOptions
from vinoreward.rewards.detector import Guard
from vinoreward.wrappers.layers import AnyEnv, Form, ImageSource
from vinoreward.wrappers.sources import AnyBundle, PictureSource, located, recorded

Found = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]
"""``(num_envs,)`` each: probability and log-odds of last pictures, probability of first ones."""


class LearnedRewardBase(Form[AnyEnv]):
    """Base of the forms of :class:`~vinoreward.LearnedReward`, which explains the arguments."""

    _default_source: ClassVar[str] = "render"

    def __init__(
        self,
        env: AnyEnv,
        bundle: AnyBundle,
        *,
        backend: str = "openvino",
        device: str = "CPU",
        precision: str = "auto",
        threads: int = 1,
        image_source: ImageSource | None = None,
        success_reward: float = 1.0,
        step_reward: float = 0.0,
        env_reward_weight: float = 0.0,
        reward_mode: RewardMode = "sparse",
        success_threshold: float | None = None,
        success_hold_steps: int = 1,
        guard: Guard | None = None,
        terminate_on_success: bool = True,
        gamma: float = 0.99,
        hold_in_observation: bool = False,
    ) -> None:
        options = RewardOptions(
            success_reward=success_reward,
            step_reward=step_reward,
            env_reward_weight=env_reward_weight,
            reward_mode=reward_mode,
            success_hold_steps=success_hold_steps,
            guard=guard,
            terminate_on_success=terminate_on_success,
            gamma=gamma,
            hold_in_observation=hold_in_observation,
        )
        source = self._default_source if image_source is None else image_source
        self._classifier = Classifier(
            located(bundle),
            backend=backend,
            device=device,
            # INT8 is checked for its decisions at the threshold and nowhere else.
            precision="fp32" if precision == "auto" and reward_mode != "sparse" else precision,
            threads=threads,
            threshold=success_threshold,
        )
        arguments = {
            "bundle": recorded(bundle, self._classifier.bundle),
            "backend": backend,
            "device": device,
            "precision": precision,
            "threads": threads,
            "image_source": source,
            "success_threshold": None if success_threshold is None else self._classifier.threshold,
            **{name: getattr(options, name) for name in options.__dataclass_fields__},
        }
        inside = self._inside(env)
        self._core = RewardCore(options, self._classifier.threshold, inside.num_envs)
        self._enclose(env, source, arguments)
        self._source = PictureSource(source, inside, self._classifier.bundle)
        if hold_in_observation:
            self._show(_with_hold(inside.space, success_hold_steps))

    @property
    def classifier(self) -> Classifier:
        """What scores the pictures. It loads at the first one."""
        return self._classifier

    def _score(
        self,
        observations: Any,
        ends: NDArray[np.bool_],
        begins: NDArray[np.bool_],
        last: Mapping[int, Any] = MappingProxyType({}),
        frames: Any = None,
    ) -> Found:
        """Score in one call what ended a step and, in potential mode, what begins an episode.

        Args:
            observations: the batch of all environments.
            ends: ``(num_envs,)`` bool, whose step ended with a picture.
            begins: ``(num_envs,)`` bool, who starts an episode.
            last: environment to last observation, see :meth:`PictureSource.batch`.
            frames: what rendering gave.

        Returns:
            Zeros for environments of which no picture was scored.
        """
        old = np.flatnonzero(ends).tolist()
        new = np.flatnonzero(begins).tolist() if self._core.needs_first_pictures else []
        pictures = self._source.batch(observations, old, new, last, frames)
        probability, odds = self._classifier.score(pictures[:, -1])
        found = np.zeros((3, len(ends)), np.float32)
        found[0, old], found[1, old] = probability[: len(old)], odds[: len(old)]
        found[2, new] = probability[len(old) :]
        return found[0], found[1], found[2]

    def _guarded(self, observations: Any, last: Mapping[int, Any]) -> list[Any] | None:
        """Return what each environment's step ended with, for the guard; None without one."""
        if self._core.options.guard is None:
            return None
        return [last.get(i, item) for i, item in enumerate(self._source.rows(observations))]

    def _observed(self, observations: Any) -> Any:
        """Return one or a batch of observations as the learner sees them."""
        if not self._core.options.hold_in_observation:
            return observations
        counter = self._core.detector.counter
        return append_hold(observations, counter if observations.ndim == 2 else counter[0])


def _with_hold(space: gym.Space[Any], hold: int) -> gym.spaces.Box:
    """Return a one-dimensional Box with one more number at its end, the hold counter."""
    if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
        raise ConfigError(
            f"hold_in_observation was asked for with the observation space {space}. Expected a Box "
            "of one dimension, to which the counter can be appended; set hold_in_observation to "
            "False, or flatten the observation first (gymnasium.wrappers.FlattenObservation)."
        )
    dtype = np.dtype(space.dtype)
    if np.array(hold).astype(dtype) != hold:
        raise ConfigError(
            f"hold_in_observation was asked for with success_hold_steps={hold} and {dtype} "
            "observations, which cannot hold that number. Expected fewer steps, or observations of "
            "a wider dtype."
        )
    return gym.spaces.Box(
        np.append(space.low, 0).astype(dtype),
        np.append(space.high, hold).astype(dtype),
        dtype=dtype.type,
    )


def append_hold(observation: NDArray[Any], counter: NDArray[np.int64]) -> NDArray[Any]:
    """Return the ``(..., D)`` observation with the ``(...)`` counter as its last number."""
    last = np.asarray(counter).astype(observation.dtype)[..., None]
    return np.concatenate([observation, last], axis=-1)
