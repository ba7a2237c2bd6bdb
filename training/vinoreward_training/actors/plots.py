"""Plots of an actors' run, from the rows of its ``metrics.jsonl``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vinoreward.actor_learner.acting.profile import PARTS, Breakdown
from vinoreward_training.runs.curves import new_figure, save_figure

Row = Mapping[str, Any]
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
            found: list[Row], *names: str, axes: Any = one, key: str = key, **style: Any
        ) -> None:
            pairs = [(row[key], value) for row in found for value in _column([row], *names)[1]]
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
    """Draw ActorQ's figure: stacked parts of an actor's step, in processor and wall time.

    Args:
        path: of the PNG.
        breakdowns: name of a bar to its breakdown.
    """
    figure, axes = _figure(columns=2, width=10, height=2.6 + 0.6 * len(breakdowns))
    for axis, clock in zip(axes[0], ("cpu", "wall"), strict=True):
        for place, found in enumerate(breakdowns.values()):
            left = 0.0
            for part, colour in zip(PARTS, COLOURS, strict=True):
                value = 1e6 * getattr(found, clock)[part]
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
    seen = _kind(rows, "train")
    names = sorted({name for row in seen for name in row.get("readings") or {}})
    found = {name: _column(seen, "readings", name) for name in names}
    found = {name: pair for name, pair in found.items() if len(pair[1]) > 1}
    if not found:
        return None
    lines = math.ceil(len(found) / 4)
    figure, axes = _figure(columns=4, rows=lines, width=12, height=2.2 * lines)
    for each, (name, (steps, values)) in zip(axes.flat, found.items(), strict=False):
        each.plot(steps, values, color=FULL, linewidth=1)
        each.set_title(name, fontsize=8)
        each.tick_params(labelsize=7)
        if "kl" in name and min(values) > 0 and max(values) > 30 * min(values):
            each.set_yscale("log")
    for each in list(axes.flat)[len(found) :]:
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
    path: Path,
    runs: Mapping[int, Sequence[Sequence[Row]]],
    finals: Mapping[int, Sequence[float]],
) -> Path:
    """Draw the return over steps for several pull periods: thin lines are seeds, thick the median.

    Args:
        path: of the PNG.
        runs: pull period to the rows of each seed.
        finals: pull period to the final return of each seed, NaN for none.
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
