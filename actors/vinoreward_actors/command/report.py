"""Results of an actors' run: plots, ``report.html``, ``summary.json``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

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
    evaluation_seconds: float
    """Of this process's evaluations; all but the last ran during training."""
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
        f"{words}. Train for longer, use a cheaper compression (a smaller student, distill "
        "batch=16), or allow older weights (--max-staleness)"
    )


def gap_words(pair: Pair) -> str:
    """Return a sentence on the return lost to compression on the same episodes."""
    if pair.compressed is None:
        return "Nothing was compressed."
    apart = pair.full.version - pair.compressed.version
    late = f" (made of weights {apart} pushes older)" if apart else ""
    returns = pair.returns
    if returns is None:
        lost = pair.full.mean - pair.compressed.mean
        return f"The compressed policy{late} has {_apart(lost)} on the same episodes."
    try:
        gap = paired_gap(returns)
    except InputError:
        return "Too few episodes to say what compression costs."
    verdict = "certainly worse" if gap.worse else "not certainly worse"
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
    lag = draw_lag(folder / "lag.png", rows)
    readings = draw_readings(folder / "readings.png", rows)
    compression = draw_compression(folder / "compression.png", rows)
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
            "episodes of one version, played beside the training.",
            images=[curve],
        ),
        Section(
            "Where an actor's time goes",
            "Per environment step of one actor, once everything was compiled.",
            breakdown_rows(outcome.breakdown),
            [profile],
        ),
        Section("How old the actors' weights were", images=[lag]),
    ]
    if readings is not None:
        sections.append(Section("What the monitor read", images=[readings]))
    if compression is not None:
        text = "" if changes else "It was not changed while training ran."
        sections.append(Section("How strongly was compressed", text, changes, [compression]))
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
        "evaluations, played beside (this process)": round(outcome.evaluation_seconds, 1),
        "target": target,
        "processor µs of an actor's step": round(1e6 * outcome.breakdown.step_cpu, 1),
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


def _figure(columns: int = 1, rows: int = 1, height: float = 4.2, width: float = 8.0) -> Any:
    figure = new_figure(width, height)
    axes = figure.subplots(rows, columns, squeeze=False)
    for each in axes.flat:
        each.grid(alpha=0.3)
    return figure, axes


def _column(rows: Iterable[Row], *path: str) -> tuple[list[float], list[float]]:
    """Return steps and values of the rows that have this value."""
    steps, values = [], []
    for row in rows:
        value: Any = row
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, int | float):
            steps.append(float(row["step"]))
            values.append(float(value))
    return steps, values


def _kind(rows: Iterable[Row], *kinds: str) -> list[Row]:
    return [row for row in rows if row["kind"] in kinds]


def draw_returns(path: Path, title: str, rows: Sequence[Row], target: float | None = None) -> Path:
    """Draw returns over steps and time: training episodes, and evaluations of both policies."""
    figure, axes = _figure(columns=2, width=10)
    # The final evaluation plays other episodes than the curve.
    trained, evaluated = _kind(rows, "train"), _kind(rows, "evaluation") or _kind(rows, "final")
    for at, (key, label) in enumerate((("step", "environment steps"), ("seconds", "seconds"))):
        one = axes[0, at]

        def line(
            rows: list[Row], *names: str, axes: Any = one, key: str = key, **style: Any
        ) -> None:
            pairs = [(row[key], value) for row in rows for value in _column([row], *names)[1]]
            if pairs:
                axes.plot(*zip(*pairs, strict=True), **style)

        line(trained, "mean_return", color=GREY, linewidth=1, label="training, last 100")
        line(evaluated, "full", "mean", color=FULL, marker="o", label="full precision")
        line(
            evaluated, "compressed", "mean", color=COMPRESSED, marker="s", linestyle="--",
            markerfacecolor="none", markersize=8, label="compressed, same episodes",
        )  # fmt: skip
        if target is not None:
            one.axhline(target, color="black", linewidth=1, linestyle=":", label="target")
        one.set(xlabel=label, ylabel="return")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(title)
    return save_figure(figure, path)


def draw_profile(path: Path, breakdowns: Mapping[str, Breakdown]) -> Path:
    """Draw ActorQ's figure: stacked parts of an actor's step, a bar for each breakdown."""
    figure, axes = _figure(columns=2, width=10, height=2.6 + 0.6 * len(breakdowns))
    for axis, clock in zip(axes[0], ("cpu", "wall"), strict=True):
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
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(PARTS), frameon=False)
    return save_figure(figure, path)


def draw_lag(path: Path, rows: Sequence[Row]) -> Path:
    """Draw the actors' lag in pushes, over steps and as a histogram."""
    figure, axes = _figure(columns=2, width=10)
    trained = _kind(rows, "train")
    for name, colour in (("lag_max", GREY), ("lag_mean", FULL)):
        steps, values = _column(trained, "learner", name)
        if values:
            axes[0, 0].plot(steps, values, color=colour, label=name.removeprefix("lag_"))
    if axes[0, 0].get_legend_handles_labels()[0]:
        axes[0, 0].legend(frameon=False)
    axes[0, 0].set(xlabel="environment steps", ylabel="versions behind the learner")
    values = _column(trained, "learner", "lag_mean")[1]
    if values:
        axes[0, 1].hist(values, bins=min(30, max(5, math.ceil(max(values)) + 1)), color=FULL)
    axes[0, 1].set(xlabel="mean lag of a batch", ylabel="batches")
    return save_figure(figure, path)


def draw_readings(path: Path, rows: Sequence[Row]) -> Path | None:
    """Draw the monitor's readings, one small plot each; None if there are none."""
    trained = _kind(rows, "train")
    names = sorted({name for row in trained for name in row.get("readings") or {}})
    curves = {name: _column(trained, "readings", name) for name in names}
    curves = {name: pair for name, pair in curves.items() if len(pair[1]) > 1}
    if not curves:
        return None
    lines = math.ceil(len(curves) / 4)
    figure, axes = _figure(columns=4, rows=lines, width=12, height=2.2 * lines)
    for each, (name, (steps, values)) in zip(axes.flat, curves.items(), strict=False):
        each.plot(steps, values, color=FULL, linewidth=1)
        each.set_title(name, fontsize=8)
        each.tick_params(labelsize=7)
        if "kl" in name and min(values) > 0 and max(values) > 30 * min(values):
            each.set_yscale("log")
    for each in list(axes.flat)[len(curves) :]:
        each.set_visible(False)
    return save_figure(figure, path)


def draw_compression(path: Path, rows: Sequence[Row]) -> Path | None:
    """Draw the compression setting over steps, with a line at each change; None without one."""
    trained = [row for row in _kind(rows, "train") if row.get("setting")]
    if not trained:
        return None
    changes = [float(row["step"]) for row in _kind(rows, "change")]
    figure, axes = _figure(columns=4, width=12, height=2.6)
    for axis, name in zip(axes[0], ("bits", "sparsity", "alpha", "pull_period"), strict=True):
        steps = [float(row["step"]) for row in trained]
        values = [_shown(row["setting"], name) for row in trained]
        axis.step(steps, values, where="post", color=COMPRESSED)
        for step in changes:
            axis.axvline(step, color=GREY, linewidth=0.6, linestyle=":")
        highest = {"bits": 33.0, "sparsity": 1.02, "alpha": 1.02}.get(name, 1.1 * max(values))
        axis.set_ylim(-0.02 * highest, highest)
        axis.set_title(name.replace("_", " "), fontsize=9)
        axis.tick_params(labelsize=7)
        axis.locator_params(axis="x", nbins=4)  # more labels would overlap
    return save_figure(figure, path)


def _shown(setting: Mapping[str, Any], name: str) -> float:
    if name == "bits":
        return 32.0 if setting["bits"] is None or not setting["enabled"] else float(setting["bits"])
    if not setting["enabled"] and name in ("sparsity", "alpha"):
        return 0.0
    return float(setting[name])


def draw_study(
    path: Path, runs: Mapping[int, Sequence[Sequence[Row]]], finals: Mapping[int, Sequence[float]]
) -> Path:
    """Draw the return over steps for several pull periods: thin lines are seeds, thick the median.

    ``runs`` has the rows of each seed, ``finals`` its final return, NaN for none.
    """
    figure, axes = _figure(columns=2, width=10)
    ends = []
    for place, (period, seeds) in enumerate(runs.items()):
        colour = COLOURS[place % (len(COLOURS) - 1)]
        curves = [_column(_kind(rows, "train"), "mean_return") for rows in seeds]
        curves = [pair for pair in curves if pair[1]]
        for steps, values in curves:
            axes[0, 0].plot(steps, values, color=colour, linewidth=0.7, alpha=0.4)
        if curves:
            grid = np.linspace(0, min(pair[0][-1] for pair in curves), 100)
            middle = np.median([np.interp(grid, *pair) for pair in curves], axis=0)
            axes[0, 0].plot(grid, middle, color=colour, linewidth=2, label=f"every {period}")
        final = [value for value in finals[period] if np.isfinite(value)]
        axes[0, 1].plot([period] * len(final), final, "o", color=colour, alpha=0.6)
        if final:
            ends.append((period, float(np.median(final))))
    if ends:
        axes[0, 1].plot(*zip(*ends, strict=True), color="black", linewidth=1)
        axes[0, 0].legend(frameon=False, title="weights pulled", fontsize=8)
    axes[0, 0].set(xlabel="environment steps", ylabel="return, last 100 training episodes")
    axes[0, 1].set(xscale="log", xlabel="pull period, steps", ylabel="return of the last policy")
    return save_figure(figure, path)
