"""Trajectories checked and concatenated for learners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.actor_learner.transport.trajectory import Trajectory, TrajectorySpec
from vinoreward.errors import InputError
from vinoreward.policies.policy import Floats
from vinoreward.policies.spec import PolicySpec

Mask = npt.NDArray[np.bool_]


def check_trajectory(spec: PolicySpec, trajectory: Trajectory) -> None:
    """Refuse a trajectory that does not fit the network of ``spec``, or has invalid data.

    Raises:
        InputError: another shape or dtype, a number that is not finite, or a successor that differs
            from the next step's observation within an episode.
    """
    shape = trajectory.rewards.shape
    if len(shape) != 2 or 0 in shape:
        raise InputError(
            f"a trajectory's rewards have the shape {shape}. Expected (T, B) with at least one "
            "step of one environment."
        )
    TrajectorySpec.of(spec, shape[0], shape[1]).check(trajectory)
    went_on = ~(trajectory.terminated | trajectory.truncated)[:-1]
    following = trajectory.observations[1:]
    if not np.array_equal(trajectory.next_observations[:-1][went_on], following[went_on]):
        raise InputError(
            f"a trajectory of actor {trajectory.actor} has successors that differ from the next "
            "steps' observations within an episode. Expected consecutive steps, and terminated or "
            "truncated set where an episode ends."
        )


@dataclass(frozen=True, eq=False)
class Batch:
    """Trajectories of one length, concatenated over environments; arrays as in a Trajectory.

    Attributes:
        observations: (T, B, *observation).
        actions: (T, B) int64 or (T, B, A) float32.
        rewards: (T, B) float32.
        terminated: (T, B).
        truncated: (T, B).
        next_observations: (T, B, *observation), the true successors.
        log_mu: (T, B) float32.
    """

    observations: npt.NDArray[Any]
    actions: npt.NDArray[Any]
    rewards: Floats
    terminated: Mask
    truncated: Mask
    next_observations: npt.NDArray[Any]
    log_mu: Floats

    @property
    def shape(self) -> tuple[int, int]:
        """(T, B)."""
        steps, batch = self.rewards.shape
        return steps, batch

    @property
    def stops(self) -> Mask:
        """(T, B): rows whose successor is not the next row's observation; the last row is one."""
        found: Mask = self.terminated | self.truncated
        found[-1] = True
        return found


def concatenate(spec: PolicySpec, trajectories: Sequence[Trajectory]) -> Batch:
    """Concatenate trajectories into one batch, in order.

    Args:
        spec: their network.
        trajectories: of any numbers of environments, but equally many steps.

    Raises:
        InputError: no trajectories, different lengths, or an invalid trajectory.
    """
    lengths = sorted({len(trajectory.rewards) for trajectory in trajectories})
    if len(lengths) != 1:
        raise InputError(
            f"trajectories have {lengths or 'no'} steps. Expected at least one trajectory, all of "
            "the same length."
        )
    for trajectory in trajectories:
        check_trajectory(spec, trajectory)

    def joined(name: str) -> npt.NDArray[Any]:
        return np.concatenate([getattr(each, name) for each in trajectories], axis=1)

    return Batch(
        observations=joined("observations"),
        actions=joined("actions"),
        rewards=joined("rewards"),
        terminated=joined("terminated"),
        truncated=joined("truncated"),
        next_observations=joined("next_observations"),
        log_mu=joined("log_mu"),
    )
