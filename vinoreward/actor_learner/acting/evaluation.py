"""Paired evaluation: full and compressed policy play the same episodes, without exploration."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from vinoreward.actor_learner.acting.environments import EnvironmentSpec, failures_told
from vinoreward.actor_learner.acting.network import Refused
from vinoreward.actor_learner.acting.spaces import check_spaces, in_space, observed
from vinoreward.closing import Closing
from vinoreward.errors import ConfigError, OutputError
from vinoreward.monitoring.batch import PairedReturns
from vinoreward.policies.backends.base import make_backend
from vinoreward.policies.distributions import Exploration, act
from vinoreward.policies.policy import Policy
from vinoreward.policies.spec import PolicySpec
from vinoreward.policies.wire import decode, encode
from vinoreward.rewards.success import Truth, claim_of

FIRST_SEED = 1_000_000
"""Far from the seeds of training."""
WIDTH = 10
"""Maximum number of environments in parallel."""


@dataclass(frozen=True)
class Played:
    """Episodes of one policy.

    Attributes:
        version: of the learner's policy from which it was made.
        returns: (S,) undiscounted, in the order of the seeds; the game's score if there is one.
        lengths: (S,) steps.
        claimed: (S,) whether the reward judged the last state a success; None if it is missing for
            some episode.
        true: (S,) whether the simulator did; None likewise.
    """

    version: int
    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    claimed: npt.NDArray[np.bool_] | None
    true: npt.NDArray[np.bool_] | None

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(self.returns.mean())

    @property
    def error(self) -> float:
        """Standard error of the mean return; NaN for one episode."""
        count = len(self.returns)
        return float(self.returns.std(ddof=1) / np.sqrt(count)) if count > 1 else float("nan")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for :meth:`from_dict`."""
        found = dataclasses.asdict(self)
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in found.items()}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Played:
        """Return what :meth:`to_dict` described."""
        flags = {
            name: None if value[name] is None else np.array(value[name], dtype=np.bool_)
            for name in ("claimed", "true")
        }
        return cls(
            int(value["version"]),
            np.array(value["returns"], dtype=np.float64),
            np.array(value["lengths"], dtype=np.int64),
            **flags,
        )


@dataclass(frozen=True)
class Pair:
    """Episodes of two policies on the same seeds.

    Attributes:
        seeds: of the episodes.
        full: in full precision.
        compressed: compressed, on the same seeds; None if there was no usable policy.
        refused: why it was not usable; empty if it was.
    """

    seeds: tuple[int, ...]
    full: Played
    compressed: Played | None
    refused: str = ""

    @property
    def returns(self) -> PairedReturns | None:
        """Only if both have the same version, so that only compression differs; for a monitor."""
        if self.compressed is None or self.compressed.version != self.full.version:
            return None
        return PairedReturns(self.full.returns, self.compressed.returns)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for :meth:`from_dict`."""
        return {
            "seeds": list(self.seeds),
            "full": self.full.to_dict(),
            "compressed": None if self.compressed is None else self.compressed.to_dict(),
            "refused": self.refused,
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Pair:
        """Return what :meth:`to_dict` described."""
        compressed = value["compressed"]
        return cls(
            tuple(value["seeds"]),
            Played.from_dict(value["full"]),
            None if compressed is None else Played.from_dict(compressed),
            str(value["refused"]),
        )


@dataclass(frozen=True)
class Evaluation:
    """An evaluation during training.

    Attributes:
        steps: environment steps at the push of the evaluated weights.
        seconds: since the start of this ``learn`` at that push.
        took: seconds that the evaluation took, in its own process.
        pair: both of one version. Full precision only if there is no compression, the compressor
            was late by a minute, or its policy was not usable.
    """

    steps: int
    seconds: float
    took: float
    pair: Pair


def evaluation_backend(backend: str) -> str:
    """Return the evaluation backend for full-precision policies of actors with this backend."""
    # Instead of eager PyTorch, which gives the same outputs more slowly.
    return "openvino" if backend.startswith("torch") else backend


def send_policy(pipe: Connection, policy: Policy | None) -> None:
    """Write a policy or None for :func:`receive_policy`; blocks until it is read.

    Leaves out the compiled form, which is for the actors' batch.

    Raises:
        OSError: the reader is gone.
    """
    if policy is None:
        pipe.send_bytes(b"")
        return
    encoded = encode(policy.replace(blob=None))
    pipe.send_bytes(encoded.header)
    pipe.send_bytes(encoded.payload().data)


def receive_policy(pipe: Connection) -> Policy | None:
    """Return what :func:`send_policy` wrote.

    Raises:
        EOFError: the writer is gone.
    """
    header = pipe.recv_bytes()
    # Writable memory, as in actors.
    return decode(header, np.array(np.frombuffer(pipe.recv_bytes(), np.uint8))) if header else None


class Evaluator(Closing):
    """Plays episodes with policies; reuses its environments.

    Args:
        environment: for the episodes.
        backend: for full-precision policies; compressed ones name their own.
        stepped: called after each call of an environment.
    """

    def __init__(
        self,
        environment: EnvironmentSpec,
        backend: str,
        stepped: Callable[[], None] = lambda: None,
    ) -> None:
        self._environment = environment
        self._backend = evaluation_backend(backend)
        self._stepped = stepped
        self._truth = Truth()
        self._envs: list[gym.Env[Any, Any]] = []

    def pair(self, full: Policy, compressed: Policy | None, seeds: Sequence[int]) -> Pair:
        """Play the episodes of the seeds with both policies.

        Raises:
            ConfigError: an environment fails.
        """
        played = self.play(full, seeds, self._backend)
        if compressed is None:
            return Pair(tuple(seeds), played, None)
        try:
            return Pair(tuple(seeds), played, self.play(compressed, seeds, compressed.backend))
        except OutputError as error:
            # Training continues with the full-precision policy, as in actors.
            found = Refused.of(compressed.version, error)
            return Pair(tuple(seeds), played, None, found.why)

    def play(self, policy: Policy, seeds: Sequence[int], backend: str) -> Played:
        """Play one greedy episode per seed, several in parallel."""
        width = min(WIDTH, len(seeds))
        while len(self._envs) < width:
            self._envs.append(self._asked(self._environment.make))
        check_spaces(self._envs[0], policy.spec)
        rows: list[_Row] = []
        with make_backend(backend, width) as network:
            # The compiled form is for the actors' batch.
            network.refresh(policy.replace(blob=None))
            for start in range(0, len(seeds), width):
                rows += self._block(policy, network.infer, seeds[start : start + width], width)
        return Played(
            policy.version,
            np.array([row.reward if row.score is None else row.score for row in rows]),
            np.array([row.length for row in rows]),
            _flags([row.claimed for row in rows]),
            _flags([row.true for row in rows]),
        )

    def _block(self, policy: Policy, infer: Any, seeds: Sequence[int], width: int) -> list[_Row]:
        spec = policy.spec
        envs = self._envs[: len(seeds)]
        # The batch size is fixed: rows without an episode are computed and ignored.
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
                # As in actors: with normalise_actions=False the limits are the task's own.
                action = in_space(acted[at], env.action_space)
                stepped = self._asked(env.step, int(action) if spec.discrete else action)
                observation, reward, terminated, truncated, info = stepped
                observations[at] = self._row(spec, observation)
                row.add(float(reward), bool(terminated or truncated), info, self._truth)
        return rows

    def _asked(self, ask: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call an environment; re-raise its errors as ConfigError."""
        with failures_told(
            f"an environment of {self._environment} failed in an evaluation",
            "one that plays every episode; fix it and resume from the last checkpoint",
        ):
            answer = ask(*arguments, **options)
        self._stepped()
        return answer

    def _row(self, spec: PolicySpec, observation: Any) -> Any:
        found = observed(observation, spec)
        if found.shape != spec.observation_shape:
            raise ConfigError(
                f"an environment of {self._environment} gave an observation of {found.shape} "
                f"in an evaluation. Expected {spec.observation_shape}; fix it and resume from the "
                "last checkpoint."
            )
        return found

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

    def add(self, reward: float, over: bool, info: Mapping[str, Any], truth: Truth) -> None:
        self.reward += reward
        self.length += 1
        self.over = over
        if over:
            self.claimed, self.true = claim_of(info), truth(info)
            self.score = float(info["score"]) if "score" in info else None


def _flags(flags: Sequence[bool | None]) -> npt.NDArray[np.bool_] | None:
    return None if None in flags else np.array(flags, dtype=np.bool_)
