"""Runs one training of actors, from settings to a run folder."""

from __future__ import annotations

import contextlib
import importlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vinoreward.actor_learner.acting.evaluation import Evaluator
from vinoreward.actor_learner.checkpoint import CHECKPOINT
from vinoreward.errors import RunFolderError, needed_for
from vinoreward.files import read_json, read_plain, write_bytes
from vinoreward.policies.files import save_policy
from vinoreward.saved_state import check_counts
from vinoreward_training.actors.build import Parts, build, evaluation_environment
from vinoreward_training.actors.record import Recorder
from vinoreward_training.actors.report import SUMMARY, Outcome, write_summary
from vinoreward_training.actors.resolve import command, recorded
from vinoreward_training.actors.watcher import Watcher, difference
from vinoreward_training.configs.actors import ActorsConfig
from vinoreward_training.runs.next_command import again
from vinoreward_training.runs.run_folder import CONFIG, RunFolder
from vinoreward_training.runs.settings import MAX_YAML
from vinoreward_training.tasks.environments import naming

if TYPE_CHECKING:
    from vinoreward.actor_learner.trainer import ActorLearner, Summary

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
    before = _recorded_before(config)
    with RunFolder(config.out, recorded(config), resume=config.resume) as folder:
        owner: ActorLearner | None = None
        start, outcome = 0, None
        try:
            if config.resume and finished(folder, config):
                return None
            with contextlib.closing(build(config)) as parts:
                owner = make(config, parts, folder)
                start = owner.steps
                outcome = _train(config, parts, owner, folder)
                return outcome
        finally:
            if before is not None and outcome is None and (owner is None or owner.steps == start):
                # The run did not use the new settings, so restore the recorded ones.
                write_bytes(folder / CONFIG, before)


def _recorded_before(config: ActorsConfig) -> bytes | None:
    try:
        return read_plain(config.out / CONFIG, MAX_YAML) if config.resume else None
    except OSError:
        return None  # missing, or refused where it is used


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


def make(config: ActorsConfig, parts: Parts, folder: Path | None) -> ActorLearner:
    """Create a training without starting it.

    Args:
        config: resolved.
        parts: of the training.
        folder: for checkpoints; None for none.
    """
    from vinoreward.actor_learner.trainer import ActorLearner

    return ActorLearner(
        parts.environment,
        parts.learner,
        parts.settings,
        compressor=parts.chain,
        monitor=parts.monitor,
        evaluation=evaluation_environment(config),
        folder=folder,
        resume=config.resume,
    )


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
            watcher.last(summary)
            outcome = _conclude(config, parts, summary, watcher, recorder, folder)
        except KeyboardInterrupt:
            _say_stopped(config, owner, folder)
            raise
    write_summary(config, outcome, recorder.rows)
    return outcome


def _conclude(
    config: ActorsConfig,
    parts: Parts,
    summary: Summary,
    watcher: Watcher,
    recorder: Recorder,
    folder: Path,
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
    seconds = time.perf_counter() - began
    base = {"step": summary.steps, "seconds": summary.seconds + seconds}
    recorder.evaluation(pair, base, final=True)
    breakdown = difference(summary.profile, watcher.warm)
    reached_at, reached_seconds = watcher.reached or (None, None)
    if watcher.reached is None and config.target is not None and pair.full.mean >= config.target:
        reached_at, reached_seconds = summary.steps, recorder.before + summary.seconds
    verdict = "There is no breakdown: no actor has made a step since the resume."
    if summary.steps > watcher.start:
        compressed = parts.chain is not None and summary.compressed is not None
        verdict = breakdown.advice(summary.learner_seconds, config.actors, compressed=compressed)
    return Outcome(
        folder=folder,
        steps=summary.steps,
        updates=summary.updates,
        seconds=recorder.before + summary.seconds,
        evaluation_seconds=watcher.evaluation_seconds,
        reached_at=reached_at,
        reached_seconds=reached_seconds,
        pair=pair,
        breakdown=breakdown,
        learner_seconds=summary.learner_seconds,
        verdict=verdict,
        compressed_share=summary.compressed_share,
        staleness=summary.staleness,
    )


def _say_stopped(config: ActorsConfig, owner: ActorLearner, folder: Path) -> None:

    if (folder / CHECKPOINT).is_file():
        print(f"\nStopped at step {owner.steps}; the checkpoint is written.")
        print(f"Continue with: {again('actors', folder, *naming(config.task, '--task'))}")
    else:
        print("\nStopped before the first update. Start again with:")
        print(f"{command(config)} --resume")
