"""Evaluations during training: in a process of their own, or in the learner's (``inline``)."""

from __future__ import annotations

import abc
import tempfile
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection

from vinoreward.closing import Closing
from vinoreward.errors import VinorewardError
from vinoreward_actors.actor_learner.acting.config import EngineConfig
from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_actors.actor_learner.acting.evaluation import (
    FIRST_SEED,
    Evaluation,
    Evaluator,
    Pair,
)
from vinoreward_actors.actor_learner.config import ActorLearnerConfig
from vinoreward_actors.actor_learner.controller import Pushed
from vinoreward_actors.actor_learner.engines.base import Event
from vinoreward_actors.actor_learner.engines.processes import Child, run_evaluator
from vinoreward_actors.policies.policy import Policy
from vinoreward_actors.policies.wire import save_policy


class Evaluations(Closing):
    """Evaluates pushed policies, one evaluation at a time."""

    running = False
    """Whether an evaluation has begun and its result was not taken yet."""

    @abc.abstractmethod
    def begin(self, pushed: Pushed, compressed: Policy | None) -> None:
        """Start an evaluation of weights and of their compressed form; none may be running."""

    @abc.abstractmethod
    def take(self) -> tuple[Evaluation | None, list[Event]]:
        """Return the finished evaluation, if any, or an event if it failed; never waits."""


class InlineEvaluations(Evaluations):
    """Evaluates in this process, at once: the same at the same update in every run."""

    def __init__(self, environment: EnvironmentSpec, config: ActorLearnerConfig) -> None:
        self._evaluator = Evaluator(environment, config.backend)
        self._seeds = range(FIRST_SEED, FIRST_SEED + config.evaluation_episodes)
        self._result: tuple[Evaluation | None, list[Event]] = None, []

    def begin(self, pushed: Pushed, compressed: Policy | None) -> None:
        """See :meth:`Evaluations.begin`."""
        start = time.monotonic()
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

    def __init__(self, environment: EnvironmentSpec, config: ActorLearnerConfig) -> None:
        self._arguments = (environment, config.backend, config.evaluation_episodes)
        self._child = Child("evaluation", run_evaluator)
        self._requests: Connection | None = None
        self._files = tempfile.TemporaryDirectory(prefix="vinoreward_")
        self._pushed: Pushed | None = None
        self._failure = ""
        self._begun = self._last_sign = 0.0

    def begin(self, pushed: Pushed, compressed: Policy | None) -> None:
        """See :meth:`Evaluations.begin`."""
        self.running, self._pushed, self._failure = True, pushed, ""
        self._begun = self._last_sign = time.monotonic()
        try:
            # By files, as a pipe holds little: this process would wait until the other one reads.
            save_policy(self._files.name, pushed.policy, "full")
            if compressed is not None:
                save_policy(self._files.name, compressed, "compressed")
            if not self._child.alive:
                self._start()
            if self._requests is not None:
                self._requests.send((self._files.name, compressed is not None))
        except (OSError, VinorewardError) as error:
            self._failure = str(error)

    def take(self) -> tuple[Evaluation | None, list[Event]]:
        """See :meth:`Evaluations.take`."""
        pushed = self._pushed
        if pushed is None:
            return None, []
        played = self._played()
        if played is None and not self._failure:
            return None, []
        self.running, self._pushed = False, None
        if played is None:
            self._end()
            what = f"it failed: {self._failure}; the next one runs in a new process"
            return None, [Event("evaluation", what)]
        took = time.monotonic() - self._begun
        return Evaluation(pushed.steps, pushed.seconds, took, played), []

    def _played(self) -> Pair | None:
        """Return the result if it is there; note a failure."""
        # Check before reading: the last messages are there once it is dead.
        alive = self._child.alive
        for kind, value in self._child.messages():
            if kind == "evaluated":
                return Pair.from_dict(value)
            self._last_sign = time.monotonic()
        if not alive:
            self._failure = self._failure or self._child.ended().why
        elif time.monotonic() - self._last_sign > EngineConfig.start_timeout:
            self._failure = f"it gave no sign of life for {EngineConfig.start_timeout:g} s"
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
