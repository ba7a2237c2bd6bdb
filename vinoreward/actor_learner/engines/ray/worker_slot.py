"""A slot for a process on Ray, which several may have one after another."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vinoreward.actor_learner.engines.budget import RestartBudget


@dataclass
class WorkerSlot:
    """A slot for one process, and the one that has it now.

    Attributes:
        name: such as ``"actor 0"``.
        number: of the process.
        make: starts one of (generation, rollouts before it), and returns its handle.
        budget: of restarts.
        generation: how many times it was replaced.
        handle: Ray's; None when there is no process.
        started: when the present one was asked for.
        heard: when it last sent something, minus infinity for never.
        placed: the present one has a process; until then it waits for a free processor.
        began: the present one has given a sign of life.
        abandoned: it is not started again.
        over: it has ended, as it was told to.
        counters: totals of the present one.
        settled: totals of those before it.
    """

    name: str
    number: int
    make: Callable[[int, int], Any]
    budget: RestartBudget
    generation: int = 0
    handle: Any = None
    started: float = 0.0
    heard: float = -math.inf
    placed: bool = False
    began: bool = False
    abandoned: bool = False
    over: bool = False
    counters: dict[str, int] = field(default_factory=dict)
    settled: Counter[str] = field(default_factory=Counter)

    def start(self, rollouts: int) -> None:
        """Start a process of the present generation."""
        self.handle = self.make(self.generation, rollouts)
        self.started = time.monotonic()

    def release(self) -> None:
        """Note that the present process is gone; what comes from it now is not taken any more."""
        self.handle = None
        self.heard, self.placed, self.began = -math.inf, False, False
        self.generation += 1
        self.settled.update(self.counters)
        self.counters = {}
