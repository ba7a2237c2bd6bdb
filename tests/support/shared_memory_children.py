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
from pathlib import Path
from typing import Any

import numpy as np

from vinoreward_actors.actor_learner.transport import shared_memory
from vinoreward_actors.actor_learner.transport.link import Weights
from vinoreward_actors.actor_learner.transport.shared_memory import (
    ControlBlock,
    ControlSpec,
    Segment,
    SegmentSpec,
)
from vinoreward_actors.actor_learner.transport.trajectory import Trajectory, TrajectorySpec
from vinoreward_actors.actor_learner.transport.trajectory_ring import (
    RingSpec,
    TrajectoryRing,
)
from vinoreward_actors.actor_learner.transport.weight_store import WeightStore, WeightStoreSpec

SHARED_MEMORY = Path("/dev/shm")
SPEC = TrajectorySpec(
    steps=16,
    environments=2,
    observation_shape=(8,),
    observation_dtype="float32",
    action_shape=(),
    outputs=1000,
)


def segments_of(pid: int) -> list[str]:
    """Names in shared memory that a process has made."""
    return sorted(path.name for path in SHARED_MEMORY.glob(f"vinoreward_{pid}_*"))


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


def killed(process: BaseProcess) -> None:
    """kill -9, and wait until it is dead."""
    process.kill()
    process.join()


# Weights


def delayed(most: float) -> None:
    """Let this process wait at every fence, for up to ``most`` seconds."""
    random, fence = np.random.default_rng(os.getpid()), shared_memory.fence

    def late() -> None:
        fence()
        time.sleep(most * random.random())

    shared_memory.fence = late


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
    connection: Connection, spec: WeightStoreSpec, pulls: int, most: float = 0.0
) -> None:
    if most:
        delayed(most)
    with WeightStore.attach(spec) as store:
        connection.send(count_torn(store.pull_if_newer, pulls, enough=1))


def pull_in_place(connection: Connection, spec: SegmentSpec, pulls: int) -> None:
    """What must not be done: copy one buffer that is overwritten meanwhile."""
    with Segment.attach(spec) as segment:
        words, payload = segment.words(0, 1), segment.array(64, (segment.spec.size - 64,), np.uint8)
        connection.send(count_torn(lambda: Weights(b"", payload.copy(), words[0]), pulls, enough=1))


class Deadly(np.ndarray[Any, Any]):
    """An array that kills its process when it is its turn to be copied."""

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        os.kill(os.getpid(), signal.SIGKILL)
        return ()


def die_while_publishing(connection: Connection, spec: WeightStoreSpec, count: int) -> None:
    store = WeightStore.attach(spec)
    store.publish(b"whole", [np.full(count, 1, np.int64)] * 2, version=1)
    connection.send("one is whole")
    store.publish(
        b"torn", [np.full(count, 2, np.int64), np.full(count, 2, np.int64).view(Deadly)], version=2
    )


# Trajectories


def marked(number: int, actor: int = 0) -> Trajectory:
    """A trajectory with a number in every array."""
    trajectory = SPEC.empty(actor)
    fill(trajectory, number)
    return trajectory


def fill(trajectory: Trajectory, number: int) -> None:
    for array in trajectory.arrays().values():
        array[...] = number % 2 if array.dtype.itemsize == 1 else number


def number_of(trajectory: Trajectory) -> int | None:
    """The number in every array, None if they differ: a torn trajectory."""
    number = int(trajectory.versions[0, 0])
    for array in trajectory.arrays().values():
        if (array != (number % 2 if array.dtype.itemsize == 1 else number)).any():
            return None
    return number


def write(
    ring: TrajectoryRing,
    trajectory: Trajectory,
    timeout: float | None = None,
    stop: Callable[[], bool] | None = None,
) -> bool:
    """Copy a trajectory into a free slot; False after a timeout or a stop."""
    slot = ring.acquire(timeout, stop)
    if slot is None:
        return False
    arrays = slot.arrays()
    for name, array in trajectory.arrays().items():
        arrays[name][...] = array
    ring.commit()
    return True


def write_many(
    connection: Connection,
    spec: RingSpec,
    control: ControlSpec,
    actor: int,
    count: int,
    generation: int = 0,
) -> None:
    ring, words = TrajectoryRing.attach(spec, actor, generation), ControlBlock.attach(control)
    for number in range(count):
        if not write(ring, marked(number), timeout=60, stop=lambda: words.stopped):
            break
        words.add(actor, "inserts")
        words.beat(actor)
    connection.send("done")


def write_one_and_a_half(connection: Connection, spec: RingSpec, actor: int) -> None:
    """Commit number 1, write half of 2, and wait."""
    ring = TrajectoryRing.attach(spec, actor)
    write(ring, marked(1))
    slot = ring.acquire()
    if slot is None:
        return
    for array in slot.arrays().values():
        array[: SPEC.steps // 2] = 1
    connection.send("half")
    connection.recv()
