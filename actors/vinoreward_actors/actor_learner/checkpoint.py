"""Checkpoints of a training: learner, monitor and counters; loaded as plain data only."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ModelCorruptError
from vinoreward.files import read_state, save_state
from vinoreward_actors.actor_learner.acting.config import OBSERVATIONS
from vinoreward_actors.actor_learner.compressor import STATE_FILE, check_state
from vinoreward_actors.actor_learner.config import ActorLearnerConfig
from vinoreward_actors.actor_learner.progress import Totals
from vinoreward_actors.actor_learner.transport.trajectory import Trajectory
from vinoreward_actors.compression.chain import CompressorChain

if TYPE_CHECKING:  # importing them imports torch
    from vinoreward_actors.actor_learner.controller import Controller
    from vinoreward_actors.actor_learner.learners.base import Learner

Array = npt.NDArray[Any]
CHECKPOINT = "checkpoint.pt"


class ObservationBuffer:
    """The last observations: at most ``each`` of every trajectory, so that they reach further back.

    It begins with ``first``, (N, *shape).
    """

    def __init__(
        self, first: Array, capacity: int = OBSERVATIONS, *, each: int = 64, seed: int = 0
    ) -> None:
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
                "steps": totals.steps,
                "version": totals.version,
                "returns": list(totals.returns),
                "episodes": totals.episodes,
                "observations": torch.from_numpy(self.observations.rows),
                "pending": [
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
            ConfigError: the learner or the chain is of another configuration.
        """
        folder = self.folder
        state = None if folder is None else load_checkpoint(folder)
        if folder is None or state is None:
            return False
        if self.chain is not None and (folder / STATE_FILE).is_file():
            # Now: later only the compressor's process would fail, and training would run on.
            check_state(folder / STATE_FILE, self.chain)
        self._take(state)
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
            for one in state["pending"]
        ]
        # Drop trajectories of other sizes: they cannot be batched with new ones.
        pending = [
            one for one in pending if one.rewards.shape == (config.steps, config.environments)
        ]
        needed = self.learner.consumption.trajectories
        if needed:
            # An update waits for at least one more.
            pending = pending[len(pending) - min(needed - 1, len(pending)) :]
        self.pending = pending
        rows = state["observations"].numpy()
        self.observations = ObservationBuffer(rows, seed=config.seed + totals.version)


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Return a folder's checkpoint, or None if there is none.

    Raises:
        ModelCorruptError: the file cannot be read as plain tensors.
    """
    path = folder / CHECKPOINT
    try:
        return read_state(path)
    except FileNotFoundError:
        return None
    except ModelCorruptError as why:
        raise ModelCorruptError(
            f"{path} is damaged or not a checkpoint: {why}. Expected a checkpoint of vinoreward "
            "actors; restore it from a copy, or delete it to start over."
        ) from why
