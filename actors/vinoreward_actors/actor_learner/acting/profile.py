"""The breakdown of an actor's time, which shows whether compression can pay."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

PARTS = ("infer", "env", "write", "pull", "decode", "load", "wait")
"""Choosing actions, stepping environments, writing transitions, pulling weights, decoding them,
loading them into the backend, and waiting for the next call."""


class Stopwatch:
    """Nanoseconds of wall and processor time per part.

    ``with`` blocks would cost more than some of the parts, so the caller marks where a part ends.
    """

    def __init__(self) -> None:
        self.wall: dict[str, int] = dict.fromkeys(PARTS, 0)
        self.cpu: dict[str, int] = dict.fromkeys(PARTS, 0)
        self.start()

    def start(self) -> None:
        """Discard the time since the last mark."""
        self._wall = time.perf_counter_ns()
        self._cpu = time.process_time_ns()

    def mark(self, part: str) -> None:
        """Add the time since the last mark to ``part``."""
        wall, cpu = time.perf_counter_ns(), time.process_time_ns()
        self.wall[part] += wall - self._wall
        self.cpu[part] += cpu - self._cpu
        self._wall, self._cpu = wall, cpu

    def take(self) -> dict[str, int]:
        """Return ``PART_wall`` and ``PART_cpu`` in nanoseconds since the last call."""
        counts = {f"{part}_wall": value for part, value in self.wall.items()}
        counts |= {f"{part}_cpu": value for part, value in self.cpu.items()}
        self.wall, self.cpu = dict.fromkeys(PARTS, 0), dict.fromkeys(PARTS, 0)
        return counts


COUNTERS = tuple(f"{part}_{clock}" for part in PARTS for clock in ("wall", "cpu"))


@dataclass(frozen=True)
class Breakdown:
    """Seconds per environment step, by part."""

    wall: Mapping[str, float]  # wall time
    cpu: Mapping[str, float]  # processor time
    steps: int  # environment steps of the measurement

    @classmethod
    def of(cls, totals: Mapping[str, int], steps: int) -> Breakdown:
        """Divide nanosecond counters (see :data:`COUNTERS`) by steps."""
        each = 1e-9 / max(1, steps)
        wall, cpu = (
            {part: totals[f"{part}_{clock}"] * each for part in PARTS} for clock in ("wall", "cpu")
        )
        return cls(wall, cpu, steps)

    @property
    def step_cpu(self) -> float:
        """Total processor time of one environment step."""
        return sum(self.cpu.values())

    @property
    def step_wall(self) -> float:
        """Wall time of one environment step, without waiting: it decides what limits a training."""
        return sum(self.wall.values()) - self.wall["wait"]

    @property
    def share_of_network(self) -> float:
        """Fraction of that time for the network and its weights: what compression can save."""
        network = sum(self.wall[part] for part in ("infer", "pull", "decode", "load"))
        return network / self.step_wall if self.step_wall > 0 else 0.0

    def advice(self, learner_seconds: float, actors: int = 1) -> str:
        """Return a sentence on what limits a training: only acting can be compressed.

        Args:
            learner_seconds: the learner's wall time per environment step; 0.0 without an update.
            actors: parallel actors that share the learner.
        """
        acting = self.step_wall / actors
        words = (
            f"An environment step takes {'an actor' if actors == 1 else f'{actors} actors'} "
            f"{acting * 1e3:.3g} ms, {self.share_of_network:.0%} of it for the network"
        )
        if learner_seconds <= 0.0:
            return f"{words}. The learner made no update: run more steps to see what limits."
        limits = "the environment" if self.share_of_network < 0.2 else "acting"
        limits = "the learner" if learner_seconds > acting else limits
        return (
            f"{words}, and the learner {learner_seconds * 1e3:.3g} ms: {limits} is the bottleneck."
        )
