"""Checkpoints of a training: learner, monitor and counters; loaded as plain data only."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError, ModelCorruptError
from vinoreward.files import read_state, reason_of, save_state
from vinoreward_actors.actor_learner.compressor import STATE_FILE, check_state
from vinoreward_actors.actor_learner.config import ActorLearnerConfig
from vinoreward_actors.actor_learner.progress import Totals
from vinoreward_actors.actor_learner.transport.trajectory import ARRAYS, Trajectory
from vinoreward_actors.compression.chain import CompressorChain

if TYPE_CHECKING:  # importing them imports torch
    from vinoreward_actors.actor_learner.controller import Controller
    from vinoreward_actors.actor_learner.learners.base import Learner

Array = npt.NDArray[Any]
CHECKPOINT = "checkpoint.pt"
PARTS = ("learner", "monitor", "steps", "version", "returns", "episodes", "observations")


class ObservationBuffer:
    """The last observations: at most ``each`` of every trajectory, so that they reach further back.

    It begins with ``first``, (N, *shape).
    """

    def __init__(self, first: Array, capacity: int, *, each: int = 64, seed: int = 0) -> None:
        # Parts, joined only on request: 1024 rows of images are 29 MB.
        self._parts = deque([np.array(first[-capacity:])])
        self._count = len(self._parts[0])
        self._capacity = capacity
        self._each = each
        self._random = np.random.default_rng([seed, 0x0B5])

    def add(self, trajectories: Sequence[Trajectory]) -> None:
        """Copy rows of some trajectories, whose memory may be reused afterwards."""
        for trajectory in trajectories:
            rows = trajectory.observations.reshape(-1, *trajectory.observations.shape[2:])
            chosen = self._random.permutation(len(rows))[: self._each]
            self._parts.append(rows[chosen])
            self._count += len(chosen)
        while self._count - len(self._parts[0]) >= self._capacity:
            self._count -= len(self._parts.popleft())

    @property
    def rows(self) -> Array:
        """(N, *shape), newest last; a copy."""
        return np.concatenate(self._parts)[-self._capacity :]


@dataclass
class TrainingState:
    """What outlives a call of ``learn``, and what a checkpoint contains."""

    learner: Learner
    config: ActorLearnerConfig
    controller: Controller
    chain: CompressorChain | None  # of the compressor
    observations: ObservationBuffer
    folder: Path | None = None  # of the checkpoint
    totals: Totals = field(default_factory=Totals)
    pending: list[Trajectory] = field(default_factory=list)  # taken but not learned from yet

    def save(self) -> bool:
        """Write a checkpoint atomically if there is a folder; return whether there is."""
        if self.folder is None:
            return False
        import torch

        totals, monitor = self.totals, self.controller.monitor
        save_state(
            self.folder / CHECKPOINT,
            {
                "learner": self.learner.state(),
                "monitor": None if monitor is None else monitor.state(),
                "pull_period": self.config.pull_period,
                "bits": self.config.bits,
                "steps": totals.steps,
                "version": totals.version,
                "returns": list(totals.returns),
                "episodes": totals.episodes,
                "observations": torch.from_numpy(self.observations.rows),
                # The file calls pending trajectories "held"; older checkpoints have none.
                "held": [
                    {name: torch.from_numpy(array) for name, array in one.arrays().items()}
                    for one in self.pending
                ],
            },
        )
        return True

    def load(self) -> bool:
        """Resume from the folder's checkpoint; return whether there is one.

        Raises:
            ModelCorruptError: the checkpoint or the compressor's state is damaged.
            ConfigError: they are of another configuration.
        """
        folder = self.folder
        state = None if folder is None else load_checkpoint(folder)
        if folder is None or state is None:
            return False
        if self.chain is not None and (folder / STATE_FILE).is_file():
            # Now: later only the compressor's process would fail, and training would run on.
            check_state(folder / STATE_FILE, self.chain)
        seen, shape = tuple(state["observations"].shape[1:]), self.learner.spec.observation_shape
        if seen != shape:
            raise ModelCorruptError(
                f"the checkpoint in {folder} has observations of {seen}. Expected "
                f"{shape}, as the network; restore it from a copy, or start over in another "
                "folder."
            )
        try:
            self._take(state)
        except (
            LookupError, TypeError, ValueError, RuntimeError, AttributeError, ArithmeticError,
            AssertionError,
        ) as error:  # fmt: skip
            if isinstance(error, ConfigError):
                raise
            raise ModelCorruptError(
                f"the checkpoint in {folder} does not fit: {reason_of(error)}. Expected one of the "
                f"same configuration; restore it from a copy, or start over in another folder."
            ) from error
        return True

    def _take(self, state: Mapping[str, Any]) -> None:
        self.learner.load_state(state["learner"])
        self.controller.load(state)
        totals, config = self.totals, self.config
        totals.steps, totals.version = int(state["steps"]), int(state["version"])
        totals.returns.extend(float(value) for value in state["returns"])
        totals.episodes = int(state["episodes"])
        pending = [
            Trajectory(**{name: tensor.numpy() for name, tensor in one.items()})
            for one in state.get("held", [])
        ]
        # Drop trajectories of other sizes: they cannot be batched with new ones.
        pending = [
            one for one in pending if one.rewards.shape == (config.steps, config.environments)
        ]
        needed = self.learner.consumption.trajectories
        if needed:
            # An update waits for at least one more; with a fixed lag, for equally many per actor.
            most = 0 if config.lag is not None else needed - 1
            pending = pending[len(pending) - min(most, len(pending)) :]
        self.pending = pending
        rows = state["observations"].numpy()
        self.observations = ObservationBuffer(
            rows, config.observations, seed=config.seed + totals.version
        )


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Return a folder's checkpoint, or None if there is none.

    Raises:
        ModelCorruptError: the file cannot be read as plain tensors, or is incomplete.
    """
    path = folder / CHECKPOINT
    try:
        value = read_state(path)
    except FileNotFoundError:
        return None
    except ModelCorruptError as why:
        raise _damaged(f"{path} is damaged or not a checkpoint: {why}") from why
    missing = [name for name in PARTS if name not in value]
    if missing:
        raise _damaged(f"{path} has no {', '.join(missing)}", f" with {', '.join(PARTS)}")
    wrong = [name for name in (*PARTS, "held") if not _sound(name, value.get(name, []))]
    if wrong:
        raise _damaged(f"{path} has invalid values for {', '.join(wrong)}")
    return value


def _damaged(what: str, parts: str = "") -> ModelCorruptError:
    return ModelCorruptError(
        f"{what}. Expected a checkpoint of vinoreward actors{parts}; restore it from a copy, or "
        "delete it to start over."
    )


def _sound(name: str, value: object) -> bool:
    """Return whether a part has the type that a training writes."""
    import torch

    if name in ("steps", "version", "episodes"):
        return isinstance(value, int) and value >= 0
    if name == "returns":
        return isinstance(value, list) and all(isinstance(each, int | float) for each in value)
    if name == "observations":
        return isinstance(value, torch.Tensor) and value.ndim > 1 and len(value) > 0
    if name == "held":
        return isinstance(value, list) and all(
            isinstance(one, dict)
            and set(one) == set(ARRAYS)
            and all(isinstance(array, torch.Tensor) for array in one.values())
            for one in value
        )
    return isinstance(value, dict) or (name == "monitor" and value is None)
