"""How close a compressed policy is to its teacher; checked before any actor uses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vinoreward.compression.stage import Observations, batches
from vinoreward.errors import InputError
from vinoreward.policies.distributions import Exploration, kl
from vinoreward.policies.policy import Floats, Policy
from vinoreward.policies.reference import check_observations, forward
from vinoreward.policies.spec import PolicySpec

Run = Callable[[Policy, Observations], Floats]
"""Computes a policy's head outputs (N, K) for observations (N, *shape)."""

SAME_ACTION = 0.05
"""Continuous actions, in [-1, 1], count as equal if they differ by no more than this."""


@dataclass(frozen=True)
class Quality:
    """Difference between a compressed policy and its teacher.

    Attributes:
        kl_mean: KL(teacher || policy) in nats, mean over observations; infinite if not finite.
        kl_max: the maximum. Only this and the return rank compressions; mean action errors do not.
        agreement: fraction of observations on which both policies have the same best action; for
            continuous actions, differ by at most 0.05 of [-1, 1] in every dimension.
        finite: whether all outputs are finite.
    """

    kl_mean: float
    kl_max: float
    agreement: float
    finite: bool


def compare_outputs(
    spec: PolicySpec,
    teacher: npt.NDArray[np.floating],
    outputs: npt.NDArray[np.floating],
    *,
    sigma: float = 0.1,
) -> Quality:
    """Compare head outputs.

    Args:
        spec: of both, for the head.
        teacher: (N, K), finite.
        outputs: (N, K) of the compressed policy.
        sigma: width of the Gaussians for the comparison of ``tanh`` heads.

    Raises:
        InputError: no rows, different shapes, or a teacher that is not finite.
    """
    if teacher.shape != outputs.shape or len(teacher) == 0 or not np.isfinite(teacher).all():
        raise InputError(
            f"cannot compare outputs {outputs.shape} with the teacher's {teacher.shape}. Expected "
            "the same shape, at least one row, and a finite teacher."
        )
    if not np.isfinite(outputs).all():
        return Quality(float("inf"), float("inf"), 0.0, False)
    exploration = Exploration(sigma=sigma) if spec.head == "tanh" else Exploration()
    with np.errstate(over="ignore"):
        divergence = kl(spec, teacher, outputs, exploration)
    if spec.discrete:
        same = teacher.argmax(1) == outputs.argmax(1)
    else:
        apart = np.tanh(teacher[:, : spec.actions]) - np.tanh(outputs[:, : spec.actions])
        same = (np.abs(apart) <= SAME_ACTION).all(1)
    return Quality(float(divergence.mean()), float(divergence.max()), float(same.mean()), True)


def check_policy(
    policy: Policy,
    teacher: Policy,
    observations: Observations,
    *,
    sigma: float = 0.1,
    run: Run | None = None,
) -> Quality:
    """Run both policies on observations and compare their outputs.

    Args:
        policy: compressed.
        teacher: from which it was made.
        observations: (N, *shape).
        sigma: see :func:`compare_outputs`.
        run: computes the compressed policy as actors do. None uses the NumPy reference, which
            cannot reveal a fault of a backend.

    Raises:
        InputError: unsuitable observations, or a teacher whose outputs are not finite.
    """
    check_observations(teacher.spec, observations)
    check_observations(policy.spec, observations)
    if len(observations) == 0:
        raise InputError("cannot compare policies on no observations. Expected at least one.")
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = _reference(teacher, observations)
        found = (run or _reference)(policy, observations)
    return compare_outputs(teacher.spec, wanted, found, sigma=sigma)


def _reference(policy: Policy, observations: Observations) -> Floats:
    return np.concatenate([forward(policy, part) for part in batches(observations)])
