"""Trained policies without exploration: a player, and evaluation of pairs on the same episodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from vinoreward.closing import Closing
from vinoreward.errors import ConfigError, OutputError
from vinoreward.wrappers.true_success import Truth
from vinoreward_actors.actor_learner.acting.actor import Refused
from vinoreward_actors.actor_learner.acting.environments import (
    EnvironmentSpec,
    Episode,
    EpisodeSum,
    as_config_error,
    check_actions,
    check_spaces,
    in_space,
    observed,
)
from vinoreward_actors.monitoring.batch import PairedReturns
from vinoreward_actors.policies.backends.base import make_backend
from vinoreward_actors.policies.distributions import Exploration, act
from vinoreward_actors.policies.policy import Policy
from vinoreward_actors.policies.spec import PolicySpec

FIRST_SEED = 1_000_000
"""Far from the seeds of training."""
WIDTH = 10
"""Maximum number of environments in parallel."""


class Player(Closing):
    """Gives a policy's best actions, without exploration. Not thread-safe.

    Needs only NumPy and the backend's library, nothing of training.

    Args:
        policy: in full precision or compressed, see
            :func:`~vinoreward_actors.policies.load_policy`.
        space: action space of one environment; continuous actions are scaled to its limits,
            discrete ones count from its start. None: they stay in [-1, 1], or count from 0.
        batch: observations per call.
        backend: ``"openvino"``, ``"onnxruntime"``, ``"numpy"`` or ``"torch"``; None uses the
            policy's own.

    Raises:
        ConfigError: an unknown backend or one that cannot run this network, an action space that
            does not match, or a batch below 1.
        InputError: weights that are not finite.
        MissingExtraError: the backend's library is not installed.
    """

    def __init__(
        self,
        policy: Policy,
        space: gym.Space[Any] | None = None,
        *,
        batch: int = 1,
        backend: str | None = None,
    ) -> None:
        if space is not None:
            check_actions(space, policy.spec)
        self.policy = policy
        self._space = space
        self._random = np.random.default_rng(0)  # required by act, unused for greedy actions
        self._backend = make_backend(policy.backend if backend is None else backend, batch)
        try:
            # The compiled form is for the actors' batch.
            self._backend.refresh(policy.replace(blob=None))
        except BaseException:
            self.close()
            raise

    def act(self, observations: npt.ArrayLike) -> Any:
        """Return the best action for each observation.

        Args:
            observations: (batch, \\*shape); or one, (\\*shape), if the batch is 1; of a dtype that
                :func:`~vinoreward_actors.actor_learner.acting.environments.observed` accepts.

        Returns:
            (batch,) int64, or (batch, A) of the space's dtype (float32 without a space); for a
            single observation an int, or (A,).

        Raises:
            InputError: observations of another shape or dtype, NaN or infinity.
            OutputError: the outputs have NaN or infinity: the weights are broken.
            ConfigError: the player is closed.
        """
        spec = self.policy.spec
        seen = observed(observations, spec)
        alone = seen.shape == spec.observation_shape and self._backend.batch == 1
        outputs = self._backend.infer(seen[None] if alone else seen)
        actions: Any = act(spec, outputs, self._random, Exploration(greedy=True)).actions
        if self._space is not None:
            actions = in_space(actions, self._space)
        if not alone:
            return actions
        return int(actions[0]) if spec.discrete else actions[0]

    def close(self) -> None:
        """Release weights and library objects. May be called twice."""
        self._backend.close()


Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Played:
    """Episodes of one policy."""

    version: int  # of the learner's policy from which it was made
    episodes: tuple[Episode, ...]  # S of them, in the order of the seeds

    @property
    def returns(self) -> npt.NDArray[np.float64]:
        """(S,) undiscounted; the game's score if there is one."""
        scores = [each.reward if each.score is None else each.score for each in self.episodes]
        return np.array(scores, dtype=np.float64)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """(S,) steps."""
        return np.array([each.length for each in self.episodes], dtype=np.int64)

    @property
    def claimed(self) -> Flags | None:
        """(S,) whether the reward judged the last state a success; None if any is missing."""
        return _flags([each.claimed_success for each in self.episodes])

    @property
    def true(self) -> Flags | None:
        """(S,) whether the simulator did; None if any is missing."""
        return _flags([each.true_success for each in self.episodes])

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(self.returns.mean())

    @property
    def error(self) -> float:
        """Standard error of the mean return; NaN for one episode."""
        count = len(self.episodes)
        return float(self.returns.std(ddof=1) / np.sqrt(count)) if count > 1 else float("nan")

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Played:
        """Return what ``dataclasses.asdict`` described."""
        return cls(value["version"], tuple(Episode(**each) for each in value["episodes"]))


def _flags(values: Sequence[bool | None]) -> Flags | None:
    return None if None in values else np.array(values, dtype=np.bool_)


@dataclass(frozen=True)
class Pair:
    """Episodes of two policies on the same seeds."""

    seeds: tuple[int, ...]
    full: Played  # in full precision
    compressed: Played | None  # None if there was no usable policy
    refused: str = ""  # why it was not usable

    @property
    def returns(self) -> PairedReturns | None:
        """Only if both have the same version, so that only compression differs; for a monitor."""
        if self.compressed is None or self.compressed.version != self.full.version:
            return None
        return PairedReturns(self.full.returns, self.compressed.returns)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for :meth:`from_dict`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Pair:
        """Return what :meth:`to_dict` described."""
        full, compressed = Played.from_dict(value["full"]), value["compressed"]
        compressed = None if compressed is None else Played.from_dict(compressed)
        return cls(tuple(value["seeds"]), full, compressed, value["refused"])


@dataclass(frozen=True)
class Evaluation:
    """An evaluation during training.

    Attributes:
        steps: environment steps at the push of the evaluated weights.
        seconds: since the start of this ``learn`` at that push.
        took: seconds that the evaluation took, in its own process.
        pair: both of one version, the newest with a compressed form. Full precision only if there
            is no compression, the compressor is late by more than ``max_staleness``, or its policy
            was not usable.
    """

    steps: int
    seconds: float
    took: float
    pair: Pair


def evaluation_backend(backend: str) -> str:
    """Return the backend that evaluates full-precision policies of actors with this backend."""
    # Eager PyTorch gives the same outputs more slowly.
    return "openvino" if backend in ("auto", "torch") else backend


class Evaluator(Closing):
    """Plays episodes with policies; reuses its environments.

    Args:
        environment: for the episodes.
        backend: of the actors, for full-precision policies; compressed ones name their own.
        on_call: called after each call of an environment.
    """

    def __init__(
        self, environment: EnvironmentSpec, backend: str, on_call: Callable[[], None] = lambda: None
    ) -> None:
        self._environment = environment
        self._backend = evaluation_backend(backend)
        self._on_call = on_call
        self._truth = Truth(environment.truth_key)
        self._envs: list[gym.Env[Any, Any]] = []

    def pair(self, full: Policy, compressed: Policy | None, seeds: Sequence[int]) -> Pair:
        """Play the episodes of the seeds with both policies."""
        played = self.play(full, seeds, self._backend)
        if compressed is None:
            return Pair(tuple(seeds), played, None)
        try:
            return Pair(tuple(seeds), played, self.play(compressed, seeds, compressed.backend))
        except OutputError as error:
            # Training continues with the full-precision policy, as in actors.
            return Pair(tuple(seeds), played, None, Refused.of(compressed.version, error).why)

    def play(self, policy: Policy, seeds: Sequence[int], backend: str) -> Played:
        """Play one greedy episode per seed, several in parallel."""
        width = min(WIDTH, len(seeds))
        while len(self._envs) < width:
            self._envs.append(self._call(self._environment.make))
        check_spaces(self._envs[0], policy.spec)
        played: list[Episode] = []
        with Player(policy, batch=width, backend=backend) as player:
            for start in range(0, len(seeds), width):
                played += self._block(player, seeds[start : start + width], width)
        return Played(policy.version, tuple(played))

    def _block(self, player: Player, seeds: Sequence[int], width: int) -> list[Episode]:
        spec = player.policy.spec
        # The batch size is fixed: rows without an episode are computed and ignored.
        observations = np.zeros((width, *spec.observation_shape), dtype=spec.observation_dtype)
        for at, seed in enumerate(seeds):
            observations[at] = self._row(spec, self._call(self._envs[at].reset, seed=seed)[0])
        sums = [EpisodeSum() for _ in seeds]
        played: dict[int, Episode] = {}
        while len(played) < len(seeds):
            actions = player.act(observations)
            for at, env in enumerate(self._envs[: len(seeds)]):
                if at in played:
                    continue
                # As in actors: with normalise_actions=False the limits are the task's own.
                action = in_space(actions[at], env.action_space)
                stepped = self._call(env.step, int(action) if spec.discrete else action)
                observation, reward, terminated, truncated, info = stepped
                observations[at] = self._row(spec, observation)
                sums[at].add(float(reward), info)
                if terminated or truncated:
                    played[at] = sums[at].finished(at, info, self._truth)
        return [played[at] for at in range(len(seeds))]

    def _call(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call an environment; re-raise its errors as ConfigError."""
        with as_config_error(
            f"an environment of {self._environment} failed in an evaluation",
            "one that plays every episode; fix it and resume from the last checkpoint",
        ):
            result = method(*arguments, **options)
        self._on_call()
        return result

    def _row(self, spec: PolicySpec, observation: Any) -> Any:
        row = observed(observation, spec)
        if row.shape != spec.observation_shape:
            raise ConfigError(
                f"an environment of {self._environment} gave an observation of {row.shape} "
                f"in an evaluation. Expected {spec.observation_shape}; fix it and resume from the "
                "last checkpoint."
            )
        return row

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            env.close()
        self._envs = []
