"""Settings of the actors and the learner's loop."""

from __future__ import annotations

from collections.abc import Mapping
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


def _words(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


@dataclass(frozen=True)
class ActorLearnerConfig:
    """Settings of the actors and the learner's loop.

    Attributes:
        actors: number of actor processes.
        environments: per actor, stepped as one batch. The strongest alternative to compression,
            and lossless: try it first.
        steps: T, steps of each environment in one trajectory.
        engine: ``"local"`` processes, or ``"ray"`` for a cluster.
        backend: for full-precision weights in actors.
        pull_period: steps of an environment between two checks for newer weights.
        push_period: updates between two pushes.
        bits: communication quantization of the learner's pushes: 32, 16, or 2 to 8.
        lag: None: actors use the newest weights. A number: actors are exactly that many updates
            behind, and a run repeats bit by bit (on one kind of machine, with a deterministic
            learner, until an actor must be replaced).
        max_lag: the learner drops trajectories whose weights are more pushes old; actors pull
            earlier than ``pull_period`` if necessary. Learners with a replay use all ages.
        max_staleness: actors do not use compressed weights that are more pushes behind the
            learner's; they then use the learner's own. At most ``max_lag`` where that applies.
        samples_per_insert: transitions sampled per inserted transition, for learners with our
            replay; both sides wait for each other. Stable-Baselines3's learners use
            ``train_freq`` and ``gradient_steps`` instead.
        monitor_period: updates between two monitor updates.
        evaluate_every: environment steps between two evaluations. A separate process plays them
            while training continues: the learner's policy and its compressed version, greedy, on
            the same episodes. If one is still running, the next starts after it; no version is
            evaluated twice. None: every 5000 steps if the monitor needs returns. 0: never;
            indicators and strategies that use returns then have no readings.
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
            raise ConfigError(
                f"the training's settings have {_words(wrong)}. Expected at least 1 of each of "
                f"{', '.join(_AT_LEAST_ONE)}; max_staleness, restarts, lag and evaluate_every from "
                f"0 (or None for the last two); and {', '.join(positive)} above 0."
            )
        if self.lag is not None and self.push_period != 1:
            raise ConfigError(
                f"a fixed lag needs push_period=1, but push_period={self.push_period}. Expected 1: "
                "every version must reach every actor."
            )
