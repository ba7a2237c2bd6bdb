"""The thread that carries what the learner publishes to the state actor: newest, never a queue."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from vinoreward.actor_learner.engines.ray.state import FULL, Published
from vinoreward.policies.wire import Bytes

Send = Callable[[str, int, bytes, Bytes], Published]
"""Brings (store, version, header, payload) to the state and waits until it is there."""
Again = Callable[[str, Published], None]
"""Brings once more what was sent before."""


class Publisher:
    """Sends one thing at a time; of a store that is published faster, the newest.

    ActorSettings and observations go before weights: they hold for what is published after them.

    Args:
        send: of something new.
        again: of something that the state actor has lost.
        failed: is told why it cannot go on.
    """

    def __init__(self, send: Send, again: Again, failed: Callable[[str], None]) -> None:
        self._send, self._again, self._failed = send, again, failed
        self._changed = threading.Condition()
        self._waiting: dict[str, tuple[int, bytes, Bytes] | Published] = {}
        self._last: dict[str, Published] = {}
        self._busy = False
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="vinoreward publisher", daemon=True)
        self._thread.start()

    def publish(self, store: str, version: int, header: bytes, payload: Bytes) -> None:
        """Send this next; does not wait. The payload must not change any more."""
        with self._changed:
            self._waiting[store] = (version, header, payload)
            self._changed.notify_all()

    def resend(self) -> None:
        """Send everything again that has nothing newer waiting."""
        with self._changed:
            self._waiting = {**self._last, **self._waiting}
            self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until everything has been sent; False after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        with self._changed:
            return self._changed.wait_for(
                lambda: self._closing or not (self._waiting or self._busy),
                deadline - time.monotonic(),
            )

    def close(self) -> None:
        """End the thread; what waits is not sent."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or bool(self._waiting))
                if self._closing:
                    return
                store = min(self._waiting, key=lambda name: name == FULL)
                parcel = self._waiting.pop(store)
                self._busy = True
            try:
                if isinstance(parcel, Published):
                    self._again(store, parcel)
                else:
                    self._last[store] = self._send(store, *parcel)
            except Exception as error:  # noqa: BLE001  (the learner's thread raises it)
                self._failed(f"{store} could not be published: {error}")
                return
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()
