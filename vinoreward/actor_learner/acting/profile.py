"""Where an actor's time goes: the breakdown that says whether compressing it can pay at all."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

PARTS = ("infer", "env", "write", "pull", "decode", "load", "wait")
"""Choosing actions, stepping environments, writing transitions, getting weights, making a policy of
them, giving it to the backend, waiting for room or permission."""


class Stopwatch:
    """Nanoseconds per part, on two clocks; one process's own.

    ``with`` blocks would cost more than some of the parts, so the caller marks where one ends:
    everything since the last mark belongs to the part that is named.
    """

    def __init__(self) -> None:
        self.wall = dict.fromkeys(PARTS, 0)
        self.cpu = dict.fromkeys(PARTS, 0)
        self.start()

    def start(self) -> None:
        """Forget what happened since the last mark."""
        self._wall = time.perf_counter_ns()
        self._cpu = time.process_time_ns()

    def mark(self, part: str) -> None:
        """Say that the time since the last mark was spent on ``part``."""
        wall, cpu = time.perf_counter_ns(), time.process_time_ns()
        self.wall[part] += wall - self._wall
        self.cpu[part] += cpu - self._cpu
        self._wall, self._cpu = wall, cpu

    def take(self) -> dict[str, int]:
        """Return ``PART_wall`` and ``PART_cpu`` in nanoseconds since the last call."""
        found = {f"{part}_wall": value for part, value in self.wall.items()}
        found |= {f"{part}_cpu": value for part, value in self.cpu.items()}
        self.wall = dict.fromkeys(PARTS, 0)
        self.cpu = dict.fromkeys(PARTS, 0)
        return found


COUNTERS = tuple(f"{part}_{clock}" for part in PARTS for clock in ("wall", "cpu"))


@dataclass(frozen=True)
class Breakdown:
    """Seconds per environment step, by part.

    Attributes:
        wall: part to seconds of wall time.
        cpu: part to seconds of processor time.
        steps: environment steps they were measured over.
    """

    wall: Mapping[str, float]
    cpu: Mapping[str, float]
    steps: int

    @classmethod
    def of(cls, totals: Mapping[str, int], steps: int) -> Breakdown:
        """Divide counters of nanoseconds (see :data:`COUNTERS`) by steps."""
        each = 1e-9 / max(1, steps)
        return cls(
            wall={part: totals[f"{part}_wall"] * each for part in PARTS},
            cpu={part: totals[f"{part}_cpu"] * each for part in PARTS},
            steps=steps,
        )

    @property
    def step_cpu(self) -> float:
        """Processor time of one environment step, everything included."""
        return sum(self.cpu.values())

    @property
    def share_of_network(self) -> float:
        """Share of that time which the network and its weights take: what compression can save."""
        network = sum(self.cpu[part] for part in ("infer", "pull", "decode", "load"))
        return network / self.step_cpu if self.step_cpu > 0 else 0.0

    def advice(self, learner_seconds: float, actors: int = 1, *, compressed: bool = False) -> str:
        """Say in a sentence whether compressing the actors can shorten this training.

        Args:
            learner_seconds: wall time of the learner's work per environment step; 0.0 says that
                it made no update while this was measured.
            actors: that act side by side, and share that work.
            compressed: they are already; then what more of it could do.
        """
        share = self.share_of_network
        bound = 1.0 / (1.0 - share) if share < 1.0 else float("inf")
        acting = sum(self.wall.values()) - self.wall["wait"]
        learning = learner_seconds * actors
        if learner_seconds <= 0.0:
            kind = "compressed network" if compressed else "network"
            return (
                f"The {kind} takes {share:.0%} of an actor's step of {self.step_cpu * 1e3:.3g} ms. "
                "The learner was not measured, as it made no update: whether compressing can "
                "shorten this training needs more steps to say."
            )
        if compressed:
            limits = "the learner" if learning > acting else "acting"
            return (
                f"The compressed network takes {share:.0%} of an actor's step of "
                f"{self.step_cpu * 1e3:.3g} ms, and the learner {learner_seconds * 1e3:.3g} ms per "
                f"step: {limits} is what limits now. Whether compressing paid is said by a run "
                "without it, or by --profile-only, which measures both."
            )
        if learning > acting:
            return (
                f"The learner needs {learner_seconds * 1e3:.3g} ms per environment step and "
                f"{'an actor' if actors == 1 else f'one of {actors} actors'} "
                f"{self.step_cpu * 1e3:.3g} ms: the learner is what limits, and "
                "compressed actors only free a core. Fewer samples per insert, a smaller network "
                "or a faster device for the learner would help first."
            )
        if share < 0.2:
            return (
                f"The network takes {share:.0%} of an actor's step: compressing it can make actors "
                f"at most {bound:.2f} times faster. The environment is what limits."
            )
        return (
            f"The network takes {share:.0%} of an actor's step: compressing it can make actors up "
            f"to {bound:.2f} times faster"
            + (
                f", and this training {acting / learning:.2f} times: then the learner, with "
                f"{learner_seconds * 1e3:.3g} ms per environment step, is what limits"
                if learning * bound > acting
                else ""
            )
            + ". Compare with more environments per actor first: that costs no accuracy."
        )
