"""Evaluations beside a training: in a process of its own, on copies; the learner goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from vinoreward.actor_learner.acting.environments import EnvironmentSpec
from vinoreward.actor_learner.acting.evaluation import Evaluation, Pair, send_policy
from vinoreward.actor_learner.engines.base import Engine, EngineConfig, EngineError
from vinoreward.actor_learner.engines.local.processes import Child, run_evaluator
from vinoreward.actor_learner.engines.supervisor import Event
from vinoreward.actor_learner.policy_cache import PolicyCache, Pushed
from vinoreward.actor_learner.transport.link import NONE
from vinoreward.closing import Closing
from vinoreward.policies.policy import Policy

PAIR_TIMEOUT = 60.0
"""Seconds that an evaluation waits for a compressed policy; then the full one plays alone."""
LOOK_EVERY = 0.1


class _Failed(Exception):
    """An evaluation that could not be made, in words."""


class EvaluationsBeside(Closing):
    """Evaluates pushed policies in a process of its own, one evaluation at a time.

    A thread of the learner's process finds both policies, sends them and waits for the result.
    The process is started for the first evaluation, and again after it failed.

    Args:
        environment: to play in.
        backend: of full-precision policies.
        episodes: of an evaluation.
        heartbeat: seconds that one step of an environment may take.
        engine: gives the compressed policies.
        kept: the learner's own of the same versions.
    """

    def __init__(
        self,
        environment: EnvironmentSpec,
        backend: str,
        episodes: int,
        heartbeat: float,
        engine: Engine,
        kept: PolicyCache,
    ) -> None:
        self._told = (environment, backend, episodes)
        self._heartbeat = heartbeat
        self._engine, self._kept = engine, kept
        self._child = Child("evaluation", run_evaluator)
        self._requests: Connection | None = None
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._closing = False
        self._made = self._missed = NONE
        self._found: Evaluation | None = None
        self._why = ""

    @property
    def under_way(self) -> bool:
        """Whether one was begun and not taken yet."""
        return self._thread is not None

    def heard(self, reports: Sequence[Mapping[str, Any]]) -> None:
        """Hear of the compressor's reports: which versions it has made, and which it could not."""
        with self._changed:
            for report in reports:
                if "error" in report:
                    self._missed = max(self._missed, report["version"])
                elif "quality" in report:
                    self._made = max(self._made, report["version"])
            self._changed.notify_all()

    def begin(self, pushed: Pushed, compressed: Policy | None = None, *, pair: bool) -> None:
        """Begin an evaluation; none may be under way.

        Args:
            pushed: the newest weights.
            compressed: what became of them, if that is known.
            pair: otherwise wait for the next that the compressor makes, of these or later ones.
        """
        if not self._child.alive:
            self._start()
        arguments = (pushed, compressed, pair and compressed is None)
        self._thread = threading.Thread(
            target=self._run, args=arguments, name="vinoreward evaluation", daemon=True
        )
        self._thread.start()

    def take(self) -> tuple[Evaluation | None, list[Event]]:
        """Return the evaluation that has ended, if one has, or what happened to it."""
        if self._thread is None or self._thread.is_alive():
            return None, []
        self._thread.join()
        self._thread = None
        found, why, self._found, self._why = self._found, self._why, None, ""
        return found, [Event("evaluation", why)] if why else []

    def close(self) -> None:
        """End what is under way, and the process."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._child.kill()  # the thread may be writing to it
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._end()

    # The process

    def _start(self) -> None:
        self._end()
        theirs, self._requests = get_context("spawn").Pipe(duplex=False)
        try:
            self._child.start(*self._told, theirs)
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
                self._why = f"it failed: {error}; the next one is made in another process"
            return
        self._found = Evaluation(pushed.steps, pushed.seconds, time.monotonic() - start, played)

    def _matching(self, pushed: Pushed) -> tuple[Pushed, Policy | None]:
        """Return weights and what the compressor made of them, of this version or a later one."""
        deadline, tried = time.monotonic() + PAIR_TIMEOUT, pushed.version - 1
        while self._made_after(tried, pushed.version, deadline):
            tried = self._made
            compressed = self._compressed()
            full = None if compressed is None else self._kept.get(compressed.version)
            if full is not None and full.version >= pushed.version:
                return full, compressed
        return pushed, None

    def _made_after(self, tried: int, wanted: int, deadline: float) -> bool:
        """Wait for the compressor to make a version after ``tried``; False if it will not."""

        def over() -> bool:
            return self._closing or self._made > tried or self._missed >= wanted

        with self._changed:
            self._changed.wait_for(over, max(0.0, deadline - time.monotonic()))
            return self._made > tried and not self._closing

    def _compressed(self) -> Policy | None:
        try:
            return self._engine.compressed_policy()
        except EngineError:
            return None  # the learner's next call says so

    def _played(self, full: Policy, compressed: Policy | None) -> Pair:
        if self._requests is None:
            raise _Failed("its process is gone")
        send_policy(self._requests, full)
        send_policy(self._requests, compressed)
        heard, patience = time.monotonic(), EngineConfig.start_timeout
        while not self._closing:
            wait(self._child.handles, LOOK_EVERY)
            # Before its messages: the last of them are there when it is gone.
            alive = self._child.alive
            for kind, value in self._child.messages():
                if kind == "evaluated":
                    return Pair.from_dict(value)
                heard, patience = time.monotonic(), self._heartbeat
            if not alive:
                raise _Failed(self._child.ended().why)
            if time.monotonic() - heard > patience:
                raise _Failed(f"gave no sign of life for {patience:g} s")
        raise _Failed("training is over")
