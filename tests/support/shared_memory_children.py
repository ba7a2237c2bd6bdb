"""What child processes of the shared-memory tests do, and the buffer that tears.

Spawned children import this module and not the tests, so that they start quickly.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from vinoreward_actors.actor_learner.transport import weight_store
from vinoreward_actors.actor_learner.transport.link import Weights
from vinoreward_actors.actor_learner.transport.memory import SharedMemory
from vinoreward_actors.actor_learner.transport.weight_store import WeightStore


@contextlib.contextmanager
def child(target: Callable[..., None], *arguments: Any) -> Iterator[tuple[BaseProcess, Connection]]:
    """Run ``target(connection, *arguments)`` in a spawned process; kill it at the end."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments))
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        process.kill()
        process.join()
        process.close()
        ours.close()


def delayed(most: float) -> None:
    """Let this process wait at every fence, for up to ``most`` seconds."""
    random, fence = np.random.default_rng(os.getpid()), weight_store.fence

    def late() -> None:
        fence()
        time.sleep(most * random.random())

    weight_store.fence = late


def count_torn(pull: Callable[[], Weights | None], pulls: int, enough: int) -> int:
    """Pull so many versions and look at every element; return how many were not of one version.

    Ends early after ``enough`` of them.
    """
    torn, last = 0, -1
    while pulls and torn < enough:
        found = pull()
        if found is None:
            continue
        pulls -= 1
        values = found.payload.view(np.int64)
        torn += not bool((values == found.version).all()) or found.version < last
        last = found.version
    return torn


def pull_versions(
    connection: Connection, store: WeightStore, pulls: int, most: float = 0.0
) -> None:
    if most:
        delayed(most)
    connection.send(count_torn(store.pull_if_newer, pulls, enough=1))


def pull_in_place(connection: Connection, memory: SharedMemory, pulls: int) -> None:
    """What must not be done: copy one buffer that is overwritten meanwhile."""
    words, payload = memory.words(1), memory.array(64, (memory.size - 64,), np.uint8)
    connection.send(count_torn(lambda: Weights(b"", payload.copy(), words[0]), pulls, enough=1))


class Deadly(np.ndarray[Any, Any]):
    """An array that kills its process when it is its turn to be copied."""

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        os.kill(os.getpid(), signal.SIGKILL)
        return ()


def die_while_publishing(connection: Connection, store: WeightStore, count: int) -> None:
    store.publish(b"whole", [np.full(count, 1, np.int64)] * 2, version=1)
    connection.send("one is whole")
    store.publish(
        b"torn", [np.full(count, 2, np.int64), np.full(count, 2, np.int64).view(Deadly)], version=2
    )
