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
    processor: float
    """Seconds of processor time of all processes together, an environment step."""
    cores: float
    """Processor seconds a second: what the machine gave to it."""
    updates: int
    """Before that."""


def observed(
    environment: EnvironmentSpec,
    learner: Impala,
    config: ActorLearnerConfig,
    services: Sequence[int] = (),
) -> Observed:
    """Train on the cluster that this process has joined, and measure."""
    marks: list[tuple[float, int, int, dict[int, float]]] = []

    def progress(now: Progress) -> bool:
        due = now.steps >= 8 * config.actors * config.steps
        if (not marks and due) or (marks and time.monotonic() - marks[0][0] >= SECONDS):
            used = _processor_seconds(services)
            marks.append((time.monotonic(), now.steps, now.updates, used))
        return len(marks) == 2

    ActorLearner(environment, learner, config).learn(1 << 30, progress)
    (began, first, updates, before), (ended, last, _, after) = marks
    spent = sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())
    seconds, steps = ended - began, last - first
    return Observed(steps / seconds, spent / steps, spent / seconds, updates)


def _processor_seconds(services: Sequence[int]) -> dict[int, float]:
    """Return those of this process, all below it, and the services, by process id."""
    this = psutil.Process()
    found: dict[int, float] = {}
    for pid in [this.pid, *(one.pid for one in this.children(recursive=True)), *services]:
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.NoSuchProcess:  # it has just ended
            continue
        found[pid] = times.user + times.system
    return found


def processor_time(measured: Measured, cluster: Cluster, actors: int, rate: float) -> float:
    """Return the processor time of a step in all processes, by the parts that were measured.

    ``rate`` is in steps a second: signs of life come by the second.
    """
    weights = f"{STATES} {FULL_BITS}"

    def every(name: str) -> float:
        return measured[f"{name}, all threads"]

    per_step = 1 / cluster.steps
    pushes = 1 / cluster.transitions
    trajectory = sum(every(f"{name} {STATES}") for name in ("send", "receive", "store"))
    push = measured[f"push {weights}"] + measured[f"put {weights}"] + every("call")
    pull = every("call") + measured[f"load {weights}"] + measured[f"fetch {weights}"]
    return (
        measured["step"]
        + measured[f"act {STATES}"]
        + measured["service"]
        + per_step * (trajectory + measured["slots"])
        + pushes * (measured[f"learn {STATES}"] + push + actors * every("wake"))
        + pull / cluster.pull_period
        + actors * every("sign") / cluster.beat / rate
    )


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
        predicted = processor_time(measured, cluster, actors, found.steps)
        rows.append(
            Row(
                "cluster",
                f"a training with {actors} actors on {ENVIRONMENT}: processor time of a step in "
                "all processes, measured over the sum of the parts",
                found.processor / predicted,
                note=f"{1e3 * found.processor:.2f} against {1e3 * predicted:.2f} ms; "
                f"{found.steps:.0f} steps a second on the {found.cores:.2f} cores that it got, "
                f"{found.cores / predicted:.0f} predicted for these",
                details={**vars(found), "predicted": predicted},
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
