"""The row ``cluster``: what a training on a cluster costs here, and which part binds from where.

Measured first, on this machine; then simulated for clusters of such nodes; and the model is checked
against real trainings. docs/sizing-a-cluster.md explains the table.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from vinoreward.backends.serving.places import FOLDER
from vinoreward.processes import environment_variables
from vinoreward.rewards.classifier import Classifier
from vinoreward_training.bench.cluster_costs import (
    BITS,
    ENVIRONMENT,
    FULL_BITS,
    LATENTS,
    PARTS,
    PICTURES,
    STATES,
    Measured,
    measure,
    two_nodes,
)
from vinoreward_training.bench.cluster_model import (
    CORES,
    STATIONS,
    Cluster,
    Costs,
    Outcome,
    binding_nodes,
    elasticities,
    limits,
    node,
    simulate,
)
from vinoreward_training.bench.rows import Row, quartiles
from vinoreward_training.bench.services import running_services
from vinoreward_training.configs import BenchConfig
from vinoreward_training.runs.report import new_figure, save_figure

KINDS = (STATES, PICTURES, LATENTS)
NODES = (10, 100, 1000)
SENSITIVE = 2
"""Numbers that are halved and doubled."""
_GIGA = 1e9


def cluster_rows(config: BenchConfig) -> list[Row]:
    """Measure, simulate, and check against trainings with 1, 2 and 4 actors."""
    from vinoreward_training.bench.cluster_checks import check_rows

    cluster = cluster_of(config)
    # A folder of its own, so that nobody else's service takes part.
    with (
        tempfile.TemporaryDirectory(prefix="vinoreward-services-") as folder,
        environment_variables({FOLDER: folder}),
    ):
        measured = measure(config, cluster, KINDS)
        rows = [*measured_rows(measured, cluster), *model_rows(measured, cluster, config)]
        # It lives as long as one of its callers: without this one, each training had another.
        with (
            Classifier(config.bundle, service="shared") as classifier,
            two_nodes(),
        ):
            classifier.backend.load()
            rows += check_rows(measured, cluster, running_services(os.environ[FOLDER]))
    return rows


def cluster_of(config: BenchConfig) -> Cluster:
    """Return the cluster of a configuration, with one node."""
    return Cluster(
        1,
        cores=config.cluster_cores,
        gbits=config.cluster_gbits,
        learner_speed=config.cluster_learner,
    )


def measured_rows(measured: Measured, cluster: Cluster) -> list[Row]:
    """Return what was measured, in ms of processor time or in bytes."""

    def row(what: str, name: str, scale: float = 1e3, unit: str = "ms", note: str = "") -> Row:
        values = [value * scale for value in measured.figures[name]]
        low, middle, high = quartiles(values)
        if len(values) == 1:
            return Row("cluster", what, middle, unit, note=note)
        spread = f"quartiles of {len(values)} rounds"
        return Row("cluster", what, middle, unit, low=low, high=high, spread=spread, note=note)

    def each(name: str, scale: float = 1e3, digits: int = 2) -> str:
        found = (f"{measured[f'{name} {kind}'] * scale:.{digits}f} {kind}" for kind in KINDS)
        return ", ".join(found)

    def pushes(name: str, scale: float) -> str:
        return ", ".join(
            f"{measured[f'{name} {kind} {bits}'] * scale:.3g} {kind} in {bits} bits"
            for kind in KINDS
            for bits in BITS
        )

    parts = ", ".join(
        f"{words} {1e3 * measured[f'step, {part}']:.2f}" for part, words in PARTS.items()
    )
    per = cluster.transitions
    steps = cluster.steps
    return [
        row(f"a step of {ENVIRONMENT} in the actor's process", "step", note=parts),
        row("… a picture in the service's process", "service"),
        row("choosing an action from states", f"act {STATES}", note=each("act")),
        row("encoding a picture to a latent, in the actor's process", "encode"),
        row(
            "a transition of states",
            f"trajectory {STATES}",
            1 / steps,
            "bytes",
            note=each("trajectory", 1 / steps, 0),
        ),
        row(
            "a push of the weights that act on states",
            f"weights {STATES} {FULL_BITS}",
            1e-3,
            "kB",
            note=pushes("weights", 1e-3),
        ),
        row(
            f"a trajectory of {steps} states into Ray, in the actor's process, busiest thread",
            f"send {STATES}",
            note=each("send"),
        ),
        row(
            "… out of Ray, in the learner's process, busiest thread",
            f"receive {STATES}",
            note=each("receive"),
        ),
        row(
            "… of pictures through Ray's daemon at the learner's, busiest thread",
            f"store {PICTURES}",
            note=each("store"),
        ),
        row(
            "… in the book about the slots of 1,000 actors",
            "slots, each actor",
            1e6,
        ),
        row(
            "a push of the weights that act on pictures to one node, Ray's daemon at the learner's",
            f"store weights {PICTURES} {FULL_BITS}",
            note=pushes("store weights", 1e3),
        ),
        row("a pull's question to the process of the latest weights", "call"),
        row("… a sign of life", "sign"),
        row("… a push, for each 1,000 actors whose signs of life wait", "wake", 1e6),
        row(
            "learning from a transition of states",
            f"learn {STATES}",
            1e3 / per,
            note=each("learn", 1e3 / per, 3),
        ),
    ]


def model_rows(measured: Measured, cluster: Cluster, config: BenchConfig) -> list[Row]:
    """Return from how many nodes what binds, what is learned then, and what matters most."""
    rows: list[Row] = []
    outcomes: dict[tuple[str, int], Outcome] = {}
    seed = config.seed
    nodes = f"nodes of {cluster.cores} cores with {cluster.gbits:g} Gbit/s"
    for kind in KINDS:
        for bits in BITS:
            costs = measured.costs(kind, bits, cluster)
            each = node(costs, cluster, seed)
            found = binding_nodes(costs, cluster, each)
            order = sorted((count, name) for name, count in found.items() if count is not None)
            never = [name for name, count in found.items() if count is None]
            rows.append(
                Row(
                    "cluster",
                    f"{kind} as observations, pushes in {bits} bits: {nodes}, from which something "
                    "else than their cores binds",
                    order[0][0] if order else None,
                    "nodes",
                    note=", ".join(
                        [f"{name} from {count}" for count, name in order]
                        + [f"{name} never" for name in never]
                    )
                    + f"; a node has {each.actors} actors and {each.services} services, and makes "
                    f"{each.rate:.0f} steps a second",
                    details={"nodes": found, "each": vars(each), "costs": vars(costs)},
                )
            )
        costs = measured.costs(kind, FULL_BITS, cluster)
        each = node(costs, cluster, seed)
        for count in NODES:
            many = replace(cluster, nodes=count)
            outcome = outcomes[kind, count] = simulate(costs, many, each=each, seed=seed)
            actors = count * each.actors
            waiting = cluster.slots_of(actors) * actors * costs.trajectory / _GIGA
            rows.append(
                Row(
                    "cluster",
                    f"{kind}, {count} nodes, simulated: steps a second that are learned from",
                    outcome.steps,
                    "steps/s",
                    note=f"{told(outcome)}; up to {waiting:.2g} GB of trajectories at the learner",
                    details={**vars(outcome), "limits": limits(costs, many, each)},
                )
            )
    for kind in (STATES, PICTURES):
        costs = measured.costs(kind, FULL_BITS, cluster)
        rows += sensitivity_rows(kind, costs, replace(cluster, nodes=NODES[0]), seed)
    draw(config.out / "cluster.png", measured, cluster, outcomes, seed)
    return rows


def told(outcome: Outcome) -> str:
    """Return a sentence about the stations that are busy for a third of the time and more."""
    busy = sorted(outcome.busy.items(), key=lambda one: -one[1])
    words = ", ".join(f"{name} {100 * part:.0f} %" for name, part in busy if part >= 1 / 3)
    return (
        f"busy: {words}; weights {outcome.age:.0f} pushes old, {100 * outcome.dropped:.0f} % of "
        "the trajectories too old"
    )


def sensitivity_rows(kind: str, costs: Costs, cluster: Cluster, seed: int) -> list[Row]:
    """Halve and double the numbers that matter most for the first bottleneck, one at a time."""
    found = elasticities(costs, cluster, seed)
    most = sorted(found, key=lambda name: -found[name])[:SENSITIVE]
    rows = []
    for name in most:
        steps = {}
        for times in (0.5, 1.0, 2.0):
            value = getattr(costs, name)
            changed = replace(costs, **{name: type(value)(value * times)})
            steps[times] = simulate(changed, cluster, seed=seed).steps
        rows.append(
            Row(
                "cluster",
                f"{kind}, {cluster.nodes} nodes, simulated: steps a second with half of, and with "
                f"twice the measured `{name}`, over those with it",
                steps[0.5] / steps[1.0],
                note=f"{steps[2.0] / steps[1.0]:.2f} with twice; one percent more of it costs "
                f"{found[name]:.2f} %",
                details={"steps": {str(times): each for times, each in steps.items()}},
            )
        )
    return rows


def draw(
    path: Path,
    measured: Measured,
    cluster: Cluster,
    outcomes: Mapping[tuple[str, int], Outcome],
    seed: int,
) -> None:
    """Draw each station's limit over the number of nodes, and what was simulated."""
    figure = new_figure(12.0, 4.6, dpi=120)
    panels = figure.subplots(1, len(KINDS), sharey=True)
    counts = np.unique(np.logspace(0, 3, 40).round().astype(int)).tolist()
    for axes, kind in zip(panels, KINDS, strict=True):
        costs = measured.costs(kind, FULL_BITS, cluster)
        each = node(costs, cluster, seed)
        lines = [limits(costs, replace(cluster, nodes=count), each) for count in counts]
        for number, name in enumerate(STATIONS):
            values = [line[name] if line[name] > 0 else math.nan for line in lines]
            if np.isfinite(values).any():
                style = {"lw": 2.5, "color": "black"} if name == CORES else {"color": f"C{number}"}
                axes.plot(counts, values, label=name, **style)
        shown = [(count, one.steps) for (of, count), one in outcomes.items() if of == kind]
        axes.plot(*zip(*shown, strict=True), "o", color="tab:red", label="simulated", zorder=5)
        axes.set(xscale="log", yscale="log", title=kind, xlabel="nodes", ylim=(30, 1e7))
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("environment steps a second")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=5, loc="outside lower center", fontsize=8)
    save_figure(figure, path)
