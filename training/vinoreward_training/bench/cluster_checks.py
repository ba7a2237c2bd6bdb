"""Checks the model of the row ``cluster`` against trainings on two nodes of Ray on this machine.

One check is of the costs: processor time per step of whole trainings against the sum of the parts.
The other is of the queues: an environment and a learner that wait in place of computing, so that
two cores suffice for a learner that saturates.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import psutil

from vinoreward.actor_learner.acting.environments import EnvironmentSpec
from vinoreward.actor_learner.learners.impala import Impala, ImpalaConfig
from vinoreward.actor_learner.trainer import ActorLearner, ActorLearnerConfig, Progress
from vinoreward.actor_learner.transport.trajectory import Trajectory
from vinoreward_training.bench.cluster_costs import (
    ENVIRONMENT,
    FULL_BITS,
    STATES,
    Measured,
    policies,
)
from vinoreward_training.bench.cluster_model import Cluster, Node, Outcome, simulate
from vinoreward_training.bench.rows import Row

ACTORS = (1, 2, 4)
WAIT = 0.05
"""Seconds of a step of the environment that waits."""
LEARN = 0.5
"""Seconds of an update of the learner that waits: as fast as two of these actors."""
WAITING = Cluster(1, steps=10, trajectories=2, pull_period=10)
SECONDS = 6.0
"""Of a training, once all of its actors take part."""


class WaitingLearner(Impala):
    """A learner that waits in each update, as for an accelerator."""

    def __init__(self) -> None:
        told = ImpalaConfig(trajectories=WAITING.trajectories, precision="fp32", device="cpu")
        super().__init__(policies()[STATES], told)
        self.ages: list[int] = []
        """Updates between the weights that acted in each trajectory, and its own."""

    def update(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Learn, and wait until LEARN seconds are over."""
        began = time.monotonic()
        self.ages += [self.updates - int(one.versions.min()) for one in trajectories]
        metrics = super().update(trajectories)
        time.sleep(max(0.0, LEARN - (time.monotonic() - began)))
        return metrics


@dataclass(frozen=True)
class Observed:
    """What a real training did, once all of its actors took part."""

    steps: float
    """Environment steps a second of wall time that its learner took."""
    processor: dict[str, float]
    """Seconds of processor time, an environment step, by what spent them (see _PROCESSES)."""
    cores: float
    """Processor seconds a second: what the machine gave to all of it."""
    updates: int
    """Before that."""


def observed(
    environment: EnvironmentSpec,
    learner: Impala,
    config: ActorLearnerConfig,
    services: Sequence[int] = (),
) -> Observed:
    """Train on the cluster that this process has joined, and measure."""
    marks: list[tuple[float, int, int, dict[str, dict[int, float]]]] = []

    def progress(now: Progress) -> bool:
        due = now.steps >= 8 * config.actors * config.steps
        if (not marks and due) or (marks and time.monotonic() - marks[0][0] >= SECONDS):
            used = _processor_seconds(services)
            marks.append((time.monotonic(), now.steps, now.updates, used))
        return len(marks) == 2

    ActorLearner(environment, learner, config).learn(1 << 30, progress)
    (began, first, updates, before), (ended, last, _, after) = marks
    seconds, steps = ended - began, last - first
    spent = {
        kind: sum(used - before[kind].get(pid, 0.0) for pid, used in now.items()) / steps
        for kind, now in after.items()
    }
    return Observed(steps / seconds, spent, sum(spent.values()) * steps / seconds, updates)


_LEARNER, _ACTORS, _WEIGHTS, _SERVICE, _DAEMONS = _PROCESSES = (
    "learner's process",
    "actors",
    "latest weights",
    "service",
    "Ray's daemons",
)
"""Whose time it is. Daemons take theirs by the second, not by the step."""


def _processor_seconds(services: Sequence[int]) -> dict[str, dict[int, float]]:
    """Return those of each process by its kind: of this one, of all below it, and of services."""
    this = psutil.Process()
    found: dict[str, dict[int, float]] = {kind: {} for kind in _PROCESSES}
    kinds = {this.pid: _LEARNER, **dict.fromkeys(services, _SERVICE)}
    titles = {"ray::RayProcess": _ACTORS, "ray::State": _WEIGHTS}
    for one in [this, *this.children(recursive=True), *map(psutil.Process, services)]:
        try:
            times, title = one.cpu_times(), " ".join(one.cmdline())
        except psutil.NoSuchProcess:  # it has just ended
            continue
        by_title = (kind for start, kind in titles.items() if title.startswith(start))
        kind = kinds.get(one.pid) or next(by_title, _DAEMONS)
        found[kind][one.pid] = times.user + times.system
    return found


def processor_time(
    measured: Measured, cluster: Cluster, actors: int, rate: float
) -> dict[str, float]:
    """Return the processor time of a step by the processes that spend it, from the measured parts.

    ``rate`` is in steps a second: signs of life come by the second. Ray's daemons are left out.
    """
    weights = f"{STATES} {FULL_BITS}"

    def every(name: str) -> float:
        return measured[f"{name}, all threads"]

    per_step, pushes = 1 / cluster.steps, 1 / cluster.transitions
    pulls = 1 / cluster.pull_period
    push = measured[f"push {weights}"] + measured[f"put {weights}"]
    pull = measured[f"load {weights}"] + measured[f"fetch {weights}"]
    asked = every("call") * (pulls + pushes) + pushes * actors * every("wake")
    return {
        _LEARNER: per_step * (every(f"receive {STATES}") + measured["slots"])
        + pushes * (measured[f"learn {STATES}"] + push),
        _ACTORS: measured["step"]
        + measured[f"act {STATES}"]
        + per_step * every(f"send {STATES}")
        + pulls * pull,
        _WEIGHTS: asked + actors * every("sign") / cluster.beat / rate,
        _SERVICE: measured["service"],
    }


def check_rows(measured: Measured, cluster: Cluster, services: Sequence[int]) -> list[Row]:
    """Train with few actors, in turns; compare with the sum of the costs, and with the queues."""
    rows = []
    environment = EnvironmentSpec(ENVIRONMENT, {"service": "shared"})
    for actors in ACTORS:
        told = ImpalaConfig(trajectories=cluster.trajectories, precision="fp32", device="cpu")
        found = observed(
            environment,
            Impala(policies()[STATES], told),
            ActorLearnerConfig(
                actors=actors,
                engine="ray",
                steps=cluster.steps,
                pull_period=cluster.pull_period,
                max_lag=cluster.max_lag or 1 << 30,
            ),
            services,
        )
        parts = processor_time(measured, cluster, actors, found.steps)
        predicted = sum(parts.values())
        spent = {kind: seconds for kind, seconds in found.processor.items() if kind in parts}
        each = ", ".join(
            f"{kind} {1e3 * seconds:.2f} against {1e3 * parts[kind]:.2f}"
            for kind, seconds in spent.items()
        )
        rows.append(
            Row(
                "cluster",
                f"a training with {actors} actors on {ENVIRONMENT}: processor time of a step in "
                "its processes, measured over the sum of the parts",
                sum(spent.values()) / predicted,
                note=f"ms: {each}; Ray's daemons {1e3 * found.processor[_DAEMONS]:.2f} more; "
                f"{found.steps:.0f} steps a second on the {found.cores:.2f} cores that it got",
                details={**vars(found), "predicted": parts},
            )
        )
    for actors in ACTORS:
        learner = WaitingLearner()
        spec = EnvironmentSpec("vinoreward_training.bench.waiting:Waiting", {"seconds": WAIT})
        found = observed(
            spec,
            learner,
            ActorLearnerConfig(
                actors=actors,
                engine="ray",
                steps=WAITING.steps,
                pull_period=WAITING.pull_period,
                max_lag=WAITING.max_lag or 1 << 30,
            ),
        )
        ages = learner.ages[found.updates * WAITING.trajectories :]
        outcome = predicted_waiting(measured, actors)
        rows.append(
            Row(
                "cluster",
                f"{actors} actors that wait {1e3 * WAIT:.0f} ms in a step and a learner that waits "
                f"{LEARN:g} s in an update of {WAITING.transitions} steps: steps a second, "
                "measured over simulated",
                found.steps / outcome.steps,
                note=f"{found.steps:.1f} against {outcome.steps:.1f}; {outcome.binds} bind"
                f"{'s' if outcome.binds == 'learner' else ''}; weights {np.median(ages):.0f} "
                f"against {outcome.age:.0f} pushes old",
                details={**vars(found), "simulated": outcome.steps, "ages": ages},
            )
        )
    return rows


def predicted_waiting(measured: Measured, actors: int) -> Outcome:
    """Simulate actors and a learner that wait."""
    costs = measured.costs(STATES, FULL_BITS, WAITING)
    costs = replace(
        costs,
        step=WAIT + measured[f"act {STATES}"],
        spread=0.0,
        picture=0.0,
        learn=LEARN / WAITING.transitions,
    )
    own = costs.step + costs.send / WAITING.steps
    return simulate(costs, WAITING, each=Node(actors, 0, actors / own), trajectories=2000)
