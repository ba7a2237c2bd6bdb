"""The learner's input: as many trajectories as it needs, none too old, at the configured rate."""

from __future__ import annotations

from contextlib import ExitStack

from vinoreward_actors.actor_learner.config import ActorLearnerConfig, SamplesPerInsert
from vinoreward_actors.actor_learner.engines.base import Engine
from vinoreward_actors.actor_learner.learners.base import Learner
from vinoreward_actors.actor_learner.transport.trajectory import Batch, Trajectory

TAKE_TIMEOUT = 0.2
MOST_AT_ONCE = 64


class Sampler:
    """Takes trajectories from an engine for a learner.

    It changes ``pending``, the trajectories not learned from yet, in place: checkpoints contain
    them. ``steps`` counts what was taken, ``dropped`` trajectories that were too old.
    """

    def __init__(
        self,
        engine: Engine,
        learner: Learner,
        config: ActorLearnerConfig,
        limiter: SamplesPerInsert | None,
        pending: list[Trajectory],
    ) -> None:
        self._engine = engine
        self._learner = learner
        self._config = config
        self._limiter = limiter
        self._pending = pending
        self._samples = 0
        self.steps = 0
        self.dropped = 0

    def take(self, stack: ExitStack, version: int) -> list[Trajectory] | None:
        """Return the learner's next trajectories, which ``stack`` releases; None to wait."""
        if self._learner.consumption.trajectories > 0:
            return self._fresh(stack, version)
        return self._for_replay(stack)

    def learned(self) -> None:
        """Count one sampled batch of the learner."""
        count = self._learner.consumption.sampled
        self._samples += count
        self._engine.sampled(count)

    def _fresh(self, stack: ExitStack, version: int) -> list[Trajectory] | None:
        needs = self._learner.consumption
        missing = needs.trajectories - len(self._pending)
        # What is there, as some actors may be lost, and those left have fewer slots.
        count = min(missing, max(1, self._engine.waiting()))
        batch = self._engine.take(count, timeout=TAKE_TIMEOUT)
        if batch is None:
            return None
        trajectories = self._taken(stack, batch)
        oldest = version - self._config.max_lag
        young = [one for one in trajectories if int(one.versions.min()) >= oldest]
        self.dropped += len(trajectories) - len(young)
        if len(self._pending) + len(young) < needs.trajectories:
            self._pending += [one.copy() for one in young]
            return None
        return self._released() + young

    def _for_replay(self, stack: ExitStack) -> list[Trajectory] | None:
        may = False
        if self._learner.ready and self._limiter is not None:
            sampled = self._learner.consumption.sampled
            inserted = self._engine.counters(("steps",))["steps"]
            may = self._limiter.can_sample(inserted, self._samples, sampled)
        waiting = min(self._engine.waiting(), MOST_AT_ONCE)
        # If learning is not allowed yet, wait for experience.
        count = waiting if may else max(1, waiting)
        timeout = 0.0 if may else TAKE_TIMEOUT
        batch = self._engine.take(count, timeout=timeout) if count else None
        if batch is None and not may:
            return None
        trajectories = [] if batch is None else self._taken(stack, batch)
        if not may and self._learner.ready:
            # The learner inserts and learns in one call. It gets these once it may learn.
            self._pending += [one.copy() for one in trajectories]
            return None
        return self._released() + trajectories

    def _released(self) -> list[Trajectory]:
        pending = self._pending.copy()
        self._pending.clear()
        return pending

    def _taken(self, stack: ExitStack, batch: Batch) -> list[Trajectory]:
        trajectories = list(stack.enter_context(batch))
        self.steps += sum(one.rewards.size for one in trajectories)
        return trajectories
