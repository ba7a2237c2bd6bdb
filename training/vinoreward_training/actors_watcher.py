"""What happens beside the learning of a run: rows, evaluations, the profile, the target."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vinoreward.actor_learner.profile import PARTS, Breakdown
from vinoreward_training.actors_build import Parts
from vinoreward_training.actors_evaluate import FIRST_SEED, Evaluator, Pair
from vinoreward_training.actors_record import Recorder
from vinoreward_training.actors_settings import ActorsConfig

if TYPE_CHECKING:
    from vinoreward.actor_learner.actor_learner import ActorLearner, Progress, Summary
    from vinoreward.policies.policy import Policy

PAIR_TIMEOUT = 20.0
"""Seconds that an evaluation waits for the compressed policy of the very version it evaluates."""


def difference(whole: Breakdown, first: Breakdown | None) -> Breakdown:
    """Return the breakdown of what came after ``first``: compiling and starting left out."""
    if first is None or whole.steps <= first.steps:
        return whole
    steps = whole.steps - first.steps

    def rest(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
        return {
            part: max(0.0, after[part] * whole.steps - before[part] * first.steps) / steps
            for part in PARTS
        }

    return Breakdown(rest(whole.wall, first.wall), rest(whole.cpu, first.cpu), steps)


class Watcher:
    """What happens beside the learning: rows, evaluations, the profile, the target.

    Args:
        config: settled.
        parts: of the training.
        owner: the training.
        recorder: writes it down.
        evaluator: plays; None: never.
    """

    def __init__(
        self,
        config: ActorsConfig,
        parts: Parts,
        owner: ActorLearner,
        recorder: Recorder,
        evaluator: Evaluator | None,
    ) -> None:
        self._config, self._parts = config, parts
        self._owner, self._recorder, self._evaluator = owner, recorder, evaluator
        self.start = owner.steps
        self._next = _next_multiple(owner.steps, config.evaluate_every)
        self.warm: Breakdown | None = None
        self.evaluation_seconds = 0.0
        self.reached = _reached(config, recorder.rows)

    def __call__(self, progress: Progress) -> bool:
        """Take a training's progress; return whether to stop."""
        monitor = self._parts.monitor
        due = self._recorder.note(progress, None if monitor is None else monitor.setting)
        if due or self.warm is None:
            self._profile(progress)
        every = self._config.evaluate_every
        reached = every > 0 and progress.steps >= self._next
        if self._evaluator is not None and reached and progress.pushed:
            self._next = _next_multiple(progress.steps, every)
            began = time.perf_counter()
            pair = self._owner.policies(PAIR_TIMEOUT)
            return self._evaluate(pair, progress.steps, progress.seconds, began, self._evaluator)
        return False

    def last(self, summary: Summary) -> None:
        """Make the evaluation that is due at a training's end.

        The last steps may have been taken without an update, or one that was not pushed.
        """
        every = self._config.evaluate_every
        if self._evaluator is not None and every > 0 and summary.steps >= self._next:
            began = time.perf_counter()
            self._next = _next_multiple(summary.steps, every)
            pair = (summary.policy, summary.compressed)
            self._evaluate(pair, summary.steps, summary.seconds, began, self._evaluator)

    def _profile(self, progress: Progress) -> None:
        if self.warm is None:
            # Once actors act with what they will go on acting with.
            share = progress.metrics.get("compressed_share", 0.0)
            if self._parts.chain is None or share > 0.5:
                self.warm = self._owner.profile()[0]
            return
        found = difference(self._owner.profile()[0], self.warm)
        self._recorder.profile(found, progress.steps)

    def _evaluate(
        self,
        policies: tuple[Policy, Policy | None],
        step: int,
        seconds: float,
        began: float,
        evaluator: Evaluator,
    ) -> bool:
        full, compressed = policies
        seeds = range(FIRST_SEED, FIRST_SEED + self._config.evaluation_episodes)
        pair = evaluator.pair(full, compressed, seeds)
        took = time.perf_counter() - began
        self.evaluation_seconds += took
        row = self._recorder.evaluation(pair, {"step": step, "seconds": seconds + took})
        self._tell_monitor(pair)
        target = self._config.target
        if target is not None and pair.full.mean >= target:
            self.reached = (step, float(row["seconds"]))
            return True
        return False

    def _tell_monitor(self, pair: Pair) -> None:
        monitor = self._parts.monitor
        if monitor is None:
            return
        from vinoreward.monitoring import MonitorBatch

        # The gap needs a pair; the full policy's return does not, and stages are told by it.
        returns = pair.full.returns if pair.returns is None else pair.returns
        spec = self._parts.learner.spec
        monitor.observe(MonitorBatch.of_returns(spec, returns, pair.full.version))


def _reached(config: ActorsConfig, rows: Sequence[Mapping[str, Any]]) -> tuple[int, float] | None:
    """Return step and seconds of the first evaluation that reached the target, None for none."""
    found = (
        (int(row["step"]), float(row["seconds"]))
        for row in rows
        if row["kind"] == "evaluation"
        and config.target is not None
        and row["full"]["mean"] >= config.target
    )
    return next(found, None)


def _next_multiple(value: int, step: int) -> int:
    return (value // step + 1) * step if step else 0
