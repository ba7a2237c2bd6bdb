"""Pictures of many hover scenes, drawn and judged in pieces on several threads."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vinoreward.backends.base import CHUNKS
from vinoreward.closing import Closing
from vinoreward.rewards.classifier import Classifier
from vinoreward.rewards.prediction import Judged
from vinoreward_envs.arrays import CPU
from vinoreward_envs.camera.fast import CHUNK, FastCamera
from vinoreward_envs.camera.looks import Looks
from vinoreward_envs.camera.spec import CameraSpec, Floats, Pixels, Rows
from vinoreward_envs.scene import object_rest_poses

PIECE: Final = CHUNK
"""Scenes that a thread draws and judges at once; pictures of more are never in memory unless they
are observations."""
_LEAST: Final = 16
"""Scenes that are worth a thread of their own: the largest batch a backend compiles."""


@dataclass(frozen=True)
class _Worker:
    """What one thread at a time uses."""

    camera: FastCamera
    classifier: Classifier | None


class BatchedPictures(Closing):
    """Draws scenes and judges them, each piece on a thread with a camera and networks of its own.

    Warp's kernels and OpenVINO's networks each run on one core and leave Python's lock alone, so
    threads share the cores. On a CUDA device one thread does all. Cameras are made, and networks
    loaded, when a piece first needs them.

    Args:
        spec: the camera.
        classifier: judges, beside copies of it for further threads; None where pictures are only
            drawn. It is not closed here.
        device: of the camera, ``"cpu"`` or ``"cuda:N"``.
        threads: threads on a processor.
    """

    def __init__(
        self, spec: CameraSpec, classifier: Classifier | None, *, device: str, threads: int
    ) -> None:
        self.spec = spec
        self._classifier = classifier
        self._device = device
        self._threads = threads if device == CPU else 1
        self.busy_cores = 0
        """Cores that someone else computes on: so many fewer threads are used, but at least one."""
        self._made: list[_Worker] = []
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._pool: ThreadPoolExecutor | None = None
        self._loading: Future[None] | None = None
        self._free: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self._made:
            self._free.put(worker)

    def prepare(self, count: int) -> None:
        """Begin to load in a thread what :meth:`judge` of ``count`` scenes needs.

        Networks are compiled without Python's lock, so the caller can import other libraries
        meanwhile. Cameras are made at once.
        """
        pieces = self._pieces(count)
        self._make_workers(len(pieces))
        networks = [one.classifier for one in self._made if one.classifier is not None]
        if not networks or self._loading is not None:
            return

        def load() -> None:
            blank = np.zeros((pieces[0].stop, self.spec.height, self.spec.width, 3), np.uint8)
            for classifier in networks:
                if (pictures := classifier.prepare(blank)) is None:
                    continue
                first, *again = classifier.backends
                first.infer(pictures)
                if again or classifier.bundle.spec.decision.shift_band:
                    for size in CHUNKS:  # of pictures that are looked at again, and their copies
                        (again or [first])[0].infer(pictures[:size])

        self._loading = self._threads_of().submit(load)

    def judge(
        self,
        joints: Floats,
        objects: Floats,
        pictures: Pixels | None = None,
        *,
        looks: Looks | None = None,
    ) -> Judged:
        """Draw and judge N scenes of ``(N, 9)`` joints and objects at rest at ``(N, 2)``.

        The pictures are written into ``pictures``, ``(N, H, W, 3)`` uint8, if that is given.
        ``looks`` are of N scenes; None: all look as always.
        """
        parts: dict[int, Judged] = {}
        rows = np.arange(len(joints))

        def work(worker: _Worker, piece: slice) -> None:
            drawn = _draw(worker.camera, joints[piece], objects[piece], looks, rows[piece])
            if pictures is not None:
                pictures[piece] = drawn
            if worker.classifier is not None:
                parts[piece.start] = worker.classifier.judge(drawn)

        self._each(len(joints), work)
        found = [parts[start] for start in sorted(parts)]
        odd = [part.odd for part in found if part.odd is not None]
        return Judged(
            np.concatenate([part.probability for part in found]),
            np.concatenate([part.log_odds for part in found]),
            np.concatenate(odd) if odd else None,
        )

    def draw(
        self,
        joints: Floats,
        objects: Floats,
        *,
        looks: Looks | None = None,
        rows: Rows | None = None,
    ) -> Pixels:
        """Return the ``(N, H, W, 3)`` pictures of N scenes, see :meth:`judge`.

        ``rows`` are their ``(N,)`` places among ``looks``; None: in order.
        """
        pictures = np.empty((len(joints), self.spec.height, self.spec.width, 3), np.uint8)
        which = np.arange(len(joints)) if rows is None else rows

        def work(worker: _Worker, piece: slice) -> None:
            pictures[piece] = _draw(
                worker.camera, joints[piece], objects[piece], looks, which[piece]
            )

        self._each(len(joints), work)
        return pictures

    def close(self) -> None:
        """Free cameras and networks and end the threads; may be called more than once."""
        if self._loading is not None:
            self._loading.exception()  # waits; nobody wants the network any more
            self._loading = None
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
        for worker in self._made:
            worker.camera.close()
            if worker.classifier is not None and worker.classifier is not self._classifier:
                worker.classifier.close()

    def _each(self, count: int, work: Callable[[_Worker, slice], None]) -> None:
        """Call ``work`` for each piece of ``count`` scenes, with a worker that nobody else uses."""
        if self._pid != os.getpid():  # a fork leaves the threads behind
            self._start()
        self._wait()
        pieces = self._pieces(count)
        self._make_workers(len(pieces))

        def one(piece: slice) -> None:
            worker = self._free.get()
            try:
                work(worker, piece)
            finally:
                self._free.put(worker)

        if self._threads_now == 1 or len(pieces) == 1:
            for piece in pieces:
                one(piece)
            return
        pool = self._threads_of()
        for done in [pool.submit(one, piece) for piece in pieces]:
            done.result()

    @property
    def _threads_now(self) -> int:
        return max(1, self._threads - self.busy_cores)

    def _wait(self) -> None:
        """Wait for what :meth:`prepare` loads, and raise what it raised."""
        loading, self._loading = self._loading, None
        if loading is not None:
            loading.result()

    def _threads_of(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="hover-pictures")
        return self._pool

    def _pieces(self, count: int) -> list[slice]:
        size = min(PIECE, _LEAST * -(-count // (_LEAST * self._threads_now)))
        return [slice(start, min(start + size, count)) for start in range(0, count, size)]

    def _make_workers(self, pieces: int) -> None:
        while len(self._made) < min(self._threads_now, pieces):
            # A network is used by one thread at a time. A twin loads its own.
            classifier = self._classifier
            if classifier is not None and self._made:
                classifier = classifier.twin()
            self._made.append(_Worker(FastCamera(self.spec, self._device), classifier))
            self._free.put(self._made[-1])


def _draw(
    camera: FastCamera, joints: Floats, objects: Floats, looks: Looks | None, rows: Rows
) -> Pixels:
    drawn = None if looks is None else looks.drawn[rows]
    turned = () if drawn is None else (drawn["object_yaw"], drawn["object_size"])
    poses = object_rest_poses(objects, *turned)
    present: NDArray[np.bool_] = np.ones(len(objects), np.bool_)
    return camera.render_batch(joints, poses, present, looks, rows)
