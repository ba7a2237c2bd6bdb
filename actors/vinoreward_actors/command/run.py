"""Runs one training of actors: rows of metrics.jsonl, TensorBoard, progress bar, run folder."""

from __future__ import annotations

import contextlib
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
    write_bytes,
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
from vinoreward_training.runs.run_folder import (
    CONFIG,
    RunFolder,
    ensure_dir,
    plain_numbers,
    reading,
)
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
    torch.set_num_threads(config.threads)
    path = config.out / CONFIG
    before = path.read_bytes() if config.resume and path.is_file() else None
    with RunFolder(config.out, recorded(config), resume=config.resume) as folder:
        trainer: ActorLearner | None = None
        start, outcome = 0, None
        try:
            if config.resume and finished(folder, config):
                return None
            with contextlib.closing(build(config)) as parts:
                trainer = parts.trainer(config, folder)
                start = trainer.steps
                outcome = _train(config, parts, trainer, folder)
                return outcome
        finally:
            if (
                before is not None
                and outcome is None
                and (trainer is None or trainer.steps == start)
            ):
                # The run did not use the new settings, so restore the recorded ones.
                write_bytes(path, before)


def read_summary(folder: Path) -> dict[str, Any]:
    """Return the summary of a finished run."""
    expected = (
        "what vinoreward actors writes at a run's end; remove it and continue with --resume, which "
        "writes it again"
    )
    with reading(folder / SUMMARY, expected):
        summary = read_json(folder / SUMMARY)
        needed = {"target", "breakdown", "reached_at"}
        if not isinstance(summary, dict) or not needed <= set(summary):
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
    with Recorder(
        folder, total=config.steps, start=trainer.steps, progress=config.progress
    ) as recorder:
        trust = trust_of(config)
        watcher = Watcher(config.target, parts, trainer, recorder, trainer.steps, trust=trust)
        watcher.stops_at_alarm = config.on_alarm == "stop"
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
    if watcher.alarmed:
        line = resume_command("actors", folder, *named)
        print(f"Stopped at step {outcome.steps} by the alarm. Continue with: {line}")
    return outcome


def trust_of(config: ActorsConfig) -> TrustMonitor | None:
    """Return what tests the training's episodes; None with --on-alarm off."""
    if config.on_alarm == "off":
        return None
    return TrustMonitor(
        false=RateAlarm(), ood=RateAlarm(), earliest=config.earliest_success, window=100
    )


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
    seeds = range(FINAL_SEED, FINAL_SEED + config.final_episodes)
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
        compressed = parts.chain is not None and summary.compressed is not None
        verdict = breakdown.advice(summary.learner_seconds, config.actors, compressed=compressed)
    return Outcome(
        folder=folder,
        steps=summary.steps,
        updates=summary.updates,
        seconds=seconds,
        evaluation_seconds=watcher.evaluation_seconds,
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
    evaluation_seconds: float = 0.0
    reached: tuple[int, float] | None = None
    """Step and seconds of the first evaluation that reached the target."""
    trust: TrustMonitor | None = None
    """Tests the episodes of this process."""
    stops_at_alarm: bool = False
    alarmed: bool = False
    """Whether an alarm stopped the training."""

    def __post_init__(self) -> None:
        for row in self.recorder.rows:
            if row["kind"] == "evaluation":
                self._note(row)

    def __call__(self, progress: Progress) -> bool:
        """Record a training's progress; return whether to stop."""
        monitor = self.parts.monitor
        raised = self._test(progress)
        due = self.recorder.note(progress, None if monitor is None else monitor.setting)
        if self.warm is None:
            if self.parts.warm(progress):
                self.warm = self.trainer.profile()[0]
        elif due:
            self.recorder.profile(difference(self.trainer.profile()[0], self.warm), progress.steps)
        self.alarmed = raised and self.stops_at_alarm
        return self.record(progress.evaluations) or self.alarmed

    def _test(self, progress: Progress) -> bool:
        """Show the episodes that ended to the alarms; return whether one was raised."""
        if self.trust is None:
            return False
        raised = False
        for one in progress.ended:
            ended = Ended(one.claimed_success, one.true_success, one.ood, one.length)
            for alarm in self.trust.add(ended):
                raised = True
                if alarm.first:
                    self.recorder.alarm(alarm.text, progress)
        self.recorder.trust = self.trust.readings()
        return raised

    def record(self, evaluations: Sequence[Evaluation]) -> bool:
        """Record evaluations; return whether there are some and the target is reached."""
        for one in evaluations:
            self.evaluation_seconds += one.took
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

    def __init__(self, folder: Path, *, total: int, start: int = 0, progress: bool = True) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from tqdm import tqdm

        logs = ensure_dir(folder / "logs")
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
        self._reports: list[Mapping[str, Any]] = []
        self._last_text = ""
        self.trust: dict[str, float] = {}
        """The alarms' latest readings."""

    def alarm(self, text: str, progress: Progress) -> None:
        """Record an alarm, and tell of it."""
        base = {"step": progress.steps, "seconds": self.before + progress.seconds}
        self._say("alarm", base, f"alarm at step {progress.steps}: {text}.")

    def note(self, progress: Progress, setting: CompressionSetting | None) -> bool:
        """Record a training's progress; return whether a row was due."""
        self._bar.update(progress.steps - self._bar.n)
        self._ended.extend(progress.ended)
        base = {"step": progress.steps, "seconds": self.before + progress.seconds}
        for event in progress.events:
            self._say("event", base, str(event))
        for change in progress.changes:
            self._say("change", base, change)
        self.compressor(progress.compressor, base)
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
            "trust": self.trust,
        }
        self._write(row)
        self._show(row)
        return True

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

    def _show(self, row: Row) -> None:
        step = int(row["step"])
        scalars: dict[str, Any] = {
            "return/behaviour": row["mean_return"],
            **{f"behaviour/{name}": row[name] for name in _NAMES},
        }
        for group in ("learner", "readings", "compressor", "setting", "trust"):
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

    def profile(self, breakdown: Breakdown, step: int) -> None:
        """Log the breakdown of an actor's time, in microseconds of processor time per step."""
        cpu = breakdown.cpu.items()
        self._scalars({f"profile/{part}_us": 1e6 * value for part, value in cpu}, step)

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
        scalars: dict[str, Any] = {}
        for name in ("full", "compressed"):
            part = row[name] or {}
            scalars |= {f"evaluation/{name}_{key}": part.get(key) for key in ("mean", *_NAMES)}
        self._scalars(scalars, int(row["step"]))
        return row

    def _say(self, kind: str, base: Mapping[str, Any], text: str) -> None:
        if text == self._last_text:  # a failing compressor repeats it for each version
            return
        self._last_text = text
        self._write({"kind": kind, **base, "text": text})
        self._board.add_text(f"{kind}s", text, int(base["step"]))
        if kind in ("event", "alarm"):
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
        **{name: None if rate is None else rate.value for name, rate in rates.items()},
        "rates": {
            name: None if rate is None else dataclasses.asdict(rate) for name, rate in rates.items()
        },
    }
