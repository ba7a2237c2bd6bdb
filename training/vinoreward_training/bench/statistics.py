"""Paired measurements: rounds that alternate between the candidates, and what they say."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vinoreward.errors import ConfigError


@dataclass(frozen=True)
class Row:
    """One figure of the table.

    Attributes:
        name: the row's name on the command line.
        what: what was compared, in words.
        value: the figure; None where it could not be measured (``note`` says why).
        unit: ``"x"``, ``"%"``, ``"MB"``, ``"steps"``, ``"s"`` or ``"grey levels"``.
        low: lower quartile, interval bound or minimum, as ``spread`` says.
        high: upper quartile, interval bound or maximum.
        spread: what ``low`` and ``high`` are.
        target: the figure to reach, in words; empty for rows that inform only.
        met: whether it was reached; None without a target.
        note: what a reader must know to judge the figure.
        details: plain data behind the figure.
    """

    name: str
    what: str
    value: float | None
    unit: str = "x"
    low: float | None = None
    high: float | None = None
    spread: str = ""
    target: str = ""
    met: bool | None = None
    note: str = ""
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, per round: ``wall`` and the process's ``cpu``."""

    wall: tuple[float, ...]
    cpu: tuple[float, ...]

    @property
    def median_wall(self) -> float:
        """Median over the rounds, in seconds per call."""
        return statistics.median(self.wall)

    @property
    def median_cpu(self) -> float:
        """Median over the rounds, in seconds of processor time per call."""
        return statistics.median(self.cpu)


@dataclass(frozen=True)
class Ratio:
    """How many times one candidate is faster than another: median and quartiles over rounds."""

    median: float
    low: float
    high: float


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return lower quartile, median and upper quartile (of at least one value).

    Raises:
        ConfigError: there are no values.
    """
    if not values:
        raise ConfigError("quartiles of no values. Expected at least one measured round.")
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def paired_ratio(slow: Sequence[float], fast: Sequence[float]) -> Ratio:
    """Return the ratios ``slow[i] / fast[i]`` as median and quartiles.

    Both were measured in round ``i``, one right after the other, so a busy machine slows both and
    the ratio stays.

    Raises:
        ConfigError: the lengths differ, there are none, or a time is not positive.
    """
    if len(slow) != len(fast) or not slow or min(*slow, *fast) <= 0:
        raise ConfigError(
            f"{len(slow)} and {len(fast)} times cannot be paired. Expected equally many, at least "
            "one, all of them positive."
        )
    low, middle, high = quartiles([a / b for a, b in zip(slow, fast, strict=True)])
    return Ratio(median=middle, low=low, high=high)


def interleaved(
    candidates: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    calls: int | Mapping[str, int] = 1,
    warm_up: int = 2,
    settle: int = 0,
) -> dict[str, Timing]:
    """Time the candidates in turns, in one process; return their seconds per call.

    Args:
        candidates: name to a function of no arguments.
        rounds: how many times each has its turn.
        calls: calls per turn (one number, or one per candidate).
        warm_up: calls of each before the first round, not measured.
        settle: calls at the beginning of each turn, not measured: whoever had the turn before left
            its weights in the caches.

    Raises:
        ConfigError: no rounds or no candidates.
    """
    if rounds < 1 or not candidates:
        raise ConfigError(
            f"{rounds} rounds of {len(candidates)} candidates. Expected at least one of each."
        )
    count = {
        name: max(1, calls if isinstance(calls, int) else calls.get(name, 1)) for name in candidates
    }
    for function in candidates.values():
        for _ in range(warm_up):
            function()
    wall: dict[str, list[float]] = {name: [] for name in candidates}
    cpu: dict[str, list[float]] = {name: [] for name in candidates}
    names = list(candidates)
    for index in range(rounds):
        # The order turns round: none always follows the same neighbour and its warm caches.
        for name in names[index % len(names) :] + names[: index % len(names)]:
            function = candidates[name]
            for _ in range(settle):
                function()
            wall_start, cpu_start = time.perf_counter(), time.process_time()
            for _ in range(count[name]):
                function()
            cpu[name].append((time.process_time() - cpu_start) / count[name])
            wall[name].append((time.perf_counter() - wall_start) / count[name])
    return {name: Timing(tuple(wall[name]), tuple(cpu[name])) for name in names}


def speed_row(
    name: str,
    what: str,
    slow: Timing,
    fast: Timing,
    *,
    at_least: float | None = None,
    note: str = "",
) -> Row:
    """Return the row "``fast`` is so many times faster than ``slow``", by processor time.

    Processor time is what a busy machine leaves alone; wall times stand in the details.
    """
    by_cpu = paired_ratio(slow.cpu, fast.cpu)
    by_wall = paired_ratio(slow.wall, fast.wall)
    return Row(
        name=name,
        what=what,
        value=by_cpu.median,
        low=by_cpu.low,
        high=by_cpu.high,
        spread=f"quartiles of {len(slow.cpu)} rounds",
        target="" if at_least is None else f">= {at_least:g} x",
        met=None if at_least is None else by_cpu.median >= at_least,
        note=note,
        details={
            "slow_ms_cpu": slow.median_cpu * 1e3,
            "fast_ms_cpu": fast.median_cpu * 1e3,
            "slow_ms_wall": slow.median_wall * 1e3,
            "fast_ms_wall": fast.median_wall * 1e3,
            "ratio_wall": [by_wall.low, by_wall.median, by_wall.high],
        },
    )


def markdown(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = ["| row | what | figure | spread | target | met |", "|---|---|---|---|---|---|"]
    for row in rows:
        met = "" if row.met is None else "yes" if row.met else "**no**"
        note = f" ({row.note})" if row.note else ""
        lines.append(
            f"| {row.name} | {row.what}{note} | {figure(row.value, row.unit)} | {_spread(row)} "
            f"| {row.target} | {met} |"
        )
    return "\n".join(lines) + "\n"


def figure(value: float | None, unit: str) -> str:
    """Return a figure with its unit, to three significant digits; counts of steps in full."""
    if value is None:
        return "not measured"
    if unit == "steps":
        return f"{value:,.0f} steps"
    text = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def _spread(row: Row) -> str:
    if row.low is None or row.high is None:
        return row.spread
    return f"{figure(row.low, '')} to {figure(row.high, '')} ({row.spread})"
