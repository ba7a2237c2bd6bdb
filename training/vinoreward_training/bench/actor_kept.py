"""Trainings of a bench row that are kept, so that a row that was stopped goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vinoreward.actor_learner.acting.profile import Breakdown
from vinoreward.errors import RunFolderError
from vinoreward.files import write_json
from vinoreward_training.actors.record import plain_numbers
from vinoreward_training.actors.resolve import recorded
from vinoreward_training.bench.actor_runs import Trained, learner_threads, train
from vinoreward_training.configs.actors import ActorsConfig
from vinoreward_training.configs.bench import BenchConfig
from vinoreward_training.runs.run_folder import plain

FOLDER = "actor-trainings"


def kept(
    config: BenchConfig, name: str, arm: str, settings: ActorsConfig, *, greedy: bool = False
) -> Trained:
    """Train, or read a training that is there: with ``resume``, of the very same settings.

    Args:
        config: of the bench; its ``out`` holds what is kept.
        name: of the preset.
        arm: see :func:`~vinoreward_training.bench.actor_runs.train`.
        settings: settled.
        greedy: see there.

    Raises:
        ConfigError: too few steps for a single update.
        EngineError: no actor can be kept running.
        RunFolderError: what is kept there cannot be read.
    """
    path = config.out / FOLDER / f"{name.replace('/', '-')}-{settings.seed}.json"
    asked = json.loads(json.dumps(plain({**recorded(settings), "greedy": greedy})))
    found = _read(path, asked) if config.resume else None
    if found is not None:
        return found
    with learner_threads(settings.threads):
        trained = train(arm, settings, greedy=greedy)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"settings": asked, "trained": plain_numbers(asdict(trained))})
    return trained


def _read(path: Path, asked: Mapping[str, Any]) -> Trained | None:
    """Return a training of these settings; None if there is none, or one of others."""
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        values = found["trained"]
        trained = Trained(**{**values, "profile": Breakdown(**values["profile"])})
        return trained if found["settings"] == asked else None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RunFolderError(
            f"{path} cannot be read ({type(error).__name__}). Expected what bench writes after a "
            "training; remove it, and that one is trained again."
        ) from error
