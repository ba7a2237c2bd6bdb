"""The inputs of a chain at one push, and the base class of its stages, with one method to write."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError, InputError
from vinoreward.policies.policy import Floats, Policy, QuantizedArray
from vinoreward.policies.reference import check_observations
from vinoreward.policies.spec import PolicySpec

Observations = npt.NDArray[np.generic]
State = Mapping[str, "npt.NDArray[Any] | int | float"]
"""State of a stage between pushes: numbers, and arrays of its own, not in shared memory."""

BATCH = 64
"""Observations per batch: the patches of a first convolution take 400 kB each."""
FLOAT, QUANTIZED, COMPILED = range(3)
"""Order of stages: those that need float weights, then quantization, then compilation."""


def batches(observations: Observations) -> Iterator[Observations]:
    """Yield the observations in batches."""
    for start in range(0, len(observations), BATCH):
        yield observations[start : start + BATCH]


@dataclass(frozen=True)
class CompressionContext:
    """One push.

    Attributes:
        teacher: the learner's policy in full precision at this push. It does not change while the
            chain runs: the fixed network that AcceRL (section 2.2) distils from.
        observations: (N, *shape) of recent experience, including resets and exploration. Distill
            trains on them and Quantize measures ranges on them, so rare ones must be among them.
        push: number of this push; ``seed`` and ``push`` fix all random choices.
        seed: of the run.
        seconds: wall time for distillation. None: each stage makes its configured number of
            updates, so that the same push gives the same policy.
        batch: observations per call of the actors' backends.
        bits: new setting of the chain's quantization, or None for no change.
        sparsity: new setting of the chain's pruning, or None for no change.

    Raises:
        InputError: a teacher with NaN or infinite weights, no observations, or unsuitable ones.
    """

    teacher: Policy
    observations: Observations = field(repr=False)
    push: int = 0
    seed: int = 0
    seconds: float | None = None
    batch: int = 1
    bits: float | None = None
    sparsity: float | None = None

    def __post_init__(self) -> None:
        check_finite(self.teacher, "teacher")
        if len(self.observations) == 0:
            raise InputError("compression got no observations. Expected at least one.")
        check_observations(self.teacher.spec, self.observations)

    def random(self) -> np.random.Generator:
        """Return a generator that is the same for the same push and seed."""
        return np.random.default_rng([self.seed, self.push])

    def some(self, count: int) -> Observations:
        """Return about ``count`` observations, evenly spaced; different ones at each push.

        Not a fixed part such as the newest ones, which might never include the rare observations.
        """
        every = max(1, len(self.observations) // count)
        random = np.random.default_rng([self.seed, self.push, count])
        return self.observations[random.integers(every) :: every]


def check_finite(policy: Policy, who: str) -> None:
    """Raise InputError if a weight of ``policy`` is NaN or infinite; ``who`` names it."""
    for name, value in policy.parameters.items():
        numbers = value.scales if isinstance(value, QuantizedArray) else value
        if not np.isfinite(numbers).all():
            raise InputError(
                f"the {who}'s {name} has NaN or infinite values. Expected finite weights: training "
                "has diverged. Keep the actors' current policy, and lower the learning rate."
            )


class Stage(abc.ABC):
    """Turns a policy into a cheaper one.

    A stage gets its arguments in the constructor, so that a chain can be sent to another process,
    and keeps its state between pushes as NumPy arrays.

    Attributes:
        phase: its position in a chain; None for any.
    """

    phase: ClassVar[int | None] = None

    @property
    def shrinks(self) -> bool:
        """Whether it makes layers smaller, so that any backend runs them faster."""
        return False

    @abc.abstractmethod
    def compress(self, policy: Policy, context: CompressionContext) -> Policy:
        """Return the cheaper policy; ``policy`` itself is not changed.

        Args:
            policy: the output of the stage before; it may share arrays with the teacher.
            context: of this push.
        """

    def largest(self, spec: PolicySpec) -> PolicySpec:
        """Return the largest network that :meth:`compress` may make from one like ``spec``.

        Shared memory is reserved for it before training. Override this if a stage can enlarge the
        network.
        """
        return spec

    def check(self, following: Sequence[Stage]) -> None:  # noqa: B027 - optional
        """Raise ConfigError if the stages after this one cannot be right."""

    def parameters(self) -> dict[str, float]:
        """Return the settings that may change during training."""
        return {}

    def set_parameter(self, parameter: str, value: float) -> None:
        """Change one of :meth:`parameters`.

        Raises:
            ConfigError: an invalid value, or a parameter that the stage does not have.
        """
        raise ConfigError(
            f"{type(self).__name__} has no setting {parameter!r} (value {value}). Expected one of "
            f"{sorted(self.parameters())}."
        )

    def state(self) -> dict[str, npt.NDArray[Any] | int | float]:
        """Return the state to keep between pushes."""
        return {}

    def load_state(self, state: State) -> None:
        """Restore what :meth:`state` returned.

        Raises:
            ConfigError: the state is not this stage's.
        """
        state_parts(self, state)


def state_parts(
    stage: Stage, state: State, numbers: Sequence[str] = (), parts: Sequence[str] = ()
) -> dict[str, dict[str, npt.NDArray[Any] | int | float]]:
    """Return part to name to value of the entries ``PART.NAME`` of a saved state.

    Args:
        stage: that loads it.
        state: saved by the stage.
        numbers: the keys of all other entries.
        parts: such as ``"kept"``.

    Raises:
        ConfigError: other entries, or some of ``numbers`` are missing.
    """
    found: dict[str, dict[str, npt.NDArray[Any] | int | float]] = {part: {} for part in parts}
    others = set()
    for key, value in state.items():
        part, _, name = key.partition(".")
        if part in found and name:
            found[part][name] = value
        else:
            others.add(key)
    if others != set(numbers):
        wanted = ", ".join((*numbers, *(f"{part}.NAME" for part in parts))) or "none"
        raise ConfigError(
            f"{type(stage).__name__} got the state {sorted(state)}. Expected {wanted}; another "
            "chain saved it."
        )
    return found


def float_weights(policy: Policy, stage: Stage) -> dict[str, Floats]:
    """Return the policy's parameters as float32.

    Raises:
        ConfigError: some weights are already quantized.
    """
    coarse = [
        name for name, value in policy.parameters.items() if isinstance(value, QuantizedArray)
    ]
    if coarse:
        raise ConfigError(
            f"{type(stage).__name__} got quantized weights ({', '.join(coarse)}). Expected float "
            "weights; put Quantize after it."
        )
    return policy.float_parameters()


def different_tasks(one: PolicySpec, other: PolicySpec) -> list[str]:
    """Return the attributes by which two networks cannot replace each other."""
    names = ("observation_shape", "observation_dtype", "head", "actions")
    return [name for name in names if getattr(one, name) != getattr(other, name)]
