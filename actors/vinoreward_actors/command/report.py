"""Results of an actors' run: plots, ``report.html``, ``summary.json``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vinoreward.errors import InputError
from vinoreward.files import write_json
from vinoreward_actors.actor_learner.acting.evaluation import Pair, Played
from vinoreward_actors.actor_learner.acting.profile import PARTS, Breakdown
from vinoreward_actors.command.config import ActorsConfig
from vinoreward_actors.monitoring.batch import paired_gap
from vinoreward_training.policy.evaluate import rate_of, rate_row
from vinoreward_training.runs.machine import describe_machine
from vinoreward_training.runs.report import (
    Section,
    configuration,
    new_figure,
    save_figure,
    write_report,
)
from vinoreward_training.runs.run_folder import plain, plain_numbers

Row = Mapping[str, Any]
SUMMARY = "summary.json"
MACHINE = ("cpu", "cores", "system", "python", "commit")
FULL, COMPRESSED, GREY = "#1b6ca8", "#d95f02", "#7a7f87"
COLOURS = ("#1b6ca8", "#5aa469", "#9aa0a8", "#d9b310", "#d95f02", "#8e44ad", "#d0d4da")
NAMES = {
    "infer": "step: network",
    "env": "environment",
    "write": "write",
    "pull": "pull",
    "decode": "deserialize",
    "load": "load weights",
    "wait": "wait",
}
"""Names of an actor's parts; ActorQ's where it has them."""
NEAR_ZERO = 0.1
"""Fraction of compressed steps below which there is advice."""


@dataclass(frozen=True)
class Outcome:
    """Result of an actors' run; more on some figures at the trainer's ``Summary``."""

    folder: Path
    steps: int
    updates: int
    seconds: float
    """Wall time, including earlier processes."""
    reached_at: int | None
    """Step at which an evaluation reached the target; None if none did or no target."""
    reached_seconds: float | None
    pair: Pair
    """The last evaluation."""
    breakdown: Breakdown
    """Of an actor's time, after start-up."""
    learner_seconds: float
    """Wall time of updates and pushes per environment step."""
    verdict: str
    """Whether compression can pay here."""
    compressed_share: float
    staleness: float


def share_words(share: float, staleness: float) -> str:
    """Return a sentence on compressed steps and their age, empty for NaN.

    It has advice if there are almost none.
    """
    if math.isnan(share):
        return ""
    words = "acted compressed: 0% of the steps"
    if not math.isnan(staleness):
        words = (
            f"acted compressed: {share:.0%} of the steps since the first, with weights "
            f"{staleness:.0f} pushes old (median)"
        )
    if share >= NEAR_ZERO:
        return words
    return (
        f"{words}. Train for longer, or use a cheaper compression (a smaller student, "
        "distill: {batch: 16})"
    )


def gap_words(pair: Pair) -> str:
    """Return a sentence on the return lost to compression on the same episodes."""
    if pair.compressed is None:
        return "Nothing was compressed."
    apart = pair.full.version - pair.compressed.version
    late = f" (compressed from weights {apart} pushes older)" if apart else ""
    returns = pair.returns
    if returns is None:
        lost = pair.full.mean - pair.compressed.mean
        return f"The compressed policy{late} has {_apart(lost)} on the same episodes."
    try:
        gap = paired_gap(returns)
    except InputError:
        return "Too few episodes to say what compression costs."
    verdict = "significantly worse" if gap.worse else "not significantly worse"
    return (
        f"On the same {len(pair.seeds)} episodes the compressed policy has {_apart(gap.mean)} "
        f"(standard error {gap.error:.2g}): {verdict}."
    )


def _apart(lost: float) -> str:
    if lost == 0.0:
        return "the same return"
    return f"{abs(lost):.4g} {'more' if lost < 0.0 else 'less'} return"


def breakdown_rows(breakdown: Breakdown) -> list[dict[str, object]]:
    """Return the table of an actor's time."""
    total = max(breakdown.step_cpu, 1e-12)
    return [
        {
            "part": NAMES[part],
            "processor µs per step": round(1e6 * breakdown.cpu[part], 1),
            "wall µs per step": round(1e6 * breakdown.wall[part], 1),
            "share of processor time": f"{breakdown.cpu[part] / total:.0%}",
        }
        for part in PARTS
    ]


def aligned(rows: Sequence[Row], *, left: int = 0, indent: int = 0) -> str:
    """Return a table as lines of text; the rows' keys head the columns, ``left`` are flush left."""
    lines = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        " " * indent
        + "  ".join(
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def write_summary(config: ActorsConfig, outcome: Outcome, rows: Sequence[Row]) -> None:
    """Write the images, ``report.html`` and ``summary.json`` into the run folder."""
    folder, pair = outcome.folder, outcome.pair
    machine = describe_machine()
    title = f"{config.algorithm} on {config.task}, {config.compress}, seed {config.seed}"
    curve = draw_returns(folder / "returns.png", title, rows, config.target)
    profile = draw_profile(folder / "profile.png", {"an actor": outcome.breakdown})
    changes, events, alarms = (
        [{"step": row["step"], "what": row["text"]} for row in _kind(rows, kind)]
        for kind in ("change", "event", "alarm")
    )
    sections = [
        Section("Does compression pay here?", f"{outcome.verdict}\n{gap_words(pair)}"),
        *_results(pair),
        *([Section("Alarms", rows=alarms)] if alarms else []),
        Section("In figures", facts=_figures(config, outcome)),
        Section(
            "Return",
            "Grey: training episodes, in which actors explore. Dots: both policies on the same "
            "episodes of one version, played during the training.",
            images=[curve],
        ),
        Section(
            "Where an actor's time goes",
            "Per environment step of one actor, once everything was compiled.",
            breakdown_rows(outcome.breakdown),
            [profile],
        ),
    ]
    if changes:
        sections.append(Section("Changes of the compression", rows=changes))
    if events:
        sections.append(Section("What happened to processes", rows=events))
    sections += [
        Section("Evaluations", rows=_evaluations(rows)),
        Section("Machine", facts={name: machine[name] for name in MACHINE}),
        configuration(config),
    ]
    write_report(folder / "report.html", f"Actors: {title}", sections)
    settings = ("task", "algorithm", "compress", "seed", "target")
    results = {
        name: value for name, value in vars(outcome).items() if name not in ("folder", "pair")
    }
    summary = {
        **{name: getattr(config, name) for name in settings},
        **plain(results),
        "full_return": pair.full.mean,
        "full_error": pair.full.error,
        "compressed_return": None if pair.compressed is None else pair.compressed.mean,
        "machine": machine,
    }
    write_json(folder / SUMMARY, plain_numbers(summary))


def policies_of(pair: Pair) -> list[tuple[str, Played]]:
    """Return the names and results of the evaluated policies."""
    both = (("full precision", pair.full), ("compressed", pair.compressed))
    return [(name, played) for name, played in both if played is not None]


def _results(pair: Pair) -> list[Section]:
    returns, rates = [], []
    for name, played in policies_of(pair):
        returns.append(
            {
                "policy": name,
                "mean return": round(played.mean, 3),
                "standard error": round(played.error, 3),
                "episodes": len(played.returns),
                "mean length": float(played.lengths.mean()),
                "version": played.version,
            }
        )
        rates.append(rate_row(f"{name}: claimed by the reward", rate_of(played.claimed)))
        rates.append(rate_row(f"{name}: true, by the simulator", rate_of(played.true)))
    sections = [Section("Result", "Without exploration, on fresh episodes.", returns)]
    if pair.full.true is not None or pair.full.claimed is not None:
        text = "Success of each episode's last state. Where the two differ, the reward is fooled."
        sections.append(Section("Claimed and true success", text, rates))
    return sections


def _figures(config: ActorsConfig, outcome: Outcome) -> dict[str, object]:
    target = "none" if config.target is None else "not reached"
    if outcome.reached_at is not None and outcome.reached_seconds is not None:
        target = f"{outcome.reached_at} steps, {outcome.reached_seconds:.1f} s"
    values: dict[str, object] = {
        "environment steps": outcome.steps,
        "updates of the learner": outcome.updates,
        "seconds": round(outcome.seconds, 1),
        "target": target,
        "µs of an actor's step, without waiting": round(1e6 * outcome.breakdown.step_wall, 1),
        "share of network and weights": f"{outcome.breakdown.share_of_network:.0%}",
        "learner's µs per environment step": round(1e6 * outcome.learner_seconds, 1),
    }
    if not math.isnan(outcome.compressed_share):
        values["steps that acted compressed, from the first one on"] = (
            f"{outcome.compressed_share:.0%}"
        )
        values["pushes by which their weights were behind (median)"] = (
            "none acted" if math.isnan(outcome.staleness) else round(outcome.staleness)
        )
    return values


def _evaluations(rows: Sequence[Row]) -> list[dict[str, object]]:
    lines = []
    for row in _kind(rows, "evaluation", "final"):
        full, compressed = row["full"], row["compressed"] or {}
        line: dict[str, object] = {
            "step": row["step"],
            "full": full["mean"],
            "compressed": compressed.get("mean"),
            "episodes": len(row["seeds"]),
        }
        for name in ("claimed", "true"):
            if full.get(name) is not None:
                line[f"{name} success"] = f"{full[name]:.0%}"
        lines.append(line)
    return lines


def _figure(height: float = 4.2) -> Any:
    figure = new_figure(10.0, height)
    axes = figure.subplots(1, 2)
    for each in axes:
        each.grid(alpha=0.3)
    return figure, axes


def _kind(rows: Iterable[Row], *kinds: str) -> list[Row]:
    return [row for row in rows if row["kind"] in kinds]


def draw_returns(path: Path, title: str, rows: Sequence[Row], target: float | None = None) -> Path:
    """Draw returns over steps and time: training episodes, and evaluations of both policies."""
    figure, axes = _figure()
    # The final evaluation plays other episodes than the curve.
    trained, evaluated = _kind(rows, "train"), _kind(rows, "evaluation") or _kind(rows, "final")
    compressed = [row for row in evaluated if row["compressed"]]
    for axis, (key, label) in zip(
        axes, (("step", "environment steps"), ("seconds", "seconds")), strict=True
    ):
        known = [row for row in trained if row["mean_return"] is not None]
        axis.plot(
            [row[key] for row in known], [row["mean_return"] for row in known],
            color=GREY, linewidth=1, label="training, last 100",
        )  # fmt: skip
        axis.plot(
            [row[key] for row in evaluated], [row["full"]["mean"] for row in evaluated],
            color=FULL, marker="o", label="full precision",
        )  # fmt: skip
        if compressed:
            axis.plot(
                [row[key] for row in compressed], [row["compressed"]["mean"] for row in compressed],
                color=COMPRESSED, marker="s", linestyle="--", markerfacecolor="none", markersize=8,
                label="compressed, same episodes",
            )  # fmt: skip
        if target is not None:
            axis.axhline(target, color="black", linewidth=1, linestyle=":", label="target")
        axis.set(xlabel=label, ylabel="return")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(title)
    return save_figure(figure, path)


def draw_profile(path: Path, breakdowns: Mapping[str, Breakdown]) -> Path:
    """Draw ActorQ's figure: stacked parts of an actor's step, a bar for each breakdown."""
    figure, axes = _figure(height=2.6 + 0.6 * len(breakdowns))
    for axis, clock in zip(axes, ("cpu", "wall"), strict=True):
        for place, breakdown in enumerate(breakdowns.values()):
            left = 0.0
            for part, colour in zip(PARTS, COLOURS, strict=True):
                value = 1e6 * getattr(breakdown, clock)[part]
                axis.barh(
                    place, value, left=left, color=colour, height=0.6,
                    label=NAMES[part] if place == 0 else None,
                )  # fmt: skip
                left += value
            axis.annotate(f" {left:.0f}", (left, place), va="center", fontsize=9)
        axis.set_yticks(range(len(breakdowns)), list(breakdowns))
        axis.invert_yaxis()
        axis.margins(x=0.12)
        kind = "processor" if clock == "cpu" else "wall"
        axis.set(xlabel=f"µs of {kind} time per environment step")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(PARTS), frameon=False)
    return save_figure(figure, path)
