"""What a row of the table is, how its arms take turns, and how rows are printed."""

from __future__ import annotations

import contextlib
import functools
import operator
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError
from vinoreward.rewards.calibration import clopper_pearson
from vinoreward_training.configs import BenchConfig
from vinoreward_training.runs.report import markdown_table

_Result = TypeVar("_Result")
_BOUND = re.compile(r"(<=|>=|<|>) ([\d.]+(?:e[+-]?\d+)?)")
_HOLDS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}


@dataclass(frozen=True)
class Row:
    """One figure of the table."""

    name: str
    """The row's name on the command line."""
    what: str
    """What was compared."""
    value: float | None
    """The figure; None where it could not be measured (``note`` says why)."""
    unit: str = "x"
    low: float | None = None
    high: float | None = None
    spread: str = ""
    """What ``low`` and ``high`` are."""
    target: str = ""
    """The figure to reach, in words; empty for rows that inform only."""
    met: bool | None = None
    """Whether it was reached; follows from a target that begins with a bound (``">= 5 x"``)."""
    note: str = ""
    """What a reader must know to judge the figure."""
    details: dict[str, Any] = field(default_factory=dict)
    """Plain data behind the figure."""

    def __post_init__(self) -> None:
        if self.met is None and (bound := _BOUND.match(self.target)):
            holds = _HOLDS[bound[1]]
            met = self.value is not None and bool(holds(self.value, float(bound[2])))
            object.__setattr__(self, "met", met)


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, per round: ``wall`` and the process's ``cpu``."""

    wall: tuple[float, ...]
    cpu: tuple[float, ...]

    def median_ms(self, kind: str = "cpu") -> float:
        """Return the median over the rounds in milliseconds, of processor or of wall time."""
        return float(np.median(getattr(self, kind))) * 1e3

    @classmethod
    def of(cls, seconds: Sequence[Any]) -> Timing:
        """Return the timing of what :func:`wall_and_cpu` measured in each round."""
        return cls(*(tuple(kind) for kind in np.transpose(seconds).tolist()))

    def __truediv__(self, by: float) -> Timing:
        return Timing(*(tuple(time / by for time in kind) for kind in (self.wall, self.cpu)))


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return lower quartile, median and upper quartile."""
    if not values:
        raise ConfigError("quartiles of no values. Expected at least one measured round.")
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return low, middle, high


def paired_ratios(slow: Sequence[float], fast: Sequence[float]) -> list[float]:
    """Return the ratio of each round: a busy machine slows both of a round, so the ratio stays."""
    if len(slow) != len(fast) or not slow or min(*slow, *fast) <= 0:
        raise ConfigError(
            f"{len(slow)} and {len(fast)} times cannot be paired. Expected equally many, at least "
            "one, all of them positive."
        )
    return [a / b for a, b in zip(slow, fast, strict=True)]


def turns(
    names: Iterable[str], rounds: int, random: np.random.Generator | None = None
) -> Iterator[tuple[int, str]]:
    """Yield (round, name): in each round every name once, in an order that turns or is drawn."""
    names = list(names)
    if rounds < 1 or not names:
        raise ConfigError(
            f"{rounds} rounds of {len(names)} candidates. Expected at least one of each."
        )
    for index in range(rounds):
        start = index % len(names)
        order = [*names[start:], *names[:start]]
        for name in order if random is None else random.permutation(names).tolist():
            yield index, name


def paired(
    config: BenchConfig, arms: Iterable[str], seeds: int, train: Callable[[str, int], _Result]
) -> dict[str, list[_Result]]:
    """Train every arm with so many seeds, the arms in turns; return the results by arm."""
    results: dict[str, list[_Result]] = {arm: [] for arm in arms}
    for index, arm in turns(results, seeds):
        results[arm].append(train(arm, config.first_seed + index))
    return results


def interleaved(
    candidates: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    calls: int | Mapping[str, int] = 1,
    warm_up: int = 2,
    settle: int = 0,
    random: np.random.Generator | None = None,
) -> dict[str, Timing]:
    """Time the candidates in turns, in one process; return their seconds per call.

    A turn takes ``calls`` calls (one number, or one per candidate). Not measured are ``warm_up``
    calls of each before the first round and ``settle`` calls at the beginning of each turn, when
    the caches hold the weights of the candidate before. ``random`` draws the order of each round.
    """
    for function in candidates.values():
        for _ in range(warm_up):
            function()
    spent: dict[str, list[Any]] = {name: [] for name in candidates}
    for _, name in turns(candidates, rounds, random):
        function = candidates[name]
        count = calls if isinstance(calls, int) else calls.get(name, 1)
        for _ in range(settle):
            function()
        began = wall_and_cpu()
        for _ in range(count):
            function()
        spent[name].append((wall_and_cpu() - began) / count)
    return {name: Timing.of(seconds) for name, seconds in spent.items()}


def inference_times(
    backends: Mapping[str, Any], images: npt.NDArray[np.uint8], rounds: int
) -> dict[str, Timing]:
    """Time each backend's ``infer`` on the same images; closes the backends."""
    with contextlib.ExitStack() as stack:
        candidates = {
            name: functools.partial(stack.enter_context(backend).infer, images)
            for name, backend in backends.items()
        }
        return interleaved(candidates, rounds=rounds, calls=20, warm_up=20)


def wall_and_cpu() -> Any:
    """Return wall and processor time in seconds, as an array of two."""
    return np.array((time.perf_counter(), time.process_time()))


class Clock:
    """Seconds spent inside wrapped calls, by part; inner calls are taken out of outer ones.

    ``timer`` returns the time in seconds: a number, or an array of several kinds.
    """

    def __init__(self, timer: Callable[[], Any] = time.perf_counter) -> None:
        self.seconds: dict[str, Any] = {}
        self._timer = timer
        self._inner: list[Any] = [0.0]

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the block's time as ``name``, less what blocks inside it count."""
        self._inner.append(0.0)
        began = self._timer()
        try:
            yield
        finally:
            spent = self._timer() - began
            self.seconds[name] = self.seconds.get(name, 0.0) + spent - self._inner.pop()
            self._inner[-1] = self._inner[-1] + spent

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function``, counted as ``name``."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return function(*args, **kwargs)

        return call

    def take(self) -> dict[str, Any]:
        """Return the seconds since the last call and start again."""
        seconds, self.seconds = self.seconds, {}
        return seconds


def median_row(name: str, what: str, values: Sequence[float], of: str, **more: Any) -> Row:
    """Return the row of a median with its quartiles; ``of`` says of what, ``more`` is of Row."""
    low, middle, high = quartiles(values)
    spread = f"quartiles of {len(values)} {of}"
    return Row(name, what, middle, low=low, high=high, spread=spread, **more)


def mean_row(
    name: str, what: str, mean: float, error: float | None, spread: str, **more: Any
) -> Row:
    """Return the row of a mean of rewards with its standard error, None of one value."""
    low, high = (None, None) if error is None else (mean - error, mean + error)
    return Row(name, what, mean, "reward", low=low, high=high, spread=spread, **more)


def range_row(name: str, what: str, value: float | None, unit: str, **more: Any) -> Row:
    """Return the row of one of several ``values``, given in ``more``, with least and greatest."""
    values = more.pop("values") or [None]
    return Row(name, what, value, unit, low=min(values), high=max(values), **more)


def share_row(name: str, what: str, count: int, total: int, of: str = "", **more: Any) -> Row:
    """Return the row of ``count`` in ``total`` in percent, with its exact interval."""
    low, high = (100.0 * bound for bound in clopper_pearson(count, total, 0.95))
    spread = f"95 % interval; {count} of {total}{of}"
    return Row(name, what, 100.0 * count / total, "%", low=low, high=high, spread=spread, **more)


def speed_row(
    name: str,
    what: str,
    slow: Timing,
    fast: Timing,
    *,
    at_least: float | None = None,
    note: str = "",
) -> Row:
    """Return how many times faster ``fast`` is, by processor time; wall times are in the details.

    Other work on the machine changes processor time less.
    """
    both = {"slow": slow, "fast": fast}
    kinds = ("cpu", "wall")
    times = {f"{one}_ms_{kind}": both[one].median_ms(kind) for one in both for kind in kinds}
    return median_row(
        name,
        what,
        paired_ratios(slow.cpu, fast.cpu),
        "rounds",
        target="" if at_least is None else f">= {at_least:g} x",
        note=note,
        details={**times, "ratio_wall": [*quartiles(paired_ratios(slow.wall, fast.wall))]},
    )


def speed_rows(
    name: str, what: str, times: Mapping[str, Timing], targets: Mapping[str, float], note: str = ""
) -> list[Row]:
    """Return how many times faster each candidate (``{}`` in ``what``) is than the first."""
    (_, baseline), *others = times.items()
    return [
        speed_row(name, what.format(one), baseline, timing, at_least=targets.get(one), note=note)
        for one, timing in others
    ]


def markdown(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table."""
    cells = []
    for row in rows:
        spread = row.spread
        if row.low is not None and row.high is not None:
            spread = f"{figure(row.low, '')} to {figure(row.high, '')} ({spread})"
        what = f"{row.what} ({row.note})" if row.note else row.what
        cells.append(
            {"row": row.name, "what": what, "figure": figure(row.value, row.unit), "spread": spread}
            | {"target": row.target, "met": {None: "", True: "yes", False: "**no**"}[row.met]}
        )
    return markdown_table(cells) + "\n"


def figure(value: float | None, unit: str) -> str:
    """Return a figure with its unit, to three significant digits; counts of steps in full."""
    if value is None:
        return "not measured"
    if unit == "steps":
        return f"{value:,.0f} steps"
    text = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{text} {unit}".rstrip()
