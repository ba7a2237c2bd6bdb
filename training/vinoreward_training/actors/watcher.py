"""The progress callback of a run: rows, evaluations, profile, target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vinoreward.actor_learner.acting.profile import PARTS, Breakdown
from vinoreward_training.actors.build import Parts
from vinoreward_training.actors.record import Recorder
from vinoreward_training.configs.actors import ActorsConfig

if TYPE_CHECKING:
    from vinoreward.actor_learner.acting.evaluation import Evaluation
    from vinoreward.actor_learner.trainer import ActorLearner, Progress, Summary


def difference(whole: Breakdown, first: Breakdown | None) -> Breakdown:
    """Return the breakdown after ``first``, without start-up and compilation."""
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
    """Progress callback of a training: rows, evaluations, profile, target.

    Args:
        config: resolved.
        parts: of the training.
        owner: the training.
        recorder: writes the rows.
    """

    def __init__(
        self,
        config: ActorsConfig,
        parts: Parts,
        owner: ActorLearner,
        recorder: Recorder,
    ) -> None:
        self._config, self._parts = config, parts
        self._owner, self._recorder = owner, recorder
        self.start = owner.steps
        self.warm: Breakdown | None = None
        self.evaluation_seconds = 0.0
        self.reached = _reached(config, recorder.rows)

    def __call__(self, progress: Progress) -> bool:
        """Handle a training's progress; return whether to stop."""
        monitor = self._parts.monitor
        due = self._recorder.note(progress, None if monitor is None else monitor.setting)
        if due or self.warm is None:
            self._profile(progress)
        return self._evaluated(progress.evaluations)

    def last(self, summary: Summary) -> None:
        """Handle the evaluations that finished after the last progress."""
        self._evaluated(summary.evaluations)

    def _profile(self, progress: Progress) -> None:
        if self.warm is None:
            # Once actors act with their final kind of weights.
            share = progress.metrics.get("compressed_share", 0.0)
            if self._parts.chain is None or share > 0.5:
                self.warm = self._owner.profile()[0]
            return
        found = difference(self._owner.profile()[0], self.warm)
        self._recorder.profile(found, progress.steps)

    def _evaluated(self, evaluations: Sequence[Evaluation]) -> bool:
        """Record evaluations; return whether one reached the target."""
        arrived = False
        for one in evaluations:
            self.evaluation_seconds += one.took
            row = self._recorder.evaluation(one.pair, {"step": one.steps, "seconds": one.seconds})
            target = self._config.target
            if target is not None and one.pair.full.mean >= target and self.reached is None:
                self.reached = (one.steps, float(row["seconds"]))
            arrived = self.reached is not None
        return arrived


def _reached(config: ActorsConfig, rows: Sequence[Mapping[str, Any]]) -> tuple[int, float] | None:
    """Return step and seconds of the first evaluation that reached the target, or None."""
    found = (
        (int(row["step"]), float(row["seconds"]))
        for row in rows
        if row["kind"] == "evaluation"
        and config.target is not None
        and row["full"]["mean"] >= config.target
    )
    return next(found, None)
