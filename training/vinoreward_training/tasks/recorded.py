"""The task that a dataset, a bundle or a run records, for the commands that follow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.locate import SPEC_FILE
from vinoreward.bundles.schema import BundleSpec
from vinoreward_training.data.dataset_files import ABOUT, read_about
from vinoreward_training.tasks.environments import find_bundle

MAX_OPTIONS = 50
"""Arguments of an environment that are passed on."""


def short_text(value: object) -> TypeGuard[str]:
    """Return whether a value is text to print: a stranger's file could act on a terminal."""
    return isinstance(value, str) and value.isprintable() and 0 < len(value) < 200


def recorded_task(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task of a ``dataset.json`` or of a bundle's ``dataset``, by the names of ``Task``.

    What is missing is left out; so is what is no plain text, as the file may be a stranger's.
    """
    task: dict[str, Any] = {
        name: about[name] for name in ("env", "truth") if short_text(about.get(name))
    }
    sources = about.get("image_source")
    sources = [sources] if isinstance(sources, str) else sources
    if isinstance(sources, list) and sources and all(map(short_text, sources)):
        task["image_source"] = tuple(sources)
    options = about.get("env_kwargs")
    if isinstance(options, dict) and 0 < len(options) <= MAX_OPTIONS:
        texts = [*options, *map(str, options.values())]
        if all(map(short_text, texts)):
            task["env_kwargs"] = options
    return task


def same_environment(one: object, other: object) -> bool:
    """Return whether two ids name one environment, with or without its package."""
    return str(one).rpartition(":")[2] == str(other).rpartition(":")[2]


def task_of_bundle(given: Mapping[str, Any]) -> tuple[Path, dict[str, Any]] | None:
    """Return the file that records the task of the bundle or encoder given, and that task.

    None where there is none. Where another environment is given, its arguments and its truth are
    its own.
    """
    named = given.get("bundle") or given.get("encoder")
    if named is None:
        return None
    bundle = Bundle.load(find_bundle(str(named)))
    task = recorded_task(bundle.spec.dataset)
    if given.get("env") is not None and not same_environment(given["env"], task.get("env")):
        task = {name: value for name, value in task.items() if name == "image_source"}
    # Steps that a success must last, so that few failing episodes get a false claim.
    episodes = bundle.spec.metrics.get("failing_episodes")
    hold = episodes.get("hold") if isinstance(episodes, Mapping) else None
    if given.get("bundle") is not None and isinstance(hold, int):
        task["hold"] = hold
    return bundle.path / SPEC_FILE, task


def task_of_audit(given: Mapping[str, Any]) -> tuple[Path, dict[str, Any]] | None:
    """Return the task of the environment that an audit is given, as bundle or data record it.

    None without an environment, and where nothing records its task.
    """
    if not given.get("env"):
        return None
    found = task_of_bundle(given)
    about = read_about(Path(given["data"])) if given.get("data") else {}
    if same_environment(given["env"], about.get("env")) and (
        found is None or "env" not in found[1]
    ):
        return Path(given["data"]) / ABOUT, recorded_task(about)
    return found


def success_label_of(spec: BundleSpec) -> str:
    """Return the label of successes in the images that a bundle was trained or calibrated on."""
    label = spec.dataset.get("success_label")
    return label if short_text(label) else spec.success_label
