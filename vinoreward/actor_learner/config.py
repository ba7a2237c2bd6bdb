"""How actors and learner work together."""

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
"""Steps between two evaluations where a monitor looks at returns and nothing else is asked for."""


def _words(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


@dataclass(frozen=True)
class ActorLearnerConfig:
    """How actors and learner work together.

    Attributes:
        actors: processes that act.
        environments: that each of them steps and acts on as one batch. The strongest competitor of
            compression, and free of any loss: try it first.
        steps: T, steps of each environment in one trajectory.
        engine: ``"local"`` processes, or ``"ray"`` for a cluster.
        backend: what runs full-precision weights in actors.
        pull_period: steps of an environment between two looks for newer weights.
        push_period: updates between two pushes.
        bits: communication quantization of what the learner pushes: 32, 16, or 2 to 8.
        lag: None: newest weights, whenever they come. A number: actors are exactly so many updates
            behind, and a run repeats to the bit (on one kind of machine, with a learner that does;
            until an actor has to be replaced).
        max_lag: trajectories whose weights are more pushes old are never learned from; actors pull
            sooner than every ``pull_period`` steps rather than act for nothing. Learners with a
            replay keep everything.
        max_staleness: compressed weights that are more pushes behind the learner's are not acted
            with; actors take the learner's own instead. At most ``max_lag`` where that holds.
        samples_per_insert: transitions sampled for each that is inserted, for learners with a
            replay of ours; the limit holds on both sides. Stable-Baselines3's learners have
            ``train_freq`` and ``gradient_steps`` for that.
        monitor_period: updates between two looks of the monitor.
        evaluate_every: environment steps between two evaluations, which a process beside plays
            while training goes on: the learner's own policy and what the compressor made of that
            very version, the best actions, the same episodes. One that is due while another is
            under way begins after it, and no version is evaluated twice. None: every 5000 steps if
            the monitor looks at returns; 0: never, and indicators and strategies of returns then
            say nothing.
        evaluation_episodes: of one evaluation.
        observations: rows that ranges are measured and students taught on.
        checkpoint_seconds: between two checkpoints, where there is a folder.
        heartbeat: seconds without a sign of life after which a process is replaced.
        restarts: times that each process may be replaced within a minute of its work; time in which
            it hands nothing over (it hangs, or does not start) is none.
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
        """What runs compressed weights where their chain does not say."""
        # Eager PyTorch runs the learner's weights only: actors do not import it otherwise.
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
                f"the training was asked for with {_words(wrong)}. Expected at least 1 of each of "
                f"{', '.join(_AT_LEAST_ONE)}; max_staleness, restarts, lag and evaluate_every from "
                f"0 (or None for the last two); and {', '.join(positive)} above 0."
            )
        if self.lag is not None and self.push_period != 1:
            raise ConfigError(
                f"a fixed lag was asked for with push_period={self.push_period}. Expected 1: every "
                "version has to reach every actor."
            )
