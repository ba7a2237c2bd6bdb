"""The learner's loop: take trajectories, learn, push weights, and supervise the rest."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from vinoreward.errors import InputError, OutputError
from vinoreward_actors.actor_learner.acting.config import EngineConfig
from vinoreward_actors.actor_learner.acting.evaluation import Evaluation
from vinoreward_actors.actor_learner.acting.profile import COUNTERS, Breakdown
from vinoreward_actors.actor_learner.checkpoint import TrainingState
from vinoreward_actors.actor_learner.config import EVALUATE_EVERY
from vinoreward_actors.actor_learner.controller import Pushed
from vinoreward_actors.actor_learner.engines.base import (
    Engine,
    EngineError,
    Messages,
)
from vinoreward_actors.actor_learner.evaluating import Evaluations
from vinoreward_actors.actor_learner.progress import CompressedShare, Progress, Summary
from vinoreward_actors.actor_learner.sampler import Sampler
from vinoreward_actors.actor_learner.transport.link import NONE, ActorSettings
from vinoreward_actors.actor_learner.transport.trajectory import Trajectory
from vinoreward_actors.policies.policy import Policy

LAST_TIMEOUT = 10.0
"""Seconds that the end of a training waits for the compressor's last policy; for its first one, up
to the start timeout."""
OBSERVATIONS_EVERY = 0.5
"""Minimum seconds between two transfers of observations to the compressor; 29 MB for images."""
WATCH_EVERY = 10
"""Updates between two updates of the monitor."""
SAVE_SHARE = 0.1
"""Maximum fraction of wall time spent checkpointing."""

Check = Callable[[Callable[[], None]], None]
"""Raises KeyboardInterrupt if it was requested, after calling its argument."""
LOG = logging.getLogger("vinoreward")


def _warn(progress: Progress) -> None:
    """Log problems if there is no ``on_progress``; training continues after them."""
    for event in progress.events:
        LOG.warning("%s: %s", event.who, event.what)
    for report in progress.compressor:
        if "error" in report:
            LOG.warning("compressor, version %s: %s", report["version"], report["error"])
    for one in progress.evaluations:
        if one.pair.refused:
            LOG.warning("evaluation, compressed policy: %s", one.pair.refused)


class Loop:
    """One call of ``learn``; it starts the engine and changes the state in place."""

    def __init__(
        self,
        engine: Engine,
        settings: EngineConfig,
        state: TrainingState,
        evaluating: Evaluations,
    ) -> None:
        self._engine, self._state = engine, state
        self._learner, self._config = state.learner, state.config
        self._controller, self._totals = state.controller, state.totals
        self._compressing = state.chain is not None
        self._starting = self._compressing  # until the first message from or about the compressor
        limiter, pending = settings.limiter, state.pending
        self._sampler = Sampler(engine, self._learner, self._config, limiter, pending)
        self._settings = state.controller.actor_settings(ActorSettings())
        self._before = state.totals.steps
        self._learning = 0.0
        self._metrics: dict[str, float] = {}
        self._experience: dict[str, float] = {}
        self._share = CompressedShare()
        self._messages = Messages()
        self._evaluations: list[Evaluation] = []
        """These and the messages are those since the last progress."""
        self._watched = self._pushed_at = state.learner.updates
        self._observations_given = -math.inf
        self._next_save = 0.0
        every, monitor = state.config.evaluate_every, state.controller.monitor
        if every is None:
            every = EVALUATE_EVERY if monitor is not None and monitor.needs_returns else 0
        self._every, self._evaluating = every, evaluating
        self._next_evaluation = self._after(state.totals.steps)
        self._evaluated = state.totals.version
        """The newest evaluated version; the first weights are not evaluated."""
        self._start = time.monotonic()
        self._pushed = self._to_push()
        self._cache()

    def run(
        self, total_steps: int, on_progress: Callable[[Progress], bool | None] | None, check: Check
    ) -> Summary:
        """Train up to a number of environment steps; see ``ActorLearner.learn``."""
        engine, totals = self._engine, self._totals
        engine.start(self._pushed.policy, self._settings, self._state.observations.rows)
        self._start = time.monotonic()
        self._next_save = self._start + self._config.checkpoint_seconds
        stopped = False
        try:
            while totals.steps < total_steps and not stopped:
                with ExitStack() as stack:
                    trajectories = self._sampler.take(stack, totals.version)
                    totals.steps = self._before + self._sampler.steps
                    learned = trajectories is not None and self._learn(trajectories)
                self._take_messages()
                if learned:
                    self._push()
                    if totals.steps < total_steps:  # else once its last weights are compressed
                        self._evaluate()
                    stopped = bool((on_progress or _warn)(self._progress()))
                if time.monotonic() > self._next_save:
                    self._save()
                check(self._save)
            policy, compressed = self._last_policies(check)
            if not stopped:
                self._last_evaluation(check)
        except EngineError:
            # The learner is sound; only acting failed.
            self._save()
            raise
        self._save()
        breakdown, learner_seconds = self.profile()
        return Summary(
            steps=totals.steps,
            updates=self._learner.updates,
            seconds=time.monotonic() - self._start,
            mean_return=totals.mean_return,
            profile=breakdown,
            learner_seconds=learner_seconds,
            stopped=stopped,
            compressed_share=self._share.share if self._compressing else float("nan"),
            staleness=self._share.staleness,
            evaluations=tuple(self._evaluations),
            compressor=tuple(self._messages.compressor),
            policy=policy,
            compressed=compressed,
        )

    def profile(self) -> tuple[Breakdown, float]:
        """Return the breakdown of the actors' time so far, and the learner's seconds per step."""
        counters = self._engine.counters()
        acted = max(1, counters["steps"])
        breakdown = Breakdown.of({name: counters[name] for name in COUNTERS}, acted)
        return breakdown, self._learning / acted

    def _last_policies(self, check: Check) -> tuple[Policy, Policy | None]:
        """Return the last pushed policy, and the compressed one, waiting a while for its version.

        While the compressor still starts, the wait is as long as a start may take.
        """
        full = self._pushed.policy
        if not self._compressing:
            return full, None
        began = time.monotonic()
        while True:
            self._take_messages()
            compressed = self._engine.compressed_policy()
            version = NONE if compressed is None else compressed.version
            failed = [one["version"] for one in self._messages.compressor if "error" in one]
            patience = EngineConfig.start_timeout if self._starting else LAST_TIMEOUT
            if (
                version == full.version
                or full.version in failed
                or not self._settings.enabled
                or time.monotonic() - began > patience
            ):
                return full, compressed
            check(self._save)
            time.sleep(0.02)  # each query copies the policy

    # Learning

    def _learn(self, trajectories: list[Trajectory]) -> bool:
        """Learn from trajectories; return whether there was an update."""
        start = time.perf_counter()
        metrics = self._learner.update(trajectories)
        if trajectories:
            self._state.observations.add(trajectories)
            self._experience = self._share.add(trajectories, self._totals.version)
        if not metrics:
            return False
        self._sampler.learned()
        due = self._learner.updates - self._watched >= WATCH_EVERY
        if trajectories and due:
            self._controller.watch(trajectories, self._totals.version)
            self._watched = self._learner.updates
        self._metrics = {**metrics, **self._experience, "dropped": float(self._sampler.dropped)}
        self._learning += time.perf_counter() - start
        return True

    # Pushes and settings

    def _checked_policy(self) -> Policy:
        """Return the learner's policy; OutputError if it has NaN or infinity."""
        try:
            return self._learner.policy(self._totals.version)
        except InputError as error:
            raise OutputError(
                f"after {self._learner.updates} updates {error} Nothing of it was pushed to actors "
                "or saved."
            ) from error

    def _push(self) -> None:
        engine, totals = self._engine, self._totals
        push = self._learner.updates - self._pushed_at >= self._config.push_period
        # Before the weights to which they apply.
        settings = self._controller.actor_settings(self._settings)
        if settings != self._settings:
            self._settings = settings
            engine.configure(settings)
        if not push:
            return
        start = time.perf_counter()
        self._pushed_at = self._learner.updates
        totals.version += 1
        self._pushed = self._to_push()
        due = start - self._observations_given >= OBSERVATIONS_EVERY
        if self._compressing and (engine.exact or due):
            self._observations_given = start
            engine.give_observations(self._state.observations.rows)
        self._cache()
        engine.publish(self._pushed.policy)
        self._learning += time.perf_counter() - start

    def _to_push(self) -> Pushed:
        return Pushed(
            self._checked_policy(),
            self._totals.steps,
            time.monotonic() - self._start,
        )

    def _cache(self) -> None:
        if self._controller.monitor is not None or self._every:
            self._controller.cache_pushed(self._pushed)

    def _save(self) -> None:
        """Write a checkpoint, and request the compressor's state."""
        start = time.monotonic()
        self._checked_policy()
        if self._state.save():
            self._settings = replace(self._settings, save=self._settings.save + 1)
            self._engine.configure(self._settings)
        now = time.monotonic()
        # A large replay takes seconds to write.
        pause = max(self._config.checkpoint_seconds, (now - start) / SAVE_SHARE)
        self._next_save = now + pause

    # Evaluations

    def _after(self, steps: int) -> float:
        """Return the steps at which the next evaluation is due."""
        return (steps // self._every + 1) * self._every if self._every else math.inf

    def _evaluate(self) -> None:
        """Take a finished evaluation; start one if it is due and none is running."""
        self._take_evaluation()
        if self._evaluating.running or self._totals.steps < self._next_evaluation:
            return
        pushed, compressed = self._pushed, None
        if self._compressing and self._settings.enabled:
            if self._starting:
                return  # soon there is a compressed form
            compressed = self._engine.compressed_policy()
        if compressed is not None:
            # Of the same version, so that they differ by compression alone.
            pushed = self._controller.cache.get(compressed.version) or pushed
            if pushed.version != compressed.version or self._too_old(pushed):
                pushed, compressed = self._pushed, None
        self._next_evaluation = self._after(self._totals.steps)
        if pushed.version > self._evaluated:
            self._evaluated = pushed.version
            self._evaluating.begin(pushed, compressed)

    def _too_old(self, pushed: Pushed) -> bool:
        return self._totals.version - pushed.version > self._config.max_staleness

    def _take_evaluation(self) -> None:
        evaluation, events = self._evaluating.take()
        self._messages.events += events
        if evaluation is not None:
            self._evaluations.append(evaluation)
            self._controller.evaluated(evaluation.pair, self._totals.version)

    def _last_evaluation(self, check: Check) -> None:
        """Wait for the running evaluation, and run one that is due: learning is over."""
        self._finish_evaluation(check)
        self._evaluate()
        self._finish_evaluation(check)

    def _finish_evaluation(self, check: Check) -> None:
        self._take_evaluation()
        while self._evaluating.running:
            self._take_messages()
            check(self._save)
            time.sleep(0.01)
            self._take_evaluation()

    # Reports to the user

    def _take_messages(self) -> None:
        messages = self._engine.messages()
        for _, episode in messages.episodes:
            self._totals.episodes += 1
            self._totals.returns.append(episode.reward if episode.score is None else episode.score)
        self._controller.cache.pulled(messages.pulled)
        messages.events += self._controller.on_refused(messages.refused, self._totals.version)
        self._messages.extend(messages)
        if messages.compressor or any(event.who == "compressor" for event in messages.events):
            self._starting = False

    def _progress(self) -> Progress:
        seconds = time.monotonic() - self._start
        messages, self._messages = self._messages, Messages()
        evaluations, self._evaluations = self._evaluations, []
        return Progress(
            steps=self._totals.steps,
            updates=self._learner.updates,
            seconds=seconds,
            metrics=self._metrics,
            readings=self._controller.readings(),
            mean_return=self._totals.mean_return,
            episodes=self._totals.episodes,
            events=tuple(messages.events),
            changes=self._controller.changes(),
            compressor=tuple(messages.compressor),
            ended=tuple(episode for _, episode in messages.episodes),
            evaluations=tuple(evaluations),
        )
