"""The command line that a command ends with: what to run next.

What it needs travels with the data: ``capture`` records in ``dataset.json`` which environment it
played and its key of the truth; ``finetune`` and ``train-vae`` take that into the bundle. A run's
``config.yaml`` names the bundle that it learned from, and that of a bundle its pictures.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import gymnasium as gym

from vinoreward.errors import VinorewardError
from vinoreward.rewards.calibration import rate_supported
from vinoreward_training.configs import CaptureConfig, FinetuneConfig, MendConfig, TrainConfig
from vinoreward_training.runs.run_folder import CONFIG
from vinoreward_training.runs.settings import given, read_yaml
from vinoreward_training.tasks.environments import names_function, naming

if TYPE_CHECKING:
    from vinoreward.bundles.schema import BundleSpec

RECORDED = ("env", "truth_key", "truth", "actions", "image_source")
"""What a dataset and a bundle record of their pictures' environment."""
MAX_OPTIONS = 50
"""Arguments of an environment that are passed on."""
YOURS = "your_package:YourEnv-v0"
"""Stands for an environment that nobody named."""
RATES = (0.01, 0.02, 0.05, 0.1, 0.2)
"""False-positive rates to ask for."""
WRAPPED = ["--wrap-bundle", "--success-reward", "100", "--step-reward", "-1"]
"""Rewards as in the hover scene: a success is worth more than the randomness that SAC seeks."""
VALIDATION_SHARE = 0.8 * 0.15
"""Least share of the failures that choose the threshold, where they are few."""


def origin(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a ``dataset.json``, or a bundle's ``dataset``, records of the environment.

    All are texts but for ``env_kwargs``, a table of names and plain values; without arguments it is
    left out.
    """
    known: dict[str, Any] = {name: about[name] for name in RECORDED if short_text(about.get(name))}
    options = about.get("env_kwargs")
    if isinstance(options, dict) and 0 < len(options) <= MAX_OPTIONS:
        simple = all(map(short_text, map(str, options.values())))
        if simple and all(map(short_text, options)):
            known["env_kwargs"] = options
    return known


def short_text(value: object) -> TypeGuard[str]:
    """Return whether a value is text to print: a stranger's file could act on a terminal."""
    return isinstance(value, str) and value.isprintable() and 0 < len(value) < 200


def actions_of(space: gym.Space[Any]) -> str:
    """Return the kind of an action space, as ``dataset.json`` records it."""
    kinds = {gym.spaces.Box: "continuous", gym.spaces.Discrete: "discrete"}
    return kinds.get(type(space), "others")


def algorithm_for(actions: str | None) -> str | None:
    """Return an algorithm for a kind of actions; None for the default of ``train``."""
    return {"discrete": "DQN", "others": "PPO"}.get(str(actions))


def command(*words: object) -> str:
    """Return a command line."""
    return f"vinoreward {shlex.join(map(str, words))}"


def option_words(options: Mapping[str, object]) -> list[object]:
    """Return the words that give these options: a table's names and values, none if it is empty."""
    words: list[object] = []
    for option, value in options.items():
        if isinstance(value, Mapping):
            value = tuple(item for pair in value.items() for item in pair)
        items = value if isinstance(value, tuple) else (value,)
        if isinstance(value, bool):  # the option says it
            words.append(option)
        elif items:
            words += [option, *items]
    return words


def again(name: str, out: Path, *more: str) -> str:
    """Return the command that continues a stopped run."""
    return command(name, "--resume", "--out", out, *more)


def capture_again(config: CaptureConfig, *more: str) -> str:
    """Return the command that continues a stopped capture of an environment."""
    by_name = naming(config.truth, "--truth")
    if config.policy is not None and names_function(config.policy):
        by_name = ["--policy", config.policy, *by_name]
    return again("capture", config.out, *naming(config.env), *by_name, *more)


def bundle_name(source: Path | str, kind: str) -> str:
    """Return the default name of a bundle: of its data folder, or of its environment's id."""
    name = Path(os.path.abspath(source)).name if isinstance(source, Path) else _short(source)
    return "-".join(filter(None, (re.sub(r"\W+", "-", name).strip("-")[:100], kind)))


def _short(env: str) -> str:
    return env.rpartition(":")[2].rpartition("/")[2].rpartition("-v")[0].lower()


def _from_here(path: Path) -> Path:
    """Return a path as a user would type it: a bundle's is absolute."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def free(folder: Path) -> Path:
    """Return the folder, or one of a similar name if it exists."""
    number, new = 2, folder
    while new.exists():
        number, new = number + 1, folder.with_name(f"{folder.name}-{number}")
    return new


def beside(folder: Path, word: str) -> Path:
    """Return a folder next to another, whose name ends in a word; the other may be ``.``."""
    own = folder.resolve() if folder.name in ("", "..") else folder
    return own.with_name(f"{own.name}-{word}")


def after_capture(data: Path, episodes: int) -> str:
    """Return the command that trains a classifier on a capture with so many failing episodes."""
    supported = rate_supported(int(VALIDATION_SHARE * episodes))
    rate = next((rate for rate in RATES if rate >= supported), RATES[-1])
    more = [] if rate == RATES[0] else ["--target-fpr", rate]
    out = free(Path("runs") / f"{Path(os.path.abspath(data)).name}-classifier")
    return command("finetune", "--data", data, "--out", out, *more)


def after_recording(dataset: Path, camera: str) -> str:
    """Return the command that takes a camera's labelled pictures from a LeRobot dataset."""
    out = free(dataset.with_name(f"{Path(os.path.abspath(dataset)).name}-pictures"))
    return command("capture", "--from-lerobot", dataset, "--camera", camera, "--out", out)


def after_bundle(bundle: Path, data: Path, success_label: str = "success") -> str:
    """Return the command that quantizes a bundle with the data that it was trained on."""
    more = [] if success_label == "success" else ["--success-label", success_label]
    return command("quantize", "--bundle", _from_here(bundle), "--data", data, *more)


def after_mending(bundle: Path, config: MendConfig) -> str:
    """Return the training again whose claims were labelled, now with what was mended.

    Where no run's claims were labelled: the audit, with the usual seed, of what was mended.
    """
    for folder in reversed(config.labels):
        run = recorded(folder)
        if run.get("wrap_bundle") or _judges_itself(str(run.get("env"))):
            words: list[object] = ["train", "--config", folder / CONFIG, *naming(run.get("env"))]
            words += [*naming(run.get("truth"), "--truth"), "--bundle", _from_here(bundle)]
            return command(*words, "--out", free(folder))
    # With another seed than the audit whose findings were learned.
    words = ["audit", "--bundle", _from_here(bundle), "--data", config.data]
    words += ["--seed", config.seed + 1]
    names = ("success_label", "env", "env_kwargs", *OF_AUDIT)
    return command(*words, *option_words(given(config, names)))


def mend_again(config: MendConfig) -> str:
    """Return the command that goes on with a stopped mending, with all its options."""
    names = (each.name for each in fields(config) if each.name != "resume")
    return command("mend", *option_words(given(config, names)), "--resume")


def recorded(run: Path) -> dict[str, Any]:
    """Return the settings in a run's folder; none where nothing there can be read."""
    kinds = TrainConfig, FinetuneConfig, MendConfig
    try:
        return read_yaml(run / CONFIG, [one.name for kind in kinds for one in fields(kind)])
    except VinorewardError:
        return {}


def after_import(bundle: Path) -> str:
    """Return the command that calibrates an imported classifier on pictures of its user's."""
    data = "data/mine"
    line = command("calibrate", "--bundle", _from_here(bundle), "--data", data)
    return f"{line}\n({data} stands for your pictures: a capture, or one folder per class)"


ITS_DATA = "data/its-training"
"""Stands for the images that a bundle was trained on."""
OF_AUDIT = ("policy", "interventions", "truth_key", "truth", "image_source")
"""Options about an environment that a mending hands to its audits."""
LABELS = 100
"""Enough, the most useful first, for one mending."""


def after_labelling(options: Mapping[str, object], left: int, unlabelled: int = 0) -> str:
    """Return the command that continues labelling or, once it is done, uses the labels.

    ``options`` are those given to this sitting, ``left`` the pictures that it still has,
    ``unlabelled`` those of all sittings. If there is no classifier to mend, the command lets
    somebody else label the same pictures. If the classifier's data are unknown, ``ITS_DATA`` stands
    for them, and a further line says so.
    """
    folder = options.get("--run") or options.get("--data")
    bundle = options.get("--bundle")
    if bundle is None and "--run" in options:
        bundle = _bundle_of(recorded(Path(str(folder))))
FEW = 10
"""Fewest labels worth a mending."""
    # What is left of pictures that are all labelled are blind duplicates.
    done = not (left and unlabelled)
    if done and bundle and folder and "--out" not in options:
        return _to_mend(str(bundle), Path(str(folder)))
    somebody = [] if unlabelled else ["--labeller", "SOMEBODY-ELSE"]
    return command("label", *option_words(options), *somebody)


def _bundle_of(run: Mapping[str, Any]) -> str | None:
    """Return the bundle that a run's settings name; None if there is none to be shown."""
    bundle = run.get("bundle")
    return bundle if short_text(bundle) else None


def _to_mend(bundle: str, labels: Path) -> str:
    """Return the command that mends a bundle with its pictures and all labels that it got."""
    own = recorded(Path(bundle).parent)
    data = own.get("data")
    known = short_text(data) and Path(str(data)).is_dir()
    words: list[object] = ["mend", "--bundle", bundle, "--data", data if known else ITS_DATA]
    if short_text(label := own.get("success_label")) and label != "success":
        words += ["--success-label", label]
    # What an earlier mending learned is not in its data.
    before = own.get("labels")
    earlier = [Path(one) for one in before if short_text(one)] if isinstance(before, list) else []
    folders = [*(one for one in earlier if one.is_dir() and one != labels), labels]
    stem = Path(bundle).parent.name if Path(bundle).name == "bundle" else Path(bundle).name
    stem = re.sub(r"-(classifier|mended(-\d+)?)$", "", stem)
    out = free(Path("runs") / f"{stem}-mended")
    line = command(*words, "--labels", *folders, "--out", out)
    return line if known else f"{line}\n({ITS_DATA} stands for the images it was trained on)"


def after_training(run: Path, policy: Mapping[str, Any], *, alarmed: bool) -> str:
    """Return the command that shows the policy, or after an alarm what it was paid for.

    ``policy`` is the content of ``policy.json`` in the folder ``run``.
    """
    if alarmed:
        return command("label", "--run", run, "--limit", LABELS)
    named = [*naming(policy["env"]), *naming(policy.get("truth"), "--truth")]
    return command("play", "--run", run, *named)


def to_train(bundle: Path, spec: BundleSpec) -> str:
    """Return the command that trains a policy in the environment of a bundle's pictures.

    ``YOURS`` stands for an unknown environment, and a further line says so.
    """
    known = origin(spec.dataset)
    words: list[object] = ["train", "--env", known.get("env", YOURS)]
    if spec.kind == "encoder":
        words += ["--encoder", _from_here(bundle)]
    else:
        words += [] if _judges_itself(known.get("env", YOURS)) else WRAPPED
        words += ["--bundle", _from_here(bundle)]
        # Several sources are the bundle's views.
        source = known.get("image_source", "render")
        words += [] if source == "render" else ["--image-source", source]
    words += _learning(known)
    options = dict(known.get("env_kwargs", {}))
    if "drawn" in spec.picture.scene:
        options["fidelity"] = "article"
    words += option_words({"--env-kwargs": options})
    run = bundle.parent if bundle.name == "bundle" else bundle
    name = run.name.removesuffix("-classifier").removesuffix("-encoder")
    words += ["--out", _from_here(free(run.with_name(f"{name}-policy")))]
    if "env" in known:
        return command(*words)
    return f"{command(*words)}\n({YOURS} stands for your environment: nothing says which it is)"


def _learning(known: Mapping[str, Any]) -> list[object]:
    """Return the options of ``train`` that the origin of a bundle's pictures decides."""
    words: list[object] = []
    if "truth" in known:
        words += ["--truth", known["truth"]]
    elif "truth_key" in known:
        words += ["--truth-key", known["truth_key"]]
    if (algorithm := algorithm_for(known.get("actions"))) is not None:
        words += ["--algorithm", algorithm]
    return words


def _judges_itself(env_id: str) -> bool:
    """Say whether an environment has a learned reward of its own, without importing anything."""
    import vinoreward  # noqa: F401  (registers ours)

    spec = gym.registry.get(env_id)
    point = None if spec is None else spec.entry_point
    return isinstance(point, str) and point.startswith("vinoreward_envs.")


def after_profile(
    env: str,
    bundle: str | None,
    *,
    own: bool,
    dataset: Mapping[str, Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
) -> str:
    """Return the command that trains in the profiled environment.

    ``bundle`` is None for the environment's own, ``own`` whether it has a learned reward itself,
    ``dataset`` what the bundle says of its pictures, ``env_kwargs`` the environment's arguments.
    """
    known = origin(dataset or {})
    words: list[object] = ["train", "--env", env]
    words += [] if own else WRAPPED
    words += [] if bundle is None else ["--bundle", bundle]
    source = "render" if own else known.get("image_source", "render")
    words += [] if source == "render" else ["--image-source", source]
    words += _learning(known) if known.get("env") == env else []
    words += option_words({"--env-kwargs": env_kwargs or {}})
    return command(*words, "--out", free(Path("runs") / (_short(env) or "policy")))


def after_play(run: Path, description: Mapping[str, Any]) -> str:
    """Return the command that profiles the played environment, or plays more if it has no bundle.

    ``description`` is the content of ``policy.json`` in the folder ``run``.
    """
    env, bundle = description.get("env"), description.get("bundle")
    ours = isinstance(env, str) and _judges_itself(env)
    options = origin(description).get("env_kwargs", {})
    if (
        not isinstance(env, str)
        or not (ours or bundle)
        or options != (description.get("env_kwargs") or {})
    ):
        named = naming(str(description.get("env") or description.get("task") or ""))
        named += naming(description.get("truth"), "--truth")
        return command("play", "--run", run, *named, "--episodes", 500, "--seed", 5000)
    words: list[object] = ["profile", "--env", env]
    words += [] if bundle is None else ["--bundle", bundle]
    words += option_words({"--env-kwargs": options})
    return command(*words, "--out", free(beside(run, "profile")))
