"""The inputs of a chain at one push of the learner's weights."""

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
"""Observations per batch: the patches of a first convolution take 400 kB each."""


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
