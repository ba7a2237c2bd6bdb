"""Settings of the actors and the learner's loop, and the limit on samples per insert."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vinoreward.errors import ConfigError

_AT_LEAST_ONE = (
    "actors",
    "environments",
    "steps",
    "pull_period",
    "push_period",
    "max_lag",
    "monitor_period",
    "observations",
    "evaluation_episodes",
)
EVALUATE_EVERY = 5000
"""Default steps between two evaluations if the monitor needs returns."""
ROUNDING = 1e-9
"""Tolerance in samples, so that rounding cannot block both sides at the limit."""


@dataclass(frozen=True)
class ActorLearnerConfig:
    """Settings of the actors and the learner's loop.

    Attributes:
        actors: number of actor processes.
        environments: per actor, stepped as one batch. A lossless alternative to compression: try
            it first.
        steps: T, steps of each environment in one trajectory.
        engine: ``"local"`` processes, or ``"ray"`` for a cluster.
        backend: for full-precision weights in actors.
        pull_period: steps of an environment between two checks for newer weights.
        push_period: updates between two pushes.
        bits: communication quantization of the learner's pushes: 32, 16, or 2 to 8.
        lag: None: actors use the newest weights. A number: they are exactly that many updates
            behind, and a run repeats bit by bit (on one kind of machine, with a deterministic
            learner, until an actor is replaced).
        max_lag: the learner drops trajectories whose weights are more pushes old; actors pull
            earlier than ``pull_period`` if necessary. Learners with a replay use all ages.
        max_staleness: instead of compressed weights that are more pushes behind, actors use the
            learner's own. At most ``max_lag`` where that applies.
        samples_per_insert: transitions sampled per inserted transition, for learners with our
            replay; both sides wait for each other. Stable-Baselines3's learners use
            ``train_freq`` and ``gradient_steps`` instead.
        monitor_period: updates between two monitor updates.
        evaluate_every: environment steps between two evaluations. A separate process plays them
            while training continues: the learner's policy and its compressed version, greedy, on
            the same episodes; one evaluation at a time, no version twice. None: every 5000 steps if
            the monitor needs returns. 0: never; what uses returns then has no readings.
        evaluation_episodes: per evaluation.
        observations: rows for measuring ranges and for distillation.
        checkpoint_seconds: between two checkpoints, if there is a folder.
        heartbeat: seconds without a sign of life after which a process is replaced.
        restarts: maximum replacements of each process within a minute of its work. Time without
            output (a hang, or a start) does not count.
        seed: of environments, exploration and compression; the learner has its own.
    """

    actors: int = 2
    environments: int = 1
    steps: int = 20
    engine: str = "local"
    backend: str = "openvino"
    pull_period: int = 100
    push_period: int = 1
    bits: int = 32
    lag: int | None = None
    max_lag: int = 100
    max_staleness: int = 100
    samples_per_insert: float = 8.0
    monitor_period: int = 10
    evaluate_every: int | None = None
    evaluation_episodes: int = 10
    observations: int = 1024
    checkpoint_seconds: float = 60.0
    heartbeat: float = 20.0
    restarts: int = 3
    seed: int = 0

    @property
    def compressed_backend(self) -> str:
        """Backend for compressed weights if their chain does not set one."""
        # Eager PyTorch runs only the learner's weights: actors do not import it otherwise.
        return "numpy" if self.backend == "torch" else self.backend

    def __post_init__(self) -> None:
        least = dict.fromkeys(_AT_LEAST_ONE, 1) | {"max_staleness": 0, "restarts": 0}
        wrong = {
            name: getattr(self, name) for name, low in least.items() if getattr(self, name) < low
        }
        positive = ("samples_per_insert", "heartbeat", "checkpoint_seconds")
        wrong |= {name: getattr(self, name) for name in positive if not getattr(self, name) > 0}
        for name in ("lag", "evaluate_every"):
            if getattr(self, name) is not None and getattr(self, name) < 0:
                wrong[name] = getattr(self, name)
        if wrong:
            words = ", ".join(f"{name}={value}" for name, value in wrong.items())
            raise ConfigError(
                f"the training's settings have {words}. Expected at least 1 of each of "
                f"{', '.join(_AT_LEAST_ONE)}; max_staleness, restarts, lag and evaluate_every from "
                f"0 (or None for the last two); and {', '.join(positive)} above 0."
            )
        if self.lag is not None and self.push_period != 1:
            raise ConfigError(
                f"a fixed lag needs push_period=1, but push_period={self.push_period}. Expected 1: "
                "every version must reach every actor."
            )


@dataclass(frozen=True)
class SamplesPerInsert:
    """Limits how often the learner samples what actors insert, on both sides, by two counters.

    The rule of Reverb's ``SampleToInsertRatio`` (Cassirer et al. 2021, arXiv:2102.04736): the
    surplus ``inserts · ratio - samples`` stays within ``error_buffer`` of its value when sampling
    may begin. The faster side waits, so the ratio does not depend on the machine.
    """

    ratio: float
    min_size: int  # inserts before the first sample
    error_buffer: float  # in samples
    insert_size: int = 1
    """Maximum inserted at once, by all actors that read the counters before one of them inserts."""
    sample_size: int = 1  # maximum sampled at once (a batch)

    def __post_init__(self) -> None:
        finite = math.isfinite(self.ratio) and math.isfinite(self.error_buffer)
        if not finite or self.ratio <= 0 or self.min_size < 1:
            raise ConfigError(
                f"the limiter has ratio {self.ratio}, min_size {self.min_size} and error_buffer "
                f"{self.error_buffer}. Expected finite numbers, a ratio above 0 and a min_size of "
                "at least 1."
            )
        if self.insert_size < 1 or self.sample_size < 1:
            raise ConfigError(
                f"the limiter has insert_size {self.insert_size} and sample_size "
                f"{self.sample_size}. Expected at least 1 each."
            )
        needed = self.smallest_buffer(self.ratio, self.insert_size, self.sample_size)
        if self.error_buffer < needed:
            raise ConfigError(
                f"the limiter has error_buffer {self.error_buffer}. Expected at least {needed:g} "
                f"for ratio {self.ratio:g}, inserts of {self.insert_size} and samples of "
                f"{self.sample_size}; with less, actors and learner can block each other."
            )

    @staticmethod
    def smallest_buffer(ratio: float, insert_size: int = 1, sample_size: int = 1) -> float:
        """Return the smallest error buffer that cannot block both sides."""
        # Blocked both: surplus > offset + buffer - insert·ratio and < offset - buffer + sample.
        # Blocked before the first sample: an insert that passes min_size by insert_size - 1.
        return max(ratio * insert_size, (ratio * insert_size + sample_size) / 2)

    def surplus(self, inserts: int, samples: int) -> float:
        """Return ``inserts · ratio - samples``, relative to its value when sampling may begin."""
        return (inserts - self.min_size) * self.ratio - samples

    def can_insert(self, inserts: int, samples: int, count: int = 1) -> bool:
        """Return whether ``count`` more may be inserted after these inserts and samples."""
        if inserts + count <= self.min_size:
            return True
        return self.surplus(inserts + count, samples) <= self.error_buffer + ROUNDING

    def can_sample(self, inserts: int, samples: int, count: int = 1) -> bool:
        """Return whether ``count`` more may be sampled after these inserts and samples."""
        if inserts < self.min_size:
            return False
        return self.surplus(inserts, samples + count) >= -self.error_buffer - ROUNDING
