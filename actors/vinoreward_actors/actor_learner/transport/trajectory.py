"""Trajectories, the unit that an actor sends to the learner.

All arrays are time-major, (T, B, ...): T steps of the B environments of one actor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.closing import Closing
from vinoreward.errors import InputError
from vinoreward_actors.actor_learner.transport.memory import aligned
from vinoreward_actors.policies.spec import PolicySpec

FULL_PRECISION, COMPRESSED = 0, 1
"""Values of ``network``."""

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Trajectory:
    """T consecutive steps of B environments.

    Attributes:
        observations: (T, B, *observation), the network's inputs.
        actions: (T, B) int64, or (T, B, A) float32 in [-1, 1], as executed.
        rewards: (T, B) float32.
        terminated: (T, B) bool; the task ended here: no value after it.
        truncated: (T, B) bool; the episode was cut here: bootstraps from its value.
        next_observations: (T, B, *observation), the true successor: at an episode's end its final
            observation, never the one after the reset.
        log_mu: (T, B) float32, log-probability of the executed action under the network that acted.
        behaviour: (T, B, K) float32, head outputs of the network that acted.
        versions: (T, B) int64, the learner's version from which the acting policy was made.
        network: (T, B) uint8, 0 full precision, 1 compressed.
        actor: number of the actor.
        generation: number of that actor's replacements.
    """

    observations: Array
    actions: Array
    rewards: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    next_observations: Array
    log_mu: npt.NDArray[np.float32]
    behaviour: npt.NDArray[np.float32]
    versions: npt.NDArray[np.int64]
    network: npt.NDArray[np.uint8]
    actor: int = 0
    generation: int = 0

    def arrays(self) -> dict[str, Array]:
        """Return the arrays by name, in the order of the attributes, without a copy."""
        return {name: getattr(self, name) for name in ARRAYS}

    def copy(self) -> Trajectory:
        """Return a deep copy."""
        copies = {name: array.copy() for name, array in self.arrays().items()}
        return Trajectory(**copies, actor=self.actor, generation=self.generation)


ARRAYS = tuple(field.name for field in dataclasses.fields(Trajectory))[:-2]
"""Names of the arrays of a :class:`Trajectory`."""


@dataclass(frozen=True)
class TrajectorySpec:
    """Sizes and dtypes of every trajectory of a run; plain data."""

    steps: int  # T
    environments: int  # B, of one actor
    observation_shape: tuple[int, ...]
    observation_dtype: str  # "float32" or "uint8"
    action_shape: tuple[int, ...]  # () for discrete actions, (A,) for continuous ones
    outputs: int  # K, head outputs of the policy

    @classmethod
    def of(cls, policy: PolicySpec, steps: int, environments: int) -> TrajectorySpec:
        """Return the spec of a policy's trajectories: T steps of B environments."""
        return cls(
            steps,
            environments,
            policy.observation_shape,
            policy.observation_dtype,
            () if policy.discrete else (policy.actions,),
            policy.outputs,
        )

    @property
    def discrete(self) -> bool:
        """Whether an action is a single integer."""
        return self.action_shape == ()

    @property
    def transitions(self) -> int:
        """T · B."""
        return self.steps * self.environments

    @cached_property
    def layout(self) -> np.dtype[Any]:
        """The arrays of a slot as fields, in the order of :data:`ARRAYS`."""
        lead = (self.steps, self.environments)
        observations = (self.observation_dtype, lead + self.observation_shape)
        shapes: dict[str, tuple[str, tuple[int, ...]]] = {
            "observations": observations,
            "actions": ("int64" if self.discrete else "float32", lead + self.action_shape),
            "rewards": ("float32", lead),
            "terminated": ("bool", lead),
            "truncated": ("bool", lead),
            "next_observations": observations,
            "log_mu": ("float32", lead),
            "behaviour": ("float32", (*lead, self.outputs)),
            "versions": ("int64", lead),
            "network": ("uint8", lead),
        }
        return np.dtype([(name, *shapes[name]) for name in ARRAYS], align=True)

    @property
    def nbytes(self) -> int:
        """Bytes of a slot, a multiple of 64."""
        return aligned(self.layout.itemsize)

    def view(
        self, buffer: npt.NDArray[np.uint8], actor: int = 0, generation: int = 0
    ) -> Trajectory:
        """Return a trajectory whose arrays are views of (nbytes,) uint8."""
        if buffer.dtype != np.uint8 or buffer.shape != (self.nbytes,):
            raise InputError(
                f"a trajectory came as {buffer.dtype}{buffer.shape}. Expected "
                f"uint8({self.nbytes},): install the same version of vinoreward on every machine."
            )
        slot = buffer[: self.layout.itemsize].view(self.layout)
        return Trajectory(
            **{name: slot[name][0] for name in ARRAYS}, actor=actor, generation=generation
        )

    def empty(self, actor: int = 0, generation: int = 0) -> Trajectory:
        """Return a new trajectory of zeros."""
        return self.view(np.zeros(self.nbytes, np.uint8), actor, generation)

    @staticmethod
    def check_finite(trajectory: Trajectory) -> None:
        """Raise InputError, which names the array, if a number is NaN or infinite."""
        for name, array in trajectory.arrays().items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise InputError(
                    f"{name} of a trajectory of actor {trajectory.actor} has NaN or infinity. "
                    "Expected finite numbers; check the weights, the environment and its reward."
                )


class Batch(Closing, Sequence[Trajectory]):
    """Trajectories that the learner took, read-only; closing it releases their memory to actors."""

    def __init__(self, trajectories: Sequence[Trajectory], release: Callable[[], None]) -> None:
        self._trajectories = tuple(trajectories)
        self._release: Callable[[], None] | None = release

    def __len__(self) -> int:
        return len(self._trajectories)

    def __getitem__(self, index: Any) -> Any:
        return self._trajectories[index]

    def close(self) -> None:
        """Release the trajectories; may be called twice."""
        release, self._release, self._trajectories = self._release, None, ()
        if release is not None:
            release()
