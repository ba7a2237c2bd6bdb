"""Settings of the actors and the learner's loop, and the limit on samples per insert."""

from __future__ import annotations

from dataclasses import dataclass

from vinoreward.errors import ConfigError

_AT_LEAST_ONE = (
    "actors",
    "environments",
    "steps",
    "pull_period",
    "push_period",
    "max_lag",
    "evaluation_episodes",
)
_AT_LEAST_ZERO = ("max_staleness", "restarts", "evaluate_every")
_POSITIVE = ("samples_per_insert", "heartbeat", "checkpoint_seconds")
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
        engine: ``"local"`` processes, ``"ray"`` for a cluster, or ``"inline"``: everything in this
            process, one after the other, so that a run repeats bit by bit (on one kind of machine,
            with a deterministic learner).
        backend: for full-precision weights in actors.
        pull_period: steps of an environment between two checks for newer weights.
        push_period: updates between two pushes.
        bits: communication quantization of the learner's pushes: 32 or 16; on Ray also 2 to 8.
        max_lag: the learner drops trajectories whose weights are more pushes old; actors pull
            earlier than ``pull_period`` if necessary. Learners with a replay use all ages.
        max_staleness: instead of compressed weights that are more pushes behind, actors use the
            learner's own. At most ``max_lag`` where that applies.
        samples_per_insert: transitions sampled per inserted transition, for learners with a
            replay; both sides wait for each other.
        evaluate_every: environment steps between two evaluations. A separate process plays them
            while training continues: the learner's policy and its compressed version, greedy, on
            the same episodes; one evaluation at a time, no version twice. None: every 5000 steps if
            the monitor needs returns. 0: never; what uses returns then has no readings.
        evaluation_episodes: per evaluation.
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
    max_lag: int = 100
    max_staleness: int = 100
    samples_per_insert: float = 8.0
    evaluate_every: int | None = None
    evaluation_episodes: int = 10
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
        least = dict.fromkeys(_AT_LEAST_ONE, 1) | dict.fromkeys(_AT_LEAST_ZERO, 0)
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ConfigError(field=name, value=value, expected=f"at least {low}")
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                expected = "a number above 0"
                raise ConfigError(field=name, value=getattr(self, name), expected=expected)
        allowed = (32, 16, *range(2, 9)) if self.engine == "ray" else (32, 16)
        if self.bits not in allowed:
            expected = f"one of {allowed} with the engine {self.engine}"
            raise ConfigError(field="bits", value=self.bits, expected=expected)


@dataclass(frozen=True)
class SamplesPerInsert:
    """Limits how often the learner samples what actors insert, on both sides, by two counters.

    The rule of Reverb's ``SampleToInsertRatio`` (Cassirer et al. 2021, arXiv:2102.04736): the
    surplus ``inserts · ratio - samples`` stays within ``error_buffer`` of its value when sampling
    may begin. The faster side waits, so the ratio does not depend on the machine.
    """

    ratio: float
    min_size: int  # inserts before the first sample
    insert_size: int  # maximum inserted at once
    sample_size: int  # maximum sampled at once (a batch)

    @property
    def error_buffer(self) -> float:
        """In samples: twice the smallest with which never both sides wait."""
        # Blocked both: surplus > offset + buffer - insert·ratio and < offset - buffer + sample.
        # Blocked before the first sample: an insert that passes min_size by insert_size - 1.
        inserted = self.ratio * self.insert_size
        return 2.0 * max(inserted, (inserted + self.sample_size) / 2)

    def surplus(self, inserts: int, samples: int) -> float:
        """Return ``inserts · ratio - samples``, relative to its value when sampling may begin."""
        return (inserts - self.min_size) * self.ratio - samples

    def can_insert(self, inserts: int, samples: int, count: int) -> bool:
        """Return whether ``count`` more may be inserted after these inserts and samples."""
        if inserts + count <= self.min_size:
            return True
        return self.surplus(inserts + count, samples) <= self.error_buffer + ROUNDING

    def can_sample(self, inserts: int, samples: int, count: int) -> bool:
        """Return whether ``count`` more may be sampled after these inserts and samples."""
        if inserts < self.min_size:
            return False
        return self.surplus(inserts, samples + count) >= -self.error_buffer - ROUNDING
