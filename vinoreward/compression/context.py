"""What a chain knows about one push of the learner's weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from vinoreward.errors import InputError
from vinoreward.policies.policy import Policy, QuantizedArray
from vinoreward.policies.reference import check_observations

Observations = npt.NDArray[np.generic]

BATCH = 64
"""Observations at a time: the patches of a first convolution take 400 kB for each."""


def batches(observations: Observations) -> Iterator[Observations]:
    """Yield observations a few at a time."""
    for start in range(0, len(observations), BATCH):
        yield observations[start : start + BATCH]


@dataclass(frozen=True)
class CompressionContext:
    """One push.

    Attributes:
        teacher: the learner's policy in full precision, as it was pushed. It stays as it is while
            the chain runs: the fixed network that AcceRL (section 2.2) distils from.
        observations: (N, *shape) of recent experience, resets and exploration included. Students
            are taught on them and ranges measured on them, so the rare ones decide.
        push: number of this push; with ``seed`` it decides every random choice.
        seed: of the run.
        seconds: wall time for teaching; a stage that is done takes none of it. None: a stage does
            as many updates as it was told, so that the same push gives the same policy.
        batch: observations of one call of the actors' backends.
        bits: new setting of the chain's quantization, or None to leave it.
        sparsity: new setting of the chain's pruning, or None to leave it.

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
            raise InputError("compression was given no observations. Expected at least one.")
        check_observations(self.teacher.spec, self.observations)

    def random(self) -> np.random.Generator:
        """Return a generator that is the same for the same push of the same run."""
        return np.random.default_rng([self.seed, self.push])

    def some(self, count: int) -> Observations:
        """Return about ``count`` observations from all of their range, others at each push.

        Never a fixed part of them, such as the newest: what is rare would never be among them.
        """
        every = max(1, len(self.observations) // count)
        random = np.random.default_rng([self.seed, self.push, count])
        return self.observations[random.integers(every) :: every]


def check_finite(policy: Policy, who: str) -> None:
    """Raise InputError if a weight of the policy of ``who`` is NaN or infinite."""
    for name, value in policy.parameters.items():
        numbers = value.scales if isinstance(value, QuantizedArray) else value
        if not np.isfinite(numbers).all():
            raise InputError(
                f"the {who}'s {name} holds NaN or infinity. Expected finite weights: training has "
                "diverged. Keep the policy that actors have, and lower the learning rate."
            )
