"""Learning curves: the tables behind them and their picture."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.bundles.reader import shown
from vinoreward.errors import ConfigError
from vinoreward.files import atomic_path, read_plain, write_text

MAX_TABLE = 1 << 28
"""Bytes of a table: ten million episodes."""
EPISODE_COLUMNS = ("step", "reward", "length", "claimed", "true")
EVALUATION_COLUMNS = ("step", "episodes", "claimed", "true", "mean_return", "mean_length")
Row = Mapping[str, float | int | None]


def write_table(path: Path, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Write rows as CSV (atomically); what is not known (None) is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(["" if row[name] is None else row[name] for name in columns])
    write_text(path, text.getvalue())


def read_table(
    path: Path, columns: Sequence[str], *, until: int | None = None
) -> list[dict[str, float | int | None]]:
    """Read a table of :func:`write_table`; no file is no rows.

    Args:
        path: the CSV file.
        columns: that are read; None where it lacks one.
        until: leave out the rows of later steps, as after a return to a checkpoint.

    Raises:
        ConfigError: it cannot be read, has other columns, or a cell is not a number.
    """
    try:
        text = read_plain(path, MAX_TABLE).decode("utf-8")
        reader = csv.DictReader(io.StringIO(text, newline=""), restkey="", restval="none")
        if "step" not in (reader.fieldnames or ()):
            raise ValueError(f"it has the columns {shown(reader.fieldnames)}")
        table = [{name: _number(row.get(name, "")) for name in columns} for row in reader]
        return [row for row in table if until is None or int(row["step"] or 0) <= until]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, OverflowError, csv.Error) as error:
        raise ConfigError(
            f"{path} cannot be read as a table: {error}. Expected numbers as training wrote them; "
            "restore the file or start a new run."
        ) from error


def _number(cell: str) -> float | int | None:
    if cell == "":
        return None
    try:
        return int(cell)
    except ValueError:
        return float(cell)


def rolling_mean(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Return, for each of ``values (N,)``, the mean of it and up to ``window - 1`` before it."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts), dtype=np.float64)


def new_figure(width: float = 5.0, height: float = 4.0, dpi: int = 110) -> Any:
    """Return a matplotlib figure of a size in inches."""
    # The object interface: nothing global, no display, safe beside a user's own pyplot.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: Path) -> Path:
    """Write a figure as PNG (atomically); return its path."""
    with atomic_path(path) as part:
        figure.savefig(part, format="png")
    return path


def draw_curve(
    path: Path, title: str, episodes: Sequence[Row], evaluations: Sequence[Row], *, window: int = 50
) -> Path:
    """Draw claimed and true success over training steps as two lines, to a PNG.

    Thin lines are the last ``window`` training episodes (the policy explores), dots joined by
    thick lines are evaluations (it does not). Where the two colours part, the learned reward is
    being fooled.
    """
    figure = new_figure(8, 4.5, dpi=120)
    axes = figure.add_subplot()
    # The dashed line is drawn over the other, so that both are seen where they agree.
    for name, label, colour, mark, dashes in (
        ("true", "true, by the simulator", "#1b6ca8", "o", "-"),
        ("claimed", "claimed by the classifier", "#d95f02", "s", "--"),
    ):
        trained = [row for row in episodes if row[name] is not None]
        if trained:
            steps = [float(row["step"] or 0) for row in trained]
            values = np.array([float(row[name] or 0) for row in trained])
            means = rolling_mean(values, window)
            axes.plot(steps, means, color=colour, linewidth=1, alpha=0.5, linestyle=dashes)
        evaluated = [row for row in evaluations if row[name] is not None]
        if evaluated:
            axes.plot(
                [float(row["step"] or 0) for row in evaluated],
                [float(row[name] or 0) for row in evaluated],
                color=colour,
                marker=mark,
                markersize=9 if mark == "s" else 5,
                markerfacecolor="none" if mark == "s" else colour,
                linewidth=2,
                linestyle=dashes,
                label=label,
            )
    axes.set(title=title, xlabel="training steps", ylabel="success", ylim=(-0.04, 1.04))
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        # Beside the plot: inside, any place may hide an evaluation.
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return save_figure(figure, path)
