"""What local child processes run; imported in the child, so nothing heavy at the top."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait

from vinoreward.actor_learner.actor import ActorConfig
from vinoreward.actor_learner.compressor import CompressorConfig
from vinoreward.actor_learner.engines.last_words import last_words
from vinoreward.actor_learner.engines.local_links import (
    LocalActorLink,
    LocalCompressorLink,
    Shared,
)
from vinoreward.actor_learner.engines.messages import send
from vinoreward.actor_learner.limiter import SamplesPerInsert

FAILED = 3
"""Exit status of a process that reported its error."""


def _end_with_parent() -> None:
    """End this process as soon as the learner's is gone: nothing is left to act for."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    wait([parent.sentinel])
    os._exit(1)


def _prepare() -> None:
    # The learner decides what Ctrl-C means; it reaches all processes of the terminal at once. Until
    # here it was blocked (see Child.start).
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    threading.Thread(target=_end_with_parent, daemon=True).start()


@contextlib.contextmanager
def _reporting(pipe: Connection) -> Iterator[None]:
    """Send what is to be said of whatever goes wrong, then end; the supervisor decides."""
    try:
        yield
    except BaseException as error:  # noqa: BLE001  (nothing is swallowed: the learner is told)
        with contextlib.suppress(OSError):
            send(pipe, "error", last_words(error))
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
        from vinoreward.actor_learner.actor import Actor

        link = LocalActorLink(shared, number, pipe, limiter)
        Actor(config, link, number, generation, link.rollouts).run()


def run_compressor(
    config: CompressorConfig, shared: Shared, process: int, batch: int, pipe: Connection
) -> None:
    """Run the compressor until training is over."""
    _prepare()
    with _reporting(pipe):
        from vinoreward.actor_learner.compressor import Compressor
        from vinoreward.actor_learner.executors.registry import compile_blob

        link = LocalCompressorLink(shared, process, pipe)
        Compressor(config, link, lambda policy: compile_blob(policy, batch)).run()
