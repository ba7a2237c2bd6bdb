"""Takes images from a camera in a thread of its own, so that a camera that stalls stops nothing."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.errors import InputError
from vinoreward_training.watch.cameras import Camera

INTERVALS = 32
"""Of the last images; their median is how often a camera gives one."""
LATE = 1.75
"""Intervals after which an image is missing: a camera is not that unsteady."""


@dataclass(frozen=True)
class Arrival:
    """An image as it came."""

    image: npt.NDArray[Any] | InputError
    at: float
    """Seconds of ``time.perf_counter()``."""
    dropped: int
    """Images in all, up to this one, that the camera left out or nobody took in time."""


class Feed:
    """The newest image of a camera; a ``with`` block starts and ends it.

    Of a live camera, an image that was not taken gives way to the next, and is counted as dropped;
    so are gaps between images. Other sources wait, and give ``camera.hz`` images a second.
    """

    def __init__(self, camera: Camera) -> None:
        self._camera = camera
        self._changed = threading.Condition()
        self._arrival: Arrival | None = None
        self._error: BaseException | None = None
        self._done = self._closed = False
        self._dropped = 0
        self._last = 0.0  # when the last image came, or was due
        self._intervals = np.zeros(INTERVALS)
        self._count = 0
        self._thread = threading.Thread(target=self._run, name="vinoreward-camera", daemon=True)

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """End the thread and close the camera, unless that does not answer."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout=2.0)
        if not self._thread.is_alive():  # else closing it could crash the thread that reads
            self._camera.close()

    @property
    def ended(self) -> bool:
        """Whether all was taken, images and an error, and there will be no more."""
        with self._changed:
            return self._done and self._arrival is None and self._error is None

    def take(self, seconds: float) -> Arrival | None:
        """Wait for the next image, so long at most; None if there was none.

        Raises what the camera raised.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._arrival is not None or self._done, seconds)
            arrival, self._arrival = self._arrival, None
            self._changed.notify_all()
        if arrival is None and self._error is not None:
            error, self._error = self._error, None
            raise error
        return arrival

    def _run(self) -> None:
        try:
            while not self._closed and (image := self._camera.read()) is not None:
                self._publish(image)
        except Exception as error:  # noqa: BLE001  (take raises it)
            self._error = error
        finally:
            with self._changed:
                self._done = True
                self._changed.notify_all()

    def _publish(self, image: npt.NDArray[Any] | InputError) -> None:
        with self._changed:
            if self._camera.live:
                now = time.perf_counter()
                self._dropped += self._missing(now) + (self._arrival is not None)
                self._last = now
            else:
                now = self._wait_until_due()
            self._arrival = Arrival(image, now, self._dropped)
            self._changed.notify_all()

    def _wait_until_due(self) -> float:
        """Wait until the image before was taken, and it is time for the next; return the time."""
        period = 1 / self._camera.hz
        due = self._last + period
        self._changed.wait_for(lambda: self._arrival is None or self._closed)
        while (left := due - time.perf_counter()) > 0 and not self._closed:
            self._changed.wait(left)
        now = time.perf_counter()
        self._last = due if now - due < period else now  # what is a little late delays no other
        return now

    def _missing(self, now: float) -> int:
        """Return how many images are missing before the one that came now."""
        if not self._last:
            return 0
        interval, known = now - self._last, self._count >= INTERVALS
        usual = float(np.median(self._intervals)) if known else 1 / self._camera.hz
        self._intervals[self._count % INTERVALS] = interval
        self._count += 1
        return round(interval / usual) - 1 if interval > LATE * usual else 0
