"""Evaluations during training: in a process of their own, or in the learner's (``inline``)."""

from __future__ import annotations

import abc
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from vinoreward.closing import Closing
from vinoreward.errors import VinorewardError
from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_actors.actor_learner.acting.evaluation import (
    FIRST_SEED,
    Evaluation,
    Evaluator,
    Pair,
    write_policies,
)
from vinoreward_actors.actor_learner.config import ActorLearnerConfig
from vinoreward_actors.actor_learner.controller import PolicyCache, Pushed
from vinoreward_actors.actor_learner.engines.base import Engine, Event
from vinoreward_actors.actor_learner.engines.config import EngineConfig
from vinoreward_actors.actor_learner.engines.processes import Child, run_evaluator
from vinoreward_actors.actor_learner.transport.link import NONE
from vinoreward_actors.policies.policy import Policy

PAIR_TIMEOUT = 60.0
"""Seconds to wait for a compressed policy; after that the full policy plays alone."""


class Evaluations(Closing):
    """Evaluates pushed policies, one evaluation at a time."""

    running = False
    """Whether an evaluation has begun and its result was not taken yet."""

    def on_reports(self, reports: Sequence[Mapping[str, Any]]) -> None:
        """Note which versions the compressor has made, and on which it failed."""

    @abc.abstractmethod
    def begin(self, pushed: Pushed, *, pair: bool) -> None:
        """Start an evaluation of the newest weights; none may be running.

        With ``pair`` also of their compressed form, or of that of later weights.
        """

    @abc.abstractmethod
    def take(self) -> tuple[Evaluation | None, list[Event]]:
        """Return the finished evaluation, if any, or an event if it failed; never waits."""


class InlineEvaluations(Evaluations):
    """Evaluates in this process, at once: the same at the same update in every run."""

    def __init__(
        self, environment: EnvironmentSpec, config: ActorLearnerConfig, engine: Engine
    ) -> None:
        self._evaluator = Evaluator(environment, config.backend)
        self._seeds = range(FIRST_SEED, FIRST_SEED + config.evaluation_episodes)
        self._engine = engine
        self._result: tuple[Evaluation | None, list[Event]] = None, []

    def begin(self, pushed: Pushed, *, pair: bool) -> None:
        """See :meth:`Evaluations.begin`."""
        start = time.monotonic()
        compressed = self._engine.compressed_policy() if pair else None
        if compressed is not None and compressed.version != pushed.version:
            compressed = None  # the compressor failed on this version
        try:
            played = self._evaluator.pair(pushed.policy, compressed, self._seeds)
        except VinorewardError as error:
            self._result = None, [Event("evaluation", f"it failed: {error}")]
        else:
            took = time.monotonic() - start
            self._result = Evaluation(pushed.steps, pushed.seconds, took, played), []
        self.running = True

    def take(self) -> tuple[Evaluation | None, list[Event]]:
        """See :meth:`Evaluations.take`."""
        result, self._result, self.running = self._result, (None, []), False
        return result

    def close(self) -> None:
        """Close the environments."""
        self._evaluator.close()


class BackgroundEvaluations(Evaluations):
    """Evaluates in a separate process, on copies, while training continues.

    The process starts with the first evaluation, and again after a failure.
    """

    def __init__(
        self,
        environment: EnvironmentSpec,
        config: ActorLearnerConfig,
        engine: Engine,
        cache: PolicyCache,
    ) -> None:
        self._arguments = (environment, config.backend, config.evaluation_episodes)
        self._engine, self._cache = engine, cache
        self._child = Child("evaluation", run_evaluator)
        self._requests: Connection | None = None
        self._files = tempfile.TemporaryDirectory(prefix="vinoreward_")
        self._pushed: Pushed | None = None
        self._sent = False
        self._made = self._missed = self._tried = NONE
        self._begun = self._last_sign = 0.0

    def on_reports(self, reports: Sequence[Mapping[str, Any]]) -> None:
        """See :meth:`Evaluations.on_reports`."""
        for report in reports:
            if "error" in report:
                self._missed = max(self._missed, report["version"])
            elif "quality" in report:
                self._made = max(self._made, report["version"])

    def begin(self, pushed: Pushed, *, pair: bool) -> None:
        """See :meth:`Evaluations.begin`."""
        self.running, self._pushed, self._sent = True, pushed, False
        self._begun = time.monotonic()
        # Without a pair nothing is waited for.
        self._tried = pushed.version - 1 if pair else self._made
        if not pair:
            self._send(pushed, None)

    def take(self) -> tuple[Evaluation | None, list[Event]]:
        """See :meth:`Evaluations.take`."""
        if self._pushed is None:
            return None, []
        try:
            if not self._sent:
                self._match(self._pushed)
            played = self._played() if self._sent else None
        except (EvaluationError, OSError) as error:
            self._end()
            what = f"it failed: {error}; the next one runs in a new process"
            self.running, self._pushed = False, None
            return None, [Event("evaluation", what)]
        if played is None:
            return None, []
        pushed, took = self._pushed, time.monotonic() - self._begun
        self.running, self._pushed = False, None
        return Evaluation(pushed.steps, pushed.seconds, took, played), []

    def _match(self, wanted: Pushed) -> None:
        """Send matching full and compressed policies, of this version or a later one."""
        if self._made > self._tried:
            self._tried = self._made
            compressed = self._engine.compressed_policy()
            full = None if compressed is None else self._cache.get(compressed.version)
            if full is not None and full.version >= wanted.version:
                self._send(full, compressed)
        elif self._missed >= wanted.version or time.monotonic() - self._begun > PAIR_TIMEOUT:
            self._send(wanted, None)

    def _send(self, pushed: Pushed, compressed: Policy | None) -> None:
        self._pushed, self._sent = pushed, True
        self._last_sign = time.monotonic()
        # By files, as a pipe holds little: this process would wait until the other one reads.
        write_policies(Path(self._files.name), pushed.policy, compressed)
        if self._requests is None or not self._child.alive:
            self._start()
        if self._requests is not None:
            self._requests.send_bytes(self._files.name.encode())

    def _played(self) -> Pair | None:
        # Check before reading: the last messages are there once it is dead.
        alive = self._child.alive
        for kind, value in self._child.messages():
            if kind == "evaluated":
                return Pair.from_dict(value)
            self._last_sign = time.monotonic()
        if not alive:
            raise EvaluationError(self._child.ended().why)
        if time.monotonic() - self._last_sign > EngineConfig.start_timeout:
            raise EvaluationError(f"it gave no sign of life for {EngineConfig.start_timeout:g} s")
        return None

    def _start(self) -> None:
        self._end()
        theirs, self._requests = get_context("spawn").Pipe(duplex=False)
        try:
            self._child.start(*self._arguments, theirs)
        finally:
            theirs.close()

    def _end(self) -> None:
        self._child.end()
        if self._requests is not None:
            self._requests.close()
            self._requests = None

    def close(self) -> None:
        """Stop the current evaluation and the process."""
        self._end()
        self._files.cleanup()


class EvaluationError(Exception):
    """An evaluation failed; the message says why."""
