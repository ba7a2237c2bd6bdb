"""Base of learners with a replay: inserting, sampling, and n-step targets."""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from vinoreward.actor_learner.learners.base import Consumption, LearnerConfig, ModuleLearner
from vinoreward.actor_learner.learners.replay import PrioritizedReplay, Replay, Windows
from vinoreward.actor_learner.transport.trajectory import Trajectory
from vinoreward.correction import Correction, Corrector, NoCorrection, OffPolicyBatch
from vinoreward.errors import ConfigError
from vinoreward.policies.policy import Floats
from vinoreward.policies.spec import PolicySpec

Module = TypeVar("Module", bound=nn.Module)
StateValues = Callable[[Tensor], Tensor]
Executed = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(LearnerConfig):
    """Settings common to learners with a replay.

    Attributes:
        batch_size: windows per update.
        buffer_size: slots of the replay, a few percent more than transitions.
        learning_starts: transitions in the replay before the first update.
        n_step: steps of a target. One step needs no corrector: any behaviour policy will do.
        correctors: correction of n-step targets; see each learner. Uncorrected targets must be
            explicit: ``(NoCorrection(),)``.
        prioritized: sample by error; ``None`` samples uniformly.
    """

    batch_size: int = 256
    buffer_size: int = 100_000
    learning_starts: int = 1_000
    n_step: int = 1
    correctors: tuple[Corrector, ...] = ()
    prioritized: PrioritizedReplay | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.batch_size, self.learning_starts, self.n_step) < 1 or (
            2 * self.learning_starts > self.buffer_size
        ):
            # Ends of trajectories take slots, too: transitions may fill little over half of them.
            raise ConfigError(
                f"the replay has batch_size={self.batch_size}, "
                f"learning_starts={self.learning_starts}, n_step={self.n_step} and "
                f"buffer_size={self.buffer_size}. Expected at least 1 each, and room for twice "
                "learning_starts."
            )
        if self.n_step > 1 and not self.correctors:
            raise ConfigError(
                f"targets of {self.n_step} steps have no corrector, but their later actions are "
                "those of another policy. Expected correctors=(Retrace(),), (TreeBackup(),), or "
                "(NoCorrection(),) if you accept the bias; or n_step=1."
            )
        if any(each.role == "policy_gradient" for each in self.correctors):
            raise ConfigError(
                f"the correctors {self.correctors} do not fit a learner with a replay, whose "
                "policy gradient has no importance weight. Expected correctors of role target."
            )


class ReplayLearner(ModuleLearner):
    """Learns from windows of a replay, with one gradient step per update.

    Args:
        spec: the actors' network.
        config: settings.
    """

    def __init__(self, spec: PolicySpec, config: ReplayConfig) -> None:
        super().__init__(spec, config)
        self._config = config
        self.replay = Replay(
            spec, config.buffer_size, seed=config.seed, priorities=config.prioritized
        )
        self.save_parts("replay")
        chain = config.correctors or (NoCorrection(),)
        self.correction = Correction(chain, critic="q")
        self._plain = all(
            isinstance(each, NoCorrection) and each.lam == 1.0 and each.steps is None
            for each in chain
        )

    @property
    def consumption(self) -> Consumption:
        """Batches from the replay."""
        return Consumption(0, sampled=self._config.batch_size, minimum=self._config.learning_starts)

    @property
    def ready(self) -> bool:
        """Whether the replay has enough transitions."""
        return self.replay.size >= self._config.learning_starts

    def update(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Insert trajectories into the replay and make one step; see :meth:`Learner.update`."""
        for trajectory in trajectories:
            self.replay.add(trajectory)
        if not self.ready:
            return {}
        windows = self.replay.sample(self._config.batch_size, self._config.n_step)
        metrics, errors = self._learn(windows)
        self.replay.update_priorities(windows, errors)
        self.updates += 1
        return {**metrics, "replay_size": float(self.replay.size)}

    @abc.abstractmethod
    def _learn(self, windows: Windows) -> tuple[dict[str, float], npt.NDArray[np.float32]]:
        """Make one step; return metrics and the error (B,) of each window."""

    def first(self, windows: Windows) -> tuple[Tensor, Tensor]:
        """Return observations (B, *observation) and actions of the windows' first steps."""
        observations = self.replay.observations(windows.slots[0])
        return self.tensor(observations), self.tensor(windows.actions[0])

    def summed(self, windows: Windows) -> tuple[Tensor, Tensor, Tensor]:
        """Return rewards of uncorrected n-step targets, and their bootstrap.

        Returns:
            tuple: discounted sums of rewards (B,), the discounts (B,) of the bootstrap, 0 after a
            termination, and its observations (B, *observation).
        """
        returns, discounts = n_step_sums(
            self._config.rewards(windows.rewards), windows, self._config.gamma
        )
        # Rows below an end repeat the last step, so the last row is always the window's end.
        following = self.tensor(self.replay.successors(windows.slots[-1]))
        return self.tensor(returns), self.tensor(discounts), following

    def targets(self, windows: Windows, state_values: StateValues, executed: Executed) -> Tensor:
        """Return targets (B,) for the windows' first actions, corrected if there is a corrector.

        Args:
            windows: (n, B).
            state_values: returns values (N,) of observations under the learned policy.
            executed: returns log probabilities (N,) of executed actions under that policy, and
                their action values (N,).
        """
        if self._plain:
            returns, discounts, following = self.summed(windows)
            return returns + discounts * state_values(following)
        slots = windows.slots.reshape(-1)
        actions = windows.actions.reshape(len(slots), *windows.actions.shape[2:])
        log_pi, q_values = executed(
            self.tensor(self.replay.observations(slots)), self.tensor(actions)
        )
        next_values = state_values(self.tensor(self.replay.successors(slots)))
        for name, values in (("action values", q_values), ("values", next_values)):
            self.check_finite(name, values)

        def shaped(values: Tensor) -> Floats:
            array: Floats = values.detach().float().cpu().numpy().reshape(windows.slots.shape)
            return array

        corrected = self.correction(
            OffPolicyBatch(
                log_pi=shaped(log_pi),
                log_mu=windows.log_mu,
                rewards=self._config.rewards(windows.rewards),
                terminated=windows.terminated,
                truncated=windows.ends & ~windows.terminated,
                values=shaped(q_values),
                next_values=shaped(next_values),
                gamma=self._config.gamma,
                q_values=shaped(q_values),
            )
        )
        return self.tensor(corrected.targets[0])


def n_step_sums(rewards: Floats, windows: Windows, gamma: float) -> tuple[Floats, Floats]:
    """Return discounted sums of rewards (B,) and discounts (B,) of the bootstrap.

    Args:
        rewards: (n, B), of the windows, possibly clipped.
        windows: (n, B); each is summed up to its end.
        gamma: discount per step.
    """
    # Whether a row belongs to its window: no end above it.
    inside: npt.NDArray[np.bool_] = np.cumsum(windows.ends, axis=0) - windows.ends == 0
    powers = gamma ** np.arange(len(rewards), dtype=np.float64)[:, None]
    returns = (powers * rewards * inside).sum(0)
    follows = ~(windows.terminated & inside).any(0)
    discounts = gamma ** inside.sum(0) * follows
    return returns.astype(np.float32), discounts.astype(np.float32)


def frozen_copy(module: Module) -> Module:
    """Return a frozen copy of a network."""
    return copy.deepcopy(module).requires_grad_(False)


def polyak_update(target: nn.Module, module: nn.Module, share: float) -> None:
    """Move a target network by ``share`` towards a network; 1 copies it."""
    with torch.no_grad():
        for old, new in zip(target.parameters(), module.parameters(), strict=True):
            old.lerp_(new, share)
