"""What every benchmark shares: turns, timings, figures with their spread, and where they are kept.

A benchmark declares its rows (:class:`Row`) and yields a :class:`Value` for each of their names:

    BENCH = Benchmark("Speed", {"ours": Row("ours over theirs", "≥5×")}, measure, rounds=20)
    if __name__ == "__main__":
        sys.exit(BENCH.main())
"""

from __future__ import annotations

import argparse
import datetime
import json
import operator
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vinoreward.errors import ConfigError, VinorewardError
from vinoreward.rewards.calibration import clopper_pearson
from vinoreward_training.runs.machine import describe_machine

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "benchmarks" / "figures.jsonl"
SCENES = 1_000_000
"""First seed of scenes, far from those of a capture."""
TRAININGS = 100
"""First seed of trainings; the presets were tuned on seeds 0 to 19."""
_HOLDS = {"<": operator.lt, "≤": operator.le, ">": operator.gt, "≥": operator.ge}


@dataclass(frozen=True)
class Row:
    """What is measured."""

    what: str
    target: str = ""
    """Holds a bound on the value, such as ``"≥5×"``; empty where the row informs only."""


@dataclass(frozen=True)
class Value:
    """What came out."""

    figure: str
    """As the page shows it, with unit and spread."""
    value: float | None
    """The number that the target bounds; None where there was none, as of a task not solved."""
    details: Any = None
    """Plain data behind the figure."""

    def meets(self, target: str) -> bool | None:
        """Return whether a target's bound holds; None without one."""
        bound = re.search(r"([<≤>≥])([\d,.]*\d)", target)
        if bound is None:
            return None
        limit = float(bound[2].replace(",", ""))
        return self.value is not None and bool(_HOLDS[bound[1]](self.value, limit))


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, per round: of the wall, and of this process's processor time."""

    wall: tuple[float, ...]
    cpu: tuple[float, ...]

    def __truediv__(self, by: float) -> Timing:
        return Timing(*(tuple(time / by for time in kind) for kind in (self.wall, self.cpu)))


def turns(
    names: Iterable[str], rounds: int, random: np.random.Generator | None = None
) -> Iterator[tuple[int, str]]:
    """Yield (round, name): in each round every name once, in an order that turns or is drawn."""
    names = list(names)
    for index in range(rounds):
        start = index % len(names)
        order = [*names[start:], *names[:start]]
        for name in order if random is None else random.permutation(names).tolist():
            yield index, name


def interleaved(
    candidates: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    calls: int | Mapping[str, int] = 1,
    warm_up: int = 2,
    random: np.random.Generator | None = None,
) -> dict[str, Timing]:
    """Time the candidates in turns, in one process; return their seconds per call.

    A turn takes ``calls`` calls (one number, or one per candidate). ``warm_up`` calls of each
    before the first round are not measured.
    """
    for function in candidates.values():
        for _ in range(warm_up):
            function()
    spent: dict[str, list[Any]] = {name: [] for name in candidates}
    for _, name in turns(candidates, rounds, random):
        function = candidates[name]
        count = calls if isinstance(calls, int) else calls.get(name, 1)
        began = wall_and_cpu()
        for _ in range(count):
            function()
        spent[name].append((wall_and_cpu() - began) / count)
    return {name: Timing(*map(tuple, np.transpose(each))) for name, each in spent.items()}


def wall_and_cpu() -> Any:
    """Return wall and processor time in seconds, as an array of two."""
    return np.array((time.perf_counter(), time.process_time()))


def one_thread() -> None:
    """Keep torch on one thread, as the other candidates are."""
    import torch

    torch.set_num_threads(1)


def short(value: float) -> str:
    """Return a number to three significant digits; large ones in full, with commas."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def median(values: Sequence[float], unit: str) -> Value:
    """Return a median with its quartiles."""
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    spread = f"({short(low)}–{short(high)})"
    return Value(f"{short(middle)}{unit} {spread}", middle, details=[float(v) for v in values])


def times(slow: Timing, fast: Timing) -> Value:
    """Return how many times faster ``fast`` is: the median of the rounds, by processor time.

    A busy machine slows both of a round, so their ratio stays.
    """
    return median([a / b for a, b in zip(slow.cpu, fast.cpu, strict=True)], "×")


def worst(values: Sequence[float], unit: str) -> Value:
    """Return the greatest of the values, with the least."""
    details = [float(value) for value in values]
    return Value(f"{max(values):.1f}{unit} (best {min(values):.1f})", max(values), details)


def share(count: int, total: int) -> Value:
    """Return a share in percent with its exact 95 % interval."""
    low, high = (100.0 * bound for bound in clopper_pearson(count, total, 0.95))
    return Value(f"{100 * count / total:.1f} % ({low:.1f}–{high:.1f})", 100 * count / total)


def rare(count: int, total: int) -> Value:
    """Return a count with the 95 % upper bound of its rate, in percent, which a target bounds."""
    high = 100.0 * clopper_pearson(count, total, 0.95, side="upper")[1]
    return Value(f"{count:,} of {total:,} (<{high:.2g} %)", high)


def gpu_name() -> str:
    """Return the name of the first CUDA device.

    Raises:
        ConfigError: there is none.
    """
    import torch

    if not torch.cuda.is_available():
        raise ConfigError("found no CUDA device. Expected one; run this on a machine with a GPU.")
    return f"one {torch.cuda.get_device_name(0)}"


def commit(described: str | None) -> str | None:
    """Return a commit without ``-dirty`` where only figures and their page have changed."""
    others = ["git", "diff", "--quiet", "HEAD", "--", ".", ":!docs/benchmarks.md", ":!*.jsonl"]
    if described and subprocess.run(others, cwd=ROOT, check=False).returncode == 0:
        return described.removesuffix("-dirty")
    return described


class Benchmark:
    """The rows of one script, what measures them, and its command line.

    Options are whole numbers, or the choices of a word, of which the first is the default.
    """

    def __init__(
        self,
        section: str,
        rows: Mapping[str, Row],
        measure: Callable[[Any], Iterable[tuple[str, Value]]],
        *,
        device: Callable[[Any], str | None] = lambda _: None,
        **options: int | tuple[str, ...],
    ) -> None:
        self.section, self.rows, self.measure, self.device = section, rows, measure, device
        self.options = options

    def parser(self) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        for name, default in self.options.items():
            option = f"--{name.replace('_', '-')}"
            if isinstance(default, int):
                parser.add_argument(option, type=int, default=default)
            else:
                parser.add_argument(option, choices=default, default=default[0])
        parser.add_argument("--figures", type=Path, help="append to this file, at any size")
        return parser

    def main(self, words: Sequence[str] | None = None) -> int:
        """Measure, print and record; return 1 where a target is missed, 2 where it cannot run."""
        arguments = self.parser().parse_args(words)
        smaller = [
            f"--{name.replace('_', '-')} {getattr(arguments, name)}"
            for name, default in self.options.items()
            if isinstance(default, int) and getattr(arguments, name) < default
        ]
        file = arguments.figures or (None if smaller else FIGURES)
        try:
            missed = self._measured(arguments, file)
        except VinorewardError as error:
            print(error, file=sys.stderr)
            return 2
        said = f"not recorded, as it is below what the figure has: {', '.join(smaller)}"
        print(f"appended to {file}" if file else said)
        return int(missed > 0)

    def _measured(self, arguments: Any, file: Path | None) -> int:
        """Print and record each figure as it comes; return how many miss their target."""
        missed = 0
        stamp = self._stamp(arguments)
        for name, value in self.measure(arguments):
            row = self.rows[name]
            met = value.meets(row.target)
            missed += met is False
            said = f" (target {row.target}: {'met' if met else 'missed'})" if row.target else ""
            print(f"{row.what}: {value.figure}{said}", flush=True)
            record = {"name": name, **vars(row), **vars(value), "met": met, **stamp}
            if file is not None:
                with file.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(record, ensure_ascii=False) + "\n")
        return missed

    def _stamp(self, arguments: Any) -> dict[str, Any]:
        """Return what a record says of its origin."""
        chosen = {name: getattr(arguments, name) for name in self.options}
        words = ["python", f"benchmarks/{Path(sys.argv[0]).name}"]
        for name, default in self.options.items():
            if chosen[name] != (default if isinstance(default, int) else default[0]):
                words += [f"--{name.replace('_', '-')}", str(chosen[name])]
        machine: dict[str, Any] = describe_machine()
        features = [name for name, there in machine.pop("cpu_features").items() if there]
        cpu = f"{machine['cores']} cores of {machine.pop('cpu')} ({', '.join(features)})"
        return {
            "section": self.section,
            "command": " ".join(words),
            "options": chosen,
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "commit": commit(machine.pop("commit")),
            "machine": {"name": self.device(arguments) or cpu, **machine},
        }
