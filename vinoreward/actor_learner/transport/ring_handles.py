"""Handles for writing or reading slots of the trajectory ring."""

from __future__ import annotations

from typing import Protocol

from vinoreward.actor_learner.transport.ring_slots import RingSpec
from vinoreward.actor_learner.transport.trajectory import Trajectory
from vinoreward.closing import Closing


class Finisher(Protocol):
    """The ring of an open slot."""

    spec: RingSpec

    def finish(self, written: WriteSlot, *, ready: bool) -> None:
        """Close the open slot."""

    def give_back(self, slots: tuple[int, ...]) -> None:
        """Release slots."""


class WriteSlot(Closing):
    """A slot that one actor fills in place; a ``with`` block abandons it unless committed.

    Attributes:
        slot: its number.
        trajectory: writable views with old contents: write every element.
    """

    def __init__(self, ring: Finisher, slot: int, trajectory: Trajectory) -> None:
        self.slot = slot
        self.trajectory = trajectory
        self._ring = ring
        self._open = True

    def commit(self, *, check: bool = True) -> None:
        """Hand the trajectory to the learner.

        Args:
            check: first check for NaN and values out of range; the slot stays open on an error.

        Raises:
            InputError: the spec refuses the trajectory.
            SharedMemoryError: this actor was replaced and must end.
            ConfigError: the slot is already closed.
        """
        if check:
            self._ring.spec.trajectories.check(self.trajectory)
        self._open = False
        self._ring.finish(self, ready=True)

    def close(self) -> None:
        """Abandon the slot if it was not committed."""
        if self._open:
            self._open = False
            self._ring.finish(self, ready=False)


class Batch(Closing):
    """Trajectories taken by the learner; a context manager that releases their slots.

    Attributes:
        trajectories: read-only views, oldest first; invalid after :meth:`close`.
    """

    def __init__(
        self, ring: Finisher, slots: tuple[int, ...], trajectories: tuple[Trajectory, ...]
    ) -> None:
        self.trajectories = trajectories
        self._slots = slots
        self._ring = ring

    def close(self) -> None:
        """Release the slots to their actors."""
        slots, self._slots, self.trajectories = self._slots, (), ()
        if slots:
            self._ring.give_back(slots)
