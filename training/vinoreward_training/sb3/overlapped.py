"""Gradient steps of Stable-Baselines3 while a batch of environments takes its next step."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar, cast

from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from vinoreward.errors import ConfigError
from vinoreward_training.sb3.batched import BatchedVecEnv

if TYPE_CHECKING:
    from stable_baselines3.common.type_aliases import RolloutReturn

Algorithm = TypeVar("Algorithm", bound=OffPolicyAlgorithm)


class OverlappedTraining(OffPolicyAlgorithm):
    """Takes gradient steps while a batch of environments takes its next step.

    Rendering and scoring a batch takes as long as the gradient steps that follow it::

        model = OverlappedTraining.of(SAC)("MlpPolicy", BatchedVecEnv(batch))

    Training stays deterministic: the gradient steps of an iteration see the same transitions as
    ever, but they come after the choice of the next actions instead of before it, so the policy
    that acts is one iteration older. The last are taken at the end.
    """

    postponed = 0
    """Gradient steps that are due with the next step of the environments."""
    _learns = False

    @staticmethod
    @functools.cache
    def of(algorithm: type[Algorithm]) -> type[Algorithm]:
        """Return an off-policy algorithm's class with overlapped training; its name stays."""
        if not issubclass(algorithm, OffPolicyAlgorithm):
            raise ConfigError(
                field="algorithm",
                value=algorithm.__name__,
                expected="an off-policy one, such as SAC, TD3 or DQN: others learn from whole "
                "rollouts and leave no time to train in",
            )
        if issubclass(algorithm, OverlappedTraining):
            return algorithm
        about = {"__doc__": algorithm.__doc__, "__module__": __name__}
        return cast(
            "type[Algorithm]", type(algorithm.__name__, (OverlappedTraining, algorithm), about)
        )

    def learn(self, *arguments: Any, **options: Any) -> Any:
        """Learn as the algorithm does."""
        self._learns = True
        try:
            super().learn(*arguments, **options)
        finally:
            self._learns = False
        self._train_postponed()
        return self

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """Take gradient steps now; within :meth:`learn`, with the environments' next step."""
        if self._learns:
            self.postponed = gradient_steps
        else:
            super().train(gradient_steps=gradient_steps, batch_size=batch_size)

    def collect_rollouts(self, *arguments: Any, **options: Any) -> RolloutReturn:
        """Collect as the algorithm does, and train while the environments take the first step."""
        batch: Any = None if self.env is None else self.env.unwrapped
        if not isinstance(batch, BatchedVecEnv):
            raise ConfigError(
                field="env",
                value=type(batch).__name__,
                expected="a BatchedVecEnv, which steps in a thread",
            )

        def train_once() -> None:  # with the first step, where a rollout has several
            batch.overlap_fn = None
            self._train_postponed()

        batch.overlap_fn = train_once if self.postponed else None
        try:
            return super().collect_rollouts(*arguments, **options)
        finally:
            batch.overlap_fn = None

    def _train_postponed(self) -> None:
        due, self.postponed = self.postponed, 0
        if due:
            super().train(gradient_steps=due, batch_size=self.batch_size)
            self.policy.set_training_mode(False)
