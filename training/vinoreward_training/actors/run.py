"""Runs one training of actors, from settings to a run folder."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vinoreward.actor_learner.acting.evaluation import Evaluator
from vinoreward.actor_learner.acting.profile import PARTS, Breakdown
from vinoreward.actor_learner.checkpoint import CHECKPOINT
from vinoreward.errors import RunFolderError, needed_for
from vinoreward.files import read_json, write_bytes
from vinoreward.policies.files import save_policy
from vinoreward.saved_state import check_counts
from vinoreward_training.actors.build import Parts, build, evaluation_environment
from vinoreward_training.actors.record import Recorder
from vinoreward_training.actors.report import SUMMARY, Outcome, write_summary
from vinoreward_training.actors.settings import command, recorded
from vinoreward_training.configs import ActorsConfig
from vinoreward_training.runs.next_command import again
from vinoreward_training.runs.run_folder import CONFIG, RunFolder
from vinoreward_training.tasks.environments import naming

if TYPE_CHECKING:
    from vinoreward.actor_learner.acting.evaluation import Evaluation
    from vinoreward.actor_learner.trainer import ActorLearner, Progress, Summary

FINAL_SEED = 2_000_000
"""First seed of the final evaluation, far from those of training and of all other evaluations."""


def train(config: ActorsConfig) -> Outcome | None:
    """Train as configured; None if the run in the folder is already finished.

    Raises:
        ConfigError: invalid settings, or a folder that already has a run.
        MissingExtraError: a package is missing.
        EngineError: no actor can be kept running.
        RunFolderError: the folder is in use or cannot be written.
        KeyboardInterrupt: Ctrl-C; a checkpoint was written first if training had begun.
    """
    with needed_for("training", "train"):
        # Import everything now: a missing plot library should not show after hours of training.
        for name in ("matplotlib", "safetensors", "tensorboard", "tqdm"):
            importlib.import_module(name)
        import torch
    torch.set_num_threads(config.threads)
    path = config.out / CONFIG
    before = path.read_bytes() if config.resume and path.is_file() else None
    with RunFolder(config.out, recorded(config), resume=config.resume) as folder:
        owner: ActorLearner | None = None
        start, outcome = 0, None
        try:
            if config.resume and finished(folder, config):
                return None
            with contextlib.closing(build(config)) as parts:
                owner = parts.trainer(config, folder)
                start = owner.steps
                outcome = _train(config, parts, owner, folder)
                return outcome
        finally:
            if before is not None and outcome is None and (owner is None or owner.steps == start):
                # The run did not use the new settings, so restore the recorded ones.
                write_bytes(path, before)


def read_summary(folder: Path) -> dict[str, Any]:
    """Return the summary of a finished run.

    Raises:
        RunFolderError: it cannot be read, or is not a summary.
    """
    path = folder / SUMMARY
    try:
        found = read_json(path)
        if not isinstance(found, dict) or not {"target", "breakdown", "reached_at"} <= set(found):
            raise ValueError("it is not a summary")
        check_counts({"steps": found.get("steps")})
        return found
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"cannot read {path}: {error}. Expected what vinoreward actors writes at a run's end; "
            "remove it and continue with --resume, which writes it again."
        ) from error


def finished(folder: Path, config: ActorsConfig) -> bool:
    """Return whether a run is finished.

    Raises:
        RunFolderError: its summary cannot be read.
    """
    if not (folder / SUMMARY).exists():
        return False
    found = read_summary(folder)
    reached = found["reached_at"] is not None and found["target"] == config.target
    return bool(reached or found["steps"] >= config.steps)


def _train(config: ActorsConfig, parts: Parts, owner: ActorLearner, folder: Path) -> Outcome:
    if owner.steps:
        print(f"resuming from step {owner.steps}")
    with Recorder(
        folder, total=config.steps, start=owner.steps, progress=config.progress
    ) as recorder:
        watcher = Watcher(config, parts, owner, recorder)
        try:
            # If the run was stopped in its final evaluation, only that remains.
            summary = owner.learn(owner.steps if watcher.reached else config.steps, watcher)
            watcher.record(summary.evaluations)
            outcome = _conclude(config, parts, summary, watcher, folder)
        except KeyboardInterrupt:
            if (folder / CHECKPOINT).is_file():
                print(f"\nStopped at step {owner.steps}; the checkpoint is written.")
                print(f"Continue with: {again('actors', folder, *naming(config.task, '--task'))}")
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


class Watcher:
    """Progress callback of a training: rows, evaluations, profile, target.

    Args:
        config: of the run.
        parts: of the training.
        owner: the training.
        recorder: writes the rows.
    """

    def __init__(
        self, config: ActorsConfig, parts: Parts, owner: ActorLearner, recorder: Recorder
    ) -> None:
        self._target, self._parts, self._owner = config.target, parts, owner
        self.recorder = recorder
        self.start = owner.steps
        self.warm: Breakdown | None = None
        self.evaluation_seconds = 0.0
        self.reached: tuple[int, float] | None = None
        """Step and seconds of the first evaluation that reached the target."""
        for row in recorder.rows:
            if row["kind"] == "evaluation":
                self._note(row)

    def __call__(self, progress: Progress) -> bool:
        """Record a training's progress; return whether to stop."""
        monitor = self._parts.monitor
        due = self.recorder.note(progress, None if monitor is None else monitor.setting)
        if self.warm is None:
            # Once actors act with their final kind of weights.
            share = progress.metrics.get("compressed_share", 0.0)
            if self._parts.chain is None or share > 0.5:
                self.warm = self._owner.profile()[0]
        elif due:
            found = difference(self._owner.profile()[0], self.warm)
            self.recorder.profile(found, progress.steps)
        return self.record(progress.evaluations)

    def record(self, evaluations: Sequence[Evaluation]) -> bool:
        """Record evaluations; return whether there are some and the target is reached."""
        for one in evaluations:
            self.evaluation_seconds += one.took
            base = {"step": one.steps, "seconds": one.seconds}
            self._note(self.recorder.evaluation(one.pair, base))
        return bool(evaluations) and self.reached is not None

    def _note(self, row: Mapping[str, Any]) -> None:
        if (
            self.reached is None
            and self._target is not None
            and row["full"]["mean"] >= self._target
        ):
            self.reached = (int(row["step"]), float(row["seconds"]))
