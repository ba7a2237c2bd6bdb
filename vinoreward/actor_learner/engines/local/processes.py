"""What local child processes run; imported in the child, so nothing heavy at the top."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait

from vinoreward.actor_learner.acting.actor import Actor, ActorConfig
from vinoreward.actor_learner.acting.environments import EnvironmentSpec
from vinoreward.actor_learner.acting.evaluation import FIRST_SEED, Evaluator, receive_policy
from vinoreward.actor_learner.compressor import Compressor, CompressorConfig
from vinoreward.actor_learner.engines.error_report import error_report
from vinoreward.actor_learner.engines.local.links import (
    LocalActorLink,
    LocalCompressorLink,
    Shared,
)
from vinoreward.actor_learner.engines.local.messages import send
from vinoreward.actor_learner.limiter import SamplesPerInsert
from vinoreward.child_python import forget_safe_path
from vinoreward.interrupts import STOPS
from vinoreward.policies.backends.registry import BackendOutputs

TERMINATED_GRACE = 30.0
"""Seconds after SIGTERM in which the learner may save what it has, and end this process itself."""
SIGN_EVERY = 0.5
"""Seconds between two signs of life of an evaluation."""
FAILED = 3
"""Exit status of a process that reported its error."""


def _end_with_parent() -> None:
    """End this process as soon as the learner's is gone: nothing is left to act for."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    wait([parent.sentinel])
    os._exit(1)


def _end_later(number: int, frame: object) -> None:
    """End this process if the learner, which has been asked to end as well, does not do it."""
    late = threading.Timer(TERMINATED_GRACE, os._exit, (1,))
    late.daemon = True
    late.start()


def _prepare() -> None:
    forget_safe_path()
    # The learner decides what Ctrl-C and SIGTERM mean; they reach all processes of a terminal, or
    # of a job, at once. Until here they were blocked (see Child.start).
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_later)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    threading.Thread(target=_end_with_parent, daemon=True).start()


@contextlib.contextmanager
def _reporting(pipe: Connection) -> Iterator[None]:
    """Send what is to be said of whatever goes wrong, then end; the supervisor decides."""
    try:
        yield
    except BaseException as error:  # noqa: BLE001  (nothing is swallowed: the learner is told)
        with contextlib.suppress(OSError):
            send(pipe, "error", error_report(error))
        os._exit(FAILED)


def run_actor(
    config: ActorConfig,
    shared: Shared,
    limiter: SamplesPerInsert | None,
    number: int,
    generation: int,
    pipe: Connection,
) -> None:
    """Run one actor until training is over."""
    _prepare()
    with _reporting(pipe):
        link = LocalActorLink(shared, number, pipe, limiter)
        Actor(config, link, number, generation, link.rollouts).run()


def run_evaluator(
    environment: EnvironmentSpec,
    backend: str,
    episodes: int,
    requests: Connection,
    pipe: Connection,
) -> None:
    """Play each pair of policies that is asked for until this process is ended."""
    _prepare()
    with _reporting(pipe):
        told = 0.0

        def stepped() -> None:
            nonlocal told
            if time.monotonic() - told > SIGN_EVERY:
                told = time.monotonic()
                send(pipe, "alive", None)

        seeds = range(FIRST_SEED, FIRST_SEED + episodes)
        with Evaluator(environment, backend, stepped) as evaluator:
            while (full := receive_policy(requests)) is not None:
                pair = evaluator.pair(full, receive_policy(requests), seeds)
                send(pipe, "evaluated", pair.to_dict())


def run_compressor(
    config: CompressorConfig, shared: Shared, process: int, batch: int, pipe: Connection
) -> None:
    """Run the compressor until training is over."""
    _prepare()
    with _reporting(pipe):
        link = LocalCompressorLink(shared, process, pipe)
        with BackendOutputs(batch) as outputs:
            Compressor(config, link, batch, outputs).run()
