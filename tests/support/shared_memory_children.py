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
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from vinoreward.errors import SharedMemoryError
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
    state_of,
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


class Leased(Protocol):
    version: int

    @property
    def payload(self) -> npt.NDArray[Any]: ...

    def __enter__(self) -> Any: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Pulled(Protocol):
    def pull_if_newer(self, have: int = -1) -> Leased | None: ...


class InPlace:
    """One buffer that is overwritten while others read it: what must not be done."""

    def __init__(self, segment: Segment) -> None:
        self._words = segment.words(0, 1)
        self.payload = segment.array(64, (segment.spec.size - 64,), np.uint8)

    def publish(self, array: npt.NDArray[Any], version: int) -> None:
        self.payload.view(array.dtype)[...] = array
        self._words[0] = version

    def pull_if_newer(self, have: int = -1) -> InPlaceLease | None:
        return InPlaceLease(self.payload, self._words[0]) if self._words[0] > have else None


class InPlaceLease:
    def __init__(self, payload: npt.NDArray[Any], version: int) -> None:
        self.payload = payload
        self.version = version

    def __enter__(self) -> InPlaceLease:
        return self

    def __exit__(self, *_: object) -> None: ...


def count_torn(
    store: Pulled, pulls: int, versions: int = 0, enough: int | None = None
) -> tuple[int, int]:
    """Pull and look at every element.

    Args:
        store: where from.
        pulls: at least so many.
        versions: and until so many versions were met, so that a slow machine proves as much.
        enough: torn pulls after which no more are needed.

    Returns:
        Pulls that were not of one version and those that were made.
    """
    torn, done, seen, last = 0, 0, 0, -1
    while (done < pulls or seen < versions) and (enough is None or torn < enough):
        lease = store.pull_if_newer()
        if lease is None:
            time.sleep(1e-3)
            continue
        with lease:
            values = lease.payload.view(np.int64)
            whole = bool((values == values[0]).all())
            # And still so after the writer had its turn, now and then for long.
            if done % 1000 == 0:
                time.sleep(2e-3)
            again = bool((values[::64] == lease.version).all())
            torn += not (whole and again)
            seen += lease.version != last
            last = lease.version
        done += 1
    return torn, done


def pull_versions(connection: Connection, spec: WeightStoreSpec, reader: int, pulls: int) -> None:
    with WeightStore.attach(spec, reader) as store:
        connection.send(count_torn(store, pulls, versions=500))


def pull_in_place(connection: Connection, spec: SegmentSpec, pulls: int) -> None:
    with Segment.attach(spec) as segment:
        connection.send(count_torn(InPlace(segment), pulls, enough=1))


def hold_a_lease(connection: Connection, spec: WeightStoreSpec, reader: int) -> None:
    lease = WeightStore.attach(spec, reader).pull_if_newer()
    connection.send(None if lease is None else lease.version)
    time.sleep(600)


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


def states(ring: TrajectoryRing) -> tuple[int, ...]:
    """The state of every slot."""
    return tuple(state_of(ring.words[ring.slot_line(slot)]) for slot in range(ring.spec.slots))


def write_many(
    connection: Connection, spec: RingSpec, control: ControlSpec, actor: int, count: int
) -> None:
    ring, words = TrajectoryRing.attach(spec, actor), ControlBlock.attach(control)
    for number in range(count):
        if not write(ring, marked(number), timeout=60, stop=lambda: words.stopped):
            break
        words.add(actor, "inserts")
        words.beat(actor)
    connection.send("done")


def write_one_and_a_half(connection: Connection, spec: RingSpec, actor: int) -> None:
    """Commit number 1, write half of 2, and, if told to, go on as if nothing had happened."""
    ring = TrajectoryRing.attach(spec, actor)
    write(ring, marked(1))
    slot = ring.acquire()
    if slot is None:
        return
    for array in slot.arrays().values():
        array[: SPEC.steps // 2] = 1
    connection.send("half")
    connection.recv()
    fill(slot, 2)
    try:
        ring.commit()
        connection.send("committed")
    except SharedMemoryError as error:
        connection.send(str(error))
