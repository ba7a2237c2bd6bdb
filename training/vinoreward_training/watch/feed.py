"""Takes images from a camera in a thread of its own, so that one that stalls stops nothing."""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple

import numpy.typing as npt

from vinoreward.errors import InputError
from vinoreward_training.watch.cameras import Camera

INTERVALS = 32
"""Over so many images, how often a camera gives one is learned."""
LATE = 1.75
"""Usual intervals after which an image is missing: no camera is so unsteady."""


class Arrival(NamedTuple):
    """An image, its time by ``time.perf_counter()``, and how many images were dropped before it:
    left out by the camera, or not taken in time."""

    image: npt.NDArray[Any] | InputError
    at: float
    dropped: int


class Feed:
    """The newest image of a camera; a ``with`` block starts and ends it."""

    def __init__(self, camera: Camera) -> None:
        self._camera, self._usual = camera, 1 / camera.hz
        self._changed = threading.Condition()
        self._arrival: Arrival | None = None
        self._end: Exception | None = None
        self._closed = False
        self._missing = self._untaken = 0
        self._last = 0.0  # when the last image came, or was due
        self._thread = threading.Thread(target=self._run, name="vinoreward-camera", daemon=True)

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout=2.0)
        if not self._thread.is_alive():  # else the camera does not answer, and cannot be closed
            self._camera.images.close()

    def take(self, seconds: float) -> Arrival | None:
        """Wait for the next image, so long at most; None if there was none.

        Raises what the camera raised, and EOFError where there are no more images.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._arrival is not None or self._end, seconds)
            arrival, self._arrival = self._arrival, None
            self._changed.notify_all()
            if arrival is None and self._end is not None:
                raise self._end
        return arrival

    def _run(self) -> None:
        publish = self._publish_live if self._camera.live else self._publish_due
        try:
            for image in self._camera.images:
                with self._changed:
                    publish(image)
                    self._changed.notify_all()
                if self._closed:
                    break
            end: Exception = EOFError("the camera has no more images")
        except Exception as error:  # noqa: BLE001  (take raises it)
            end = error
        with self._changed:
            self._end = end
            self._changed.notify_all()

    def _publish_live(self, image: npt.NDArray[Any] | InputError) -> None:
        """Put an image in the place of the last, and count what is missing between them."""
        now = time.perf_counter()
        if self._last:
            interval = now - self._last
            if interval > LATE * self._usual:
                self._missing += round(interval / self._usual) - 1
            elif interval < self._usual / 2:
                self._missing = max(0, self._missing - 1)  # it was late only
            usual = self._usual + (min(interval, 2 * self._usual) - self._usual) / INTERVALS
            self._usual = max(usual, 1 / self._camera.hz)
        self._untaken += self._arrival is not None
        self._last, self._arrival = now, Arrival(image, now, self._missing + self._untaken)

    def _publish_due(self, image: npt.NDArray[Any] | InputError) -> None:
        """Wait until the last image was taken, and it is time for the next."""
        period = 1 / self._camera.hz
        due = self._last + period
        self._changed.wait_for(lambda: self._arrival is None or self._closed)
        self._changed.wait_for(lambda: self._closed, max(0.0, due - time.perf_counter()))
        now = time.perf_counter()
        self._last = due if now - due < period else now  # what is a little late delays no other
        self._arrival = Arrival(image, now, 0)
