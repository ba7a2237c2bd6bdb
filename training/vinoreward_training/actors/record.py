"""Records an actors' run while it trains: metrics.jsonl, TensorBoard, progress bar."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vinoreward.actor_learner.acting.evaluation import Pair, Played
from vinoreward.closing import Closing
from vinoreward.errors import RunFolderError
from vinoreward.files import open_plain, parse_json, read_plain, write_text
from vinoreward.saved_state import check_counts
from vinoreward_training.policy.evaluate import rate_of
from vinoreward_training.runs.run_folder import made

if TYPE_CHECKING:
    from vinoreward.actor_learner.acting.environments import Episode
    from vinoreward.actor_learner.acting.profile import Breakdown
    from vinoreward.actor_learner.trainer import Progress
    from vinoreward.monitoring import CompressionSetting

METRICS = "metrics.jsonl"
MAX_METRICS = 1 << 28
"""In bytes."""
ROWS = 500
"""Approximate number of rows per run."""
Row = dict[str, Any]


def plain_numbers(value: Any) -> Any:
    """Convert a value for JSON: NaN and infinity become null, arrays become lists."""
    if isinstance(value, Mapping):
        return {str(key): plain_numbers(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [plain_numbers(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def read_rows(folder: Path, *, until: int | None = None) -> list[Row]:
    """Return the rows of a run folder; ignores a half-written last line.

    Args:
        folder: the run's.
        until: leave out rows of later steps, as after a return to a checkpoint.

    Raises:
        RunFolderError: the file cannot be read, or another line is invalid.
    """
    path = folder / METRICS
    try:
        lines = read_plain(path, MAX_METRICS).decode("utf-8").split("\n")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise RunFolderError(
            f"cannot read {path} ({error}). Expected rows of JSON; remove it to continue without."
        ) from error
    rows: list[Row] = []
    for number, line in enumerate(lines):
        if not line:
            continue
        try:
            row = parse_json(line.encode("utf-8"))
            if not isinstance(row, dict) or "kind" not in row:
                raise ValueError("no row")
            check_counts({"step": row["step"], "seconds": row.get("seconds") or 0})
        except (ValueError, KeyError) as error:
            if number == len(lines) - 1:
                break
            raise RunFolderError(
                f"line {number + 1} of {path} is not a row ({error}). Expected what vinoreward "
                "actors writes; remove the line to continue without it."
            ) from error
        if until is None or row["step"] <= until:
            rows.append(row)
    return rows


class Recorder(Closing):
    """Writes the rows of a training.

    Args:
        folder: the run's.
        total: environment steps in all.
        start: steps before a resume; later rows are dropped.
        progress: whether to show the bar.
    """

    def __init__(self, folder: Path, *, total: int, start: int = 0, progress: bool = True) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from tqdm import tqdm

        logs = made(folder / "logs")
        self.rows = read_rows(folder, until=start) if start else []
        self.before = max((float(row.get("seconds") or 0.0) for row in self.rows), default=0.0)
        write_text(folder / METRICS, "".join(json.dumps(row) + "\n" for row in self.rows))
        self._stream = io.TextIOWrapper(open_plain(folder / METRICS, "ab"), encoding="utf-8")
        self._board = SummaryWriter(str(logs), purge_step=start or None)
        self._bar = tqdm(
            total=total, initial=start, unit="step", disable=not progress, desc="actors",
            dynamic_ncols=True,
        )  # fmt: skip
        self._every = max(1, total // ROWS)
        self._next = start
        self._ended: deque[Episode] = deque(maxlen=100)
        self._reports: list[dict[str, Any]] = []
        self._said = ""

    def note(self, progress: Progress, setting: CompressionSetting | None) -> bool:
        """Record a training's progress; return whether a row was due."""
        self._bar.update(progress.steps - self._bar.n)
        self._ended.extend(progress.ended)
        base = {"step": progress.steps, "seconds": self.before + progress.seconds}
        for event in progress.events:
            self._say("event", base, str(event))
        for change in progress.changes:
            self._say("change", base, change)
        for report in progress.compressor:
            if "error" in report:
                self._say("event", base, f"compressor: {report['error']}")
            else:
                self._reports.append(report)
        if progress.steps < self._next:
            return False
        self._next = progress.steps + self._every
        row: Row = {
            "kind": "train",
            **base,
            "updates": progress.updates,
            "mean_return": progress.mean_return,
            "episodes": progress.episodes,
            "claimed": _share(one.claimed_success for one in self._ended),
            "true": _share(one.true_success for one in self._ended),
            "learner": progress.metrics,
            "readings": progress.readings,
            "setting": None if setting is None else setting.to_dict(),
            "compressor": self._compressor(),
        }
        self._write(row)
        self._show(row)
        return True

    def _compressor(self) -> dict[str, float]:
        reports, self._reports = self._reports, []
        if not reports:
            return {}
        quality = reports[-1]["quality"]
        return {
            "seconds": float(np.mean([report["seconds"] for report in reports])),
            "cpu_seconds": float(np.mean([report["cpu_seconds"] for report in reports])),
            **{name: float(quality[name]) for name in ("kl_mean", "kl_max", "agreement")},
        }

    def _show(self, row: Row) -> None:
        step = int(row["step"])
        scalars: dict[str, Any] = {
            "return/behaviour": row["mean_return"],
            **{f"behaviour/{name}": row[name] for name in _NAMES},
        }
        for group in ("learner", "readings", "compressor", "setting"):
            scalars |= {f"{group}/{name}": value for name, value in (row[group] or {}).items()}
        self._scalars(scalars, step)
        shown = {"return": f"{row['mean_return']:.1f}"}
        if "lag_mean" in row["learner"]:
            shown["lag"] = f"{row['learner']['lag_mean']:.1f}"
        if row["compressor"] or row["learner"].get("compressed_share"):
            shown["compressed"] = f"{row['learner']['compressed_share']:.0%}"
        self._bar.set_postfix(shown, refresh=False)

    def _scalars(self, scalars: Mapping[str, Any], step: int) -> None:
        for name, value in scalars.items():
            if isinstance(value, bool | int | float) and math.isfinite(value):
                self._board.add_scalar(name, float(value), step)

    def profile(self, found: Breakdown, step: int) -> None:
        """Log the breakdown of an actor's time, in microseconds of processor time per step."""
        self._scalars(
            {f"profile/{part}_us": 1e6 * value for part, value in found.cpu.items()}, step
        )

    def evaluation(self, pair: Pair, base: Mapping[str, Any], *, final: bool = False) -> Row:
        """Record an evaluation and return its row.

        Args:
            pair: the evaluation.
            base: ``step`` and ``seconds`` of this process.
            final: whether it is the last one.
        """
        row: Row = {
            "kind": "final" if final else "evaluation",
            "step": base["step"],
            "seconds": self.before + float(base["seconds"]),
            "seeds": list(pair.seeds),
            "full": _played(pair.full),
            "compressed": None if pair.compressed is None else _played(pair.compressed),
        }
        self._write(row)
        if pair.refused:
            text = f"the compressed policy could not be evaluated: {pair.refused}"
            self._say("event", {"step": row["step"], "seconds": row["seconds"]}, text)
        scalars: dict[str, Any] = {}
        for name in ("full", "compressed"):
            part = row[name] or {}
            scalars |= {f"evaluation/{name}_{key}": part.get(key) for key in ("mean", *_NAMES)}
        self._scalars(scalars, int(row["step"]))
        return row

    def _say(self, kind: str, base: Mapping[str, Any], text: str) -> None:
        if text == self._said:  # a failing compressor repeats it for each version
            return
        self._said = text
        self._write({"kind": kind, **base, "text": text})
        self._board.add_text(f"{kind}s", text, int(base["step"]))
        if kind == "event":
            self._bar.write(text)

    def _write(self, row: Row) -> None:
        row = plain_numbers(row)
        self.rows.append(row)
        try:
            self._stream.write(json.dumps(row, allow_nan=False) + "\n")
            self._stream.flush()
        except OSError as error:
            raise RunFolderError(
                f"cannot write {METRICS}: {error.strerror or error}. Expected free space; free "
                "some and continue with --resume."
            ) from error

    def close(self) -> None:
        """Close the files and the bar."""
        self._bar.close()
        self._board.close()
        self._stream.close()


_NAMES = ("claimed", "true")


def _share(flags: Iterable[bool | None]) -> float | None:
    known = [flag for flag in flags if flag is not None]
    return float(np.mean(known)) if known else None


def _played(played: Played) -> Row:
    rates = {"claimed": rate_of(played.claimed), "true": rate_of(played.true)}
    return {
        "version": played.version,
        "mean": played.mean,
        "error": played.error,
        "mean_length": float(played.lengths.mean()),
        "returns": played.returns,
        **{name: None if found is None else found.value for name, found in rates.items()},
        "rates": {
            name: None if found is None else dataclasses.asdict(found)
            for name, found in rates.items()
        },
    }
