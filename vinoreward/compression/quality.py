"""How close a compressed policy is to its teacher: looked at before anything acts on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vinoreward.compression.context import Observations, batches
from vinoreward.errors import InputError
from vinoreward.policies.distributions import Exploration, kl
from vinoreward.policies.policy import Floats, Policy
from vinoreward.policies.reference import check_observations, forward
from vinoreward.policies.spec import PolicySpec

Run = Callable[[Policy, Observations], Floats]
"""Gives a policy's head outputs (N, K) for observations (N, *shape)."""

SAME_ACTION = 0.05
"""Continuous actions, in [-1, 1], that differ by no more are taken to be the same."""


@dataclass(frozen=True)
class Quality:
    """What a compressed policy has lost.

    Attributes:
        kl_mean: KL(teacher || policy) in nats, averaged over observations; infinite if not finite.
        kl_max: the largest. This and the return rank compressions; mean errors of actions do not.
        agreement: part of observations on which both policies' best actions are the same; for
            continuous actions, differ by at most 0.05 of [-1, 1] in every dimension.
        finite: whether every output is a finite number.
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
        sigma: width of the Gaussians that ``tanh`` heads are compared as.

    Raises:
        InputError: no rows, other shapes, or a teacher that is not finite.
    """
    if teacher.shape != outputs.shape or len(teacher) == 0 or not np.isfinite(teacher).all():
        raise InputError(
            f"outputs {outputs.shape} were to be compared with the teacher's {teacher.shape}. "
            "Expected the same shape, at least one row, and finite numbers of the teacher."
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
    """Run both policies on observations and compare what they would do.

    Args:
        policy: compressed.
        teacher: what it was made of.
        observations: (N, *shape).
        sigma: see :func:`compare_outputs`.
        run: computes the compressed policy, as actors will. None: the reference in NumPy, which
            cannot show a fault of a backend.

    Raises:
        InputError: unsuitable observations, or a teacher whose outputs are not finite.
    """
    check_observations(teacher.spec, observations)
    check_observations(policy.spec, observations)
    if len(observations) == 0:
        raise InputError("policies were to be compared on no observations. Expected some.")
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = _reference(teacher, observations)
        found = (run or _reference)(policy, observations)
    return compare_outputs(teacher.spec, wanted, found, sigma=sigma)


def _reference(policy: Policy, observations: Observations) -> Floats:
    return np.concatenate([forward(policy, part) for part in batches(observations)])
