"""Evaluations in a separate process, on copies, while training continues."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from vinoreward.closing import Closing
from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_actors.actor_learner.acting.evaluation import Evaluation, Pair, send_policy
from vinoreward_actors.actor_learner.config import ActorLearnerConfig
from vinoreward_actors.actor_learner.controller import PolicyCache, Pushed
from vinoreward_actors.actor_learner.engines.base import Engine, EngineError
from vinoreward_actors.actor_learner.engines.config import EngineConfig
from vinoreward_actors.actor_learner.engines.processes import Child, run_evaluator
from vinoreward_actors.actor_learner.engines.supervisor import Event
from vinoreward_actors.actor_learner.transport.link import NONE
from vinoreward_actors.policies.policy import Policy

PAIR_TIMEOUT = 60.0
"""Seconds to wait for a compressed policy; after that the full policy plays alone."""
LOOK_EVERY = 0.1


class _Failed(Exception):
    """An evaluation failed; the message says why."""


class BackgroundEvaluator(Closing):
    """Evaluates pushed policies in a separate process, one evaluation at a time.

    A thread of the learner's process gets the compressed policy from the engine and the learner's
    own from the cache, sends them and waits for the result. The process starts with the first
    evaluation, and again after a failure.
    """

    def __init__(
        self,
        environment: EnvironmentSpec,
        config: ActorLearnerConfig,
        engine: Engine,
        cache: PolicyCache,
    ) -> None:
        self._process_arguments = (environment, config.backend, config.evaluation_episodes)
        self._heartbeat = config.heartbeat
        self._engine, self._cache = engine, cache
        self._child = Child("evaluation", run_evaluator)
        self._requests: Connection | None = None
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._closing = False
        self._made = self._missed = NONE
        self._result: Evaluation | None = None
        self._why = ""

    @property
    def running(self) -> bool:
        """Whether an evaluation has begun and its result was not taken yet."""
        return self._thread is not None

    def on_reports(self, reports: Sequence[Mapping[str, Any]]) -> None:
        """Note which versions the compressor has made, and on which it failed."""
        with self._changed:
            for report in reports:
                if "error" in report:
                    self._missed = max(self._missed, report["version"])
                elif "quality" in report:
                    self._made = max(self._made, report["version"])
            self._changed.notify_all()

    def begin(self, pushed: Pushed, compressed: Policy | None = None, *, pair: bool) -> None:
        """Start an evaluation of the newest weights; none may be running.

        With ``pair`` and without ``compressed``, it waits for the next compressed version.
        """
        if not self._child.alive:
            self._start()
        arguments = (pushed, compressed, pair and compressed is None)
        self._thread = threading.Thread(
            target=self._run, args=arguments, name="vinoreward evaluation", daemon=True
        )
        self._thread.start()

    def take(self) -> tuple[Evaluation | None, list[Event]]:
        """Return the finished evaluation, if any, or an event if it failed."""
        if self._thread is None or self._thread.is_alive():
            return None, []
        self._thread.join()
        self._thread = None
        result, why, self._result, self._why = self._result, self._why, None, ""
        return result, [Event("evaluation", why)] if why else []

    def close(self) -> None:
        """Stop the current evaluation and the process."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._child.kill()  # the thread may be writing to its pipe
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._end()

    # The process

    def _start(self) -> None:
        self._end()
        theirs, self._requests = get_context("spawn").Pipe(duplex=False)
        try:
            self._child.start(*self._process_arguments, theirs)
        finally:
            theirs.close()

    def _end(self) -> None:
        self._child.end()
        if self._requests is not None:
            self._requests.close()
            self._requests = None

    # The thread

    def _run(self, pushed: Pushed, compressed: Policy | None, pair: bool) -> None:
        start = time.monotonic()
        try:
            if pair:
                pushed, compressed = self._matching(pushed)
            played = self._played(pushed.policy, compressed)
        except (_Failed, OSError) as error:
            self._child.end()
            if not self._closing:
                self._why = f"it failed: {error}; the next one runs in a new process"
            return
        self._result = Evaluation(pushed.steps, pushed.seconds, time.monotonic() - start, played)

    def _matching(self, pushed: Pushed) -> tuple[Pushed, Policy | None]:
        """Return matching full and compressed policies of this version or a later one."""
        deadline, tried = time.monotonic() + PAIR_TIMEOUT, pushed.version - 1
        while self._made_after(tried, pushed.version, deadline):
            tried = self._made
            compressed = None
            with contextlib.suppress(EngineError):  # the learner's next call raises it
                compressed = self._engine.compressed_policy()
            full = None if compressed is None else self._cache.get(compressed.version)
            if full is not None and full.version >= pushed.version:
                return full, compressed
        return pushed, None

    def _made_after(self, tried: int, wanted: int, deadline: float) -> bool:
        """Wait for a version after ``tried``; False if the compressor will not make it."""

        def over() -> bool:
            return self._closing or self._made > tried or self._missed >= wanted

        with self._changed:
            self._changed.wait_for(over, max(0.0, deadline - time.monotonic()))
            return self._made > tried and not self._closing

    def _played(self, full: Policy, compressed: Policy | None) -> Pair:
        if self._requests is None:
            raise _Failed("its process is gone")
        send_policy(self._requests, full)
        send_policy(self._requests, compressed)
        last_message, patience = time.monotonic(), EngineConfig.start_timeout
        while not self._closing:
            wait(self._child.handles, LOOK_EVERY)
            # Check before reading: the last messages are there once it is dead.
            alive = self._child.alive
            for kind, value in self._child.messages():
                if kind == "evaluated":
                    return Pair.from_dict(value)
                last_message, patience = time.monotonic(), self._heartbeat
            if not alive:
                raise _Failed(self._child.ended().why)
            if time.monotonic() - last_message > patience:
                raise _Failed(f"gave no sign of life for {patience:g} s")
        raise _Failed("training is over")
