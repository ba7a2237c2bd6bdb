"""Runs one training of actors: rows of metrics.jsonl, TensorBoard, progress bar, run folder."""

from __future__ import annotations

import dataclasses
import importlib
import io
import json
import math
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vinoreward.closing import Closing
from vinoreward.errors import RunFolderError, needed_for
from vinoreward.files import (
    check_counts,
    open_plain,
    parse_json,
    read_json,
    read_plain,
    write_text,
)
from vinoreward.rewards.alarms import Ended, RateAlarm, TrustMonitor
from vinoreward_actors.actor_learner.acting.evaluation import Evaluator, Pair, Played
from vinoreward_actors.actor_learner.acting.profile import PARTS, Breakdown
from vinoreward_actors.actor_learner.checkpoint import CHECKPOINT
from vinoreward_actors.command.build import Parts, build, evaluation_environment
from vinoreward_actors.command.config import ActorsConfig
from vinoreward_actors.command.report import SUMMARY, Outcome, Row, write_summary
from vinoreward_actors.command.settings import command, recorded
from vinoreward_actors.policies import save_policy
from vinoreward_training.policy.evaluate import rate_of
from vinoreward_training.runs.next_command import resume_command
from vinoreward_training.runs.run_folder import RunFolder, ensure_dir, plain_numbers, reading
from vinoreward_training.tasks.trust import trust_args

if TYPE_CHECKING:
    from vinoreward_actors.actor_learner.acting.environments import Episode
    from vinoreward_actors.actor_learner.acting.evaluation import Evaluation
    from vinoreward_actors.actor_learner.trainer import ActorLearner, Progress, Summary
    from vinoreward_actors.monitoring import CompressionSetting

FINAL_SEED = 2_000_000
"""First seed of the final evaluation, far from those of training and of all other evaluations."""
METRICS = "metrics.jsonl"
MAX_METRICS = 1 << 28
"""In bytes."""
ROWS = 500
"""Approximate number of rows per run."""


def train(config: ActorsConfig) -> Outcome | None:
    """Train as configured; None if the run in the folder is already finished."""
    with needed_for("training", "train"):
        # Import everything now: a missing plot library should not show after hours of training.
        for name in ("matplotlib", "safetensors", "tensorboard", "tqdm"):
            importlib.import_module(name)
        import torch
    torch.set_num_threads(1)
    if config.resume and finished(config.out, config):
        return None
    # Built first: settings that cannot be are not recorded in the run's folder.
    parts = build(config)
    with RunFolder(config.out, recorded(config), resume=config.resume) as folder:
        return _train(config, parts, parts.trainer(config, folder), folder)


def read_summary(folder: Path) -> dict[str, Any]:
    """Return the summary of a finished run."""
    expected = (
        "what vinoreward actors writes at a run's end; remove it and continue with --resume, which "
        "writes it again"
    )
    with reading(folder / SUMMARY, expected):
        summary = read_json(folder / SUMMARY)
        if not isinstance(summary, dict) or not {"target", "reached_at"} <= set(summary):
            raise ValueError("it is not a summary")
        check_counts({"steps": summary.get("steps")})
    return summary


def finished(folder: Path, config: ActorsConfig) -> bool:
    """Return whether a run is finished."""
    if not (folder / SUMMARY).exists():
        return False
    summary = read_summary(folder)
    reached = summary["reached_at"] is not None and summary["target"] == config.target
    return bool(reached or summary["steps"] >= config.steps)


def _train(config: ActorsConfig, parts: Parts, trainer: ActorLearner, folder: Path) -> Outcome:
    named = [*trust_args(config.task, "--task"), *trust_args(config.truth, "--truth")]
    if trainer.steps:
        print(f"resuming from step {trainer.steps}")
    with Recorder(folder, total=config.steps, start=trainer.steps) as recorder:
        watcher = Watcher(config.target, parts, trainer, recorder, trainer.steps)
        try:
            # If the run was stopped in its final evaluation, only that remains.
            summary = trainer.learn(trainer.steps if watcher.reached else config.steps, watcher)
            watcher.record(summary.evaluations)
            at = {"step": summary.steps, "seconds": recorder.before + summary.seconds}
            recorder.compressor(summary.compressor, at)
            outcome = _conclude(config, parts, summary, watcher, folder)
        except KeyboardInterrupt:
            if (folder / CHECKPOINT).is_file():
                print(f"\nStopped at step {trainer.steps}; the checkpoint is written.")
                print(f"Continue with: {resume_command('actors', folder, *named)}")
            else:
                print("\nStopped before the first update. Start again with:")
                print(f"{command(config)} --resume")
            raise
    write_summary(config, outcome, recorder.rows)
    return outcome


def _conclude(
    config: ActorsConfig, parts: Parts, summary: Summary, watcher: Watcher, folder: Path
) -> Outcome:
    began = time.perf_counter()
    # The evaluated policy: with a push period the learner may be some updates ahead.
    save_policy(folder, summary.policy)
    if summary.compressed is not None:
        save_policy(folder, summary.compressed, "compressed")
    else:
        # Stale: from before the resume.
        for name in ("compressed.json", "compressed.safetensors"):
            (folder / name).unlink(missing_ok=True)
    seeds = range(FINAL_SEED, FINAL_SEED + 3 * config.evaluation_episodes)
    with Evaluator(evaluation_environment(config), config.backend) as evaluator:
        pair = evaluator.pair(summary.policy, summary.compressed, seeds)
    recorder = watcher.recorder
    seconds = recorder.before + summary.seconds
    played = summary.seconds + time.perf_counter() - began
    recorder.evaluation(pair, {"step": summary.steps, "seconds": played}, final=True)
    breakdown = difference(summary.profile, watcher.warm)
    reached = watcher.reached
    if reached is None and config.target is not None and pair.full.mean >= config.target:
        reached = (summary.steps, seconds)
    verdict = "There is no breakdown: no actor has made a step since the resume."
    if summary.steps > watcher.start:
        verdict = breakdown.advice(summary.learner_seconds, config.actors)
    return Outcome(
        folder=folder,
        steps=summary.steps,
        updates=summary.updates,
        seconds=seconds,
        reached_at=None if reached is None else reached[0],
        reached_seconds=None if reached is None else reached[1],
        pair=pair,
        breakdown=breakdown,
        learner_seconds=summary.learner_seconds,
        verdict=verdict,
        compressed_share=summary.compressed_share,
        staleness=summary.staleness,
    )


def difference(whole: Breakdown, first: Breakdown | None) -> Breakdown:
    """Return the breakdown after ``first``, without start-up and compilation."""
    if first is None or whole.steps <= first.steps:
        return whole
    steps = whole.steps - first.steps

    def rest(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
        return {
            part: max(0.0, after[part] * whole.steps - before[part] * first.steps) / steps
            for part in PARTS
        }

    return Breakdown(rest(whole.wall, first.wall), rest(whole.cpu, first.cpu), steps)


@dataclasses.dataclass
class Watcher:
    """Progress callback of a training: rows, evaluations, profile, target."""

    target: float | None
    parts: Parts
    trainer: ActorLearner
    recorder: Recorder
    start: int
    """Steps before a resume."""
    warm: Breakdown | None = None
    reached: tuple[int, float] | None = None
    """Step and seconds of the first evaluation that reached the target."""

    def __post_init__(self) -> None:
        for row in self.recorder.rows:
            if row["kind"] == "evaluation":
                self._note(row)

    def __call__(self, progress: Progress) -> bool:
        """Record a training's progress; return whether to stop."""
        monitor = self.parts.monitor
        self.recorder.note(progress, None if monitor is None else monitor.setting)
        if self.warm is None and self.parts.warm(progress):
            self.warm = self.trainer.profile()[0]
        return self.record(progress.evaluations)

    def record(self, evaluations: Sequence[Evaluation]) -> bool:
        """Record evaluations; return whether there are some and the target is reached."""
        for one in evaluations:
            base = {"step": one.steps, "seconds": one.seconds}
            self._note(self.recorder.evaluation(one.pair, base))
        return bool(evaluations) and self.reached is not None

    def _note(self, row: Mapping[str, Any]) -> None:
        reached = self.target is not None and row["full"]["mean"] >= self.target
        if reached and self.reached is None:
            self.reached = (int(row["step"]), float(row["seconds"]))


def read_rows(folder: Path, *, until: int | None = None) -> list[Row]:
    """Return the rows of a run folder ``until`` a step; ignores a half-written last line."""
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
    """Writes the rows of a training of ``total`` steps; drops rows after ``start``, of a resume."""

    def __init__(self, folder: Path, *, total: int, start: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from tqdm import tqdm

        logs = ensure_dir(folder / "logs")
        self.rows = read_rows(folder, until=start) if start else []
        self.before = max((float(row.get("seconds") or 0.0) for row in self.rows), default=0.0)
        write_text(folder / METRICS, "".join(json.dumps(row) + "\n" for row in self.rows))
        self._stream = io.TextIOWrapper(open_plain(folder / METRICS, "ab"), encoding="utf-8")
        self._board = SummaryWriter(str(logs), purge_step=start or None)
        # disable=None: no bar where the output is no terminal.
        self._bar = tqdm(
            total=total, initial=start, unit="step", disable=None, desc="actors",
            dynamic_ncols=True,
        )  # fmt: skip
        self._every = max(1, total // ROWS)
        self._next = start
        self._ended: deque[Episode] = deque(maxlen=100)
        self._reports: list[Mapping[str, Any]] = []
        self._last_text = ""
        # Episodes of this process: claims that are not true, and images out of distribution.
        self._trust = TrustMonitor(false=RateAlarm(), ood=RateAlarm(), window=100)

    def note(self, progress: Progress, setting: CompressionSetting | None) -> None:
        """Record a training's progress: events at once, and a row now and then."""
        self._bar.update(progress.steps - self._bar.n)
        self._ended.extend(progress.ended)
        base = {"step": progress.steps, "seconds": self.before + progress.seconds}
        for event in progress.events:
            self._say("event", base, str(event))
        for change in progress.changes:
            self._say("change", base, change)
        for one in progress.ended:
            ended = Ended(one.claimed_success, one.true_success, one.ood, one.length)
            for alarm in self._trust.add(ended):
                if alarm.first:
                    self._say("alarm", base, f"alarm at step {progress.steps}: {alarm.text}")
        self.compressor(progress.compressor, base)
        if progress.steps < self._next:
            return
        self._next = progress.steps + self._every
        self._write(
            {
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
        )
        self._bar.set_postfix({"return": f"{progress.mean_return:.1f}"}, refresh=False)

    def compressor(self, reports: Sequence[Mapping[str, Any]], base: Mapping[str, Any]) -> None:
        """Record the compressor's errors; keep its other reports for the next row."""
        for report in reports:
            if "error" in report:
                self._say("event", base, f"compressor: {report['error']}")
            else:
                self._reports.append(report)

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

    def evaluation(self, pair: Pair, base: Mapping[str, Any], *, final: bool = False) -> Row:
        """Record an evaluation and return its row; ``base`` has this process's step and seconds."""
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
        return row

    def _say(self, kind: str, base: Mapping[str, Any], text: str) -> None:
        if text == self._last_text:  # a failing compressor repeats it for each version
            return
        self._last_text = text
        self._write({"kind": kind, **base, "text": text})
        if kind in ("event", "alarm"):
            self._bar.write(text)

    def _write(self, row: Row) -> None:
        """Write a row, and its numbers to TensorBoard."""
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
        for name, value in _numbers(row):
            self._board.add_scalar(f"{row['kind']}/{name}", value, int(row["step"]))

    def close(self) -> None:
        """Close the files and the bar."""
        self._bar.close()
        self._board.close()
        self._stream.close()


def _numbers(row: Row) -> Iterable[tuple[str, float]]:
    """Yield the finite numbers of a row and of its tables, by name."""
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}_{key}", each) for key, each in _numbers(value))
        elif isinstance(value, bool | int | float) and math.isfinite(value) and name != "step":
            yield name, float(value)


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
        **{name: None if rate is None else rate.value for name, rate in rates.items()},
    }
