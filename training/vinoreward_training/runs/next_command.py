"""The command line that a command ends with: what to run next.

What it needs travels with the data: ``capture`` records in ``dataset.json`` which environment it
played and its key of the truth; ``finetune`` and ``train-vae`` take that into the bundle. A run's
``config.yaml`` names the bundle that it learned from, and that of a bundle its images.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from vinoreward.errors import VinorewardError
from vinoreward_training.configs import CaptureConfig, FinetuneConfig, MendConfig, TrainConfig
from vinoreward_training.data.provenance import LEAST_AUDITED
from vinoreward_training.runs.run_folder import CONFIG
from vinoreward_training.runs.settings import non_default_options, read_yaml
from vinoreward_training.tasks.environments import find_bundle
from vinoreward_training.tasks.recorded import recorded_task, short_text
from vinoreward_training.tasks.trust import names_function, trust_args

if TYPE_CHECKING:
    from vinoreward.bundles.schema import BundleSpec


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


def resume_command(name: str, out: Path, *more: str) -> str:
    """Return the command that continues a stopped run."""
    return command(name, "--resume", "--out", out, *more)


def resume_capture(config: CaptureConfig, *more: str) -> str:
    """Return the command that continues a stopped capture of an environment."""
    by_name = trust_args(config.truth, "--truth")
    by_name += trust_args(config.labels_from, "--labels-from")
    if config.policy is not None and names_function(config.policy):
        by_name = ["--policy", config.policy, *by_name]
    return resume_command("capture", config.out, *trust_args(config.env), *by_name, *more)


def bundle_name(source: Path | str, kind: str) -> str:
    """Return the default name of a bundle: of its data folder, or of its environment's id."""
    if isinstance(source, Path):
        name = Path(os.path.abspath(source)).name
    else:
        name = source.rpartition(":")[2].rpartition("/")[2].rpartition("-v")[0].lower()
    return "-".join(filter(None, (re.sub(r"\W+", "-", name).strip("-")[:100], kind)))


def _from_here(path: Path) -> Path:
    """Return a path as a user would type it: a bundle's is absolute."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _run_of(bundle: Path) -> Path:
    """Return the run folder that has a bundle, or the bundle's own where it is in none."""
    return bundle.parent if bundle.name == "bundle" else bundle


def unique_path(folder: Path) -> Path:
    """Return the folder, or one of a similar name if it exists."""
    number, new = 2, folder
    while new.exists():
        number, new = number + 1, folder.with_name(f"{folder.name}-{number}")
    return new


def sibling_path(folder: Path, word: str) -> Path:
    """Return a folder next to another, whose name ends in a word; the other may be ``.``."""
    own = folder.resolve() if folder.name in ("", "..") else folder
    return own.with_name(f"{own.name}-{word}")


def classifier_folder(data: Path) -> Path:
    """Return the run folder that ``finetune`` takes by default."""
    if data == FinetuneConfig.data:
        return FinetuneConfig.out
    return Path("runs") / bundle_name(data, "")


def policy_folder(env_id: str) -> Path:
    """Return the run folder that ``train`` takes by default."""
    if _has_own_reward(env_id):
        return TrainConfig.out
    return Path("runs") / bundle_name(env_id, "policy")


def _to_folder(folder: Path, default: Path) -> list[object]:
    """Return the words that name a new run folder; none where the command takes it by default."""
    return [] if folder == default and not folder.exists() else ["--out", unique_path(folder)]


def after_capture(data: Path, config: FinetuneConfig | None = None) -> str:
    """Return the command that trains a classifier on a capture, with the network of a config."""
    out = classifier_folder(data)
    names = ("network", "weights", "pretrained", "freeze")
    options = {} if config is None else non_default_options(config, names)
    return command("finetune", "--data", data, *option_words(options), *_to_folder(out, out))


def after_bundle(bundle: Path, spec: BundleSpec, data: Path, tested: int) -> str:
    """Return the audit of a classifier, or the training where its data are too few for one.

    ``tested`` test episodes have a success, or a failure if they are fewer.
    """
    if tested < LEAST_AUDITED:
        return to_train(bundle, spec)
    return command("audit", "--bundle", _from_here(_run_of(bundle)), "--data", data)


def to_more_images(data: Path, frames: int) -> str:
    """Return the command that adds images to a capture; words where they are of no capture."""
    known = recorded(data)
    of_play = ("env", "truth", "policy", "labels_from")
    names: dict[str, Any] = {name: known.get(name) for name in of_play}
    played = "per_episode" in known and not known.get("recordings")
    if played and all(value is None or short_text(value) for value in names.values()):
        config = CaptureConfig(out=data, **names)
        return resume_capture(config, "--frames", str(frames))
    return f"add images to {data}, about {frames} in all, and finetune into another folder"


def after_mending(bundle: Path, config: MendConfig) -> str:
    """Return the command that trains again, with the mended bundle, where claims were labelled.

    Where no run's claims were labelled: the audit of the mended bundle.
    """
    for folder in reversed(config.labels):
        run = recorded(folder)
        if run.get("bundle") or _has_own_reward(str(run.get("env"))):
            words: list[object] = ["train", "--config", folder / CONFIG]
            words += [*trust_args(run.get("env")), *trust_args(run.get("truth"), "--truth")]
            words += ["--bundle", _from_here(bundle)]
            return command(*words, "--out", unique_path(folder))
    # With another seed than the audit whose findings were learned.
    words = ["audit", "--bundle", _from_here(bundle), "--data", config.data]
    words += ["--seed", config.seed + 1]
    names = ("env", "env_kwargs", *OF_AUDIT)
    return command(*words, *option_words(non_default_options(config, names)))


def resume_mend(config: MendConfig) -> str:
    """Return the command that continues a stopped mending."""
    by_name = [*trust_args(config.env), *trust_args(config.truth, "--truth")]
    for name in ("policy", "interventions"):
        value = getattr(config, name)
        by_name += [f"--{name}", value] if value and names_function(value) else []
    return resume_command("mend", config.out, *by_name)


def recorded(run: Path) -> dict[str, Any]:
    """Return the settings in a run's folder; none where nothing there can be read."""
    kinds = TrainConfig, FinetuneConfig, MendConfig, CaptureConfig
    try:
        return read_yaml(run / CONFIG, [one.name for kind in kinds for one in fields(kind)])
    except VinorewardError:
        return {}


def after_import(bundle: Path) -> str:
    """Return the command that calibrates an imported classifier on images of its user's."""
    data = "data/mine"
    line = command("calibrate", "--bundle", _from_here(bundle), "--data", data)
    return f"{line}\n({data} stands for your images: a capture, or one folder per class)"


ITS_DATA = "data/its-training"
"""Stands for the images that a bundle was trained on."""
OF_AUDIT = ("policy", "interventions", "truth", "image_source")
"""Options about an environment that a mending hands to its audits."""
LABELS = 100
"""Enough, the most useful first, for one mending."""
FEW = 10
"""Fewest labels worth a mending."""


def after_labelling(options: Mapping[str, object], left: int, unlabelled: int = 0) -> str:
    """Return the command that continues labelling or, once it is done, uses the labels.

    ``options`` are those of this sitting, ``left`` the images that it still has, ``unlabelled``
    those of all sittings. If there is no classifier to mend, somebody else may label them again.
    """
    folder = options.get("--run") or options.get("--data")
    bundle = options.get("--bundle")
    if bundle is None and "--run" in options:
        bundle = recorded(Path(str(folder))).get("bundle")
    # What is left of images that are all labelled are blind duplicates.
    done = not (left and unlabelled)
    if done and short_text(bundle) and folder and "--out" not in options:
        return _to_mend(str(bundle), Path(str(folder)))
    somebody = [] if unlabelled else ["--labeller", "SOMEBODY-ELSE"]
    return command("label", *option_words(options), *somebody)


def _to_mend(bundle: str, labels: Path) -> str:
    """Return the command that mends a bundle with its images and all labels that it got."""
    bundle = str(find_bundle(bundle))
    own = recorded(Path(bundle).parent)
    data = own.get("data")
    known = short_text(data) and Path(str(data)).is_dir()
    words: list[object] = ["mend", "--bundle", bundle, "--data", data if known else ITS_DATA]
    # What an earlier mending learned is not in its data.
    before = own.get("labels")
    earlier = [Path(one) for one in before if short_text(one)] if isinstance(before, list) else []
    folders = [*(one for one in earlier if one.is_dir() and one != labels), labels]
    stem = Path(bundle).parent.name if Path(bundle).name == "bundle" else Path(bundle).name
    stem = re.sub(r"-(classifier|mended(-\d+)?)$", "", stem)
    out = unique_path(Path("runs") / f"{stem}-mended")
    line = command(*words, "--labels", *folders, "--out", out)
    return line if known else f"{line}\n({ITS_DATA} stands for the images it was trained on)"


def after_audit(bundle: str, findings: Path, count: int) -> str:
    """Return what mends a classifier by so many false claims, or shows them if they are few."""
    if count < FEW:
        return command("label", "--data", findings, "--bundle", bundle)
    return _to_mend(bundle, findings)


def after_judge(judge: str, findings: Path | None) -> str:
    """Return what shows an audited judge's false claims, or uses it where there are none."""
    if findings is not None and findings.is_dir():
        return command("label", "--data", findings)
    loaded = f"vinoreward_training.judges.load_judge({judge!r})"
    return f"in Python, vinoreward.LearnedReward(env, judge={loaded})"


def to_mend(run: Path, truths: int) -> str:
    """Return what mends the classifier by a run's claims, so many of which carry the truth."""
    bundle = recorded(run).get("bundle")
    if not short_text(bundle) or truths < FEW:
        useful = ["--bundle", bundle] if short_text(bundle) else []
        return command("label", "--run", run, *useful, "--limit", LABELS)
    return _to_mend(bundle, run)


def to_play(run: Path, policy: Mapping[str, Any]) -> str:
    """Return the command that shows a policy; it is the content of ``policy.json`` in ``run``."""
    named = [*trust_args(policy["env"]), *trust_args(policy.get("truth"), "--truth")]
    return command("play", "--run", run, *named)


OF_REWARD = ("reward_mode", "hold", "on_ood")
"""Options of ``train`` that it refuses where the truth pays."""


def to_compare(run: Path, policy: Mapping[str, Any]) -> str:
    """Return the command of a run's training with the truth as its reward."""
    words: list[object] = ["train", "--config", run / CONFIG, *trust_args(policy["env"])]
    words += [*trust_args(policy.get("truth"), "--truth"), "--backend", "oracle"]
    for name, value in recorded(run).items():
        if name in OF_REWARD and value != (usual := getattr(TrainConfig(), name)):
            words += [f"--{name.replace('_', '-')}", usual]
    return command(*words, "--out", sibling_path(run, "oracle"))


def to_train(bundle: Path, spec: BundleSpec) -> str:
    """Return the command that trains a policy in the environment of a bundle's images.

    Where nothing says which that is: a program that scores images.
    """
    known = recorded_task(spec.dataset)
    if "env" not in known:
        return _program(_from_here(bundle), spec.kind)
    run = _run_of(bundle)
    name = run.name.removesuffix("-classifier").removesuffix("-encoder")
    option = "--encoder" if spec.kind == "encoder" else "--bundle"
    words: list[object] = ["train", option, _from_here(run)]
    words += [*trust_args(known["env"]), *trust_args(known.get("truth"), "--truth")]
    words += [] if spec.progress is None else ["--reward-mode", "progress"]
    # Next to the run that has the bundle; an installed bundle is in none.
    place = run.parent if run != bundle else Path("runs")
    out = _from_here(place / f"{name}-policy")
    return command(*words, *_to_folder(out, policy_folder(str(known["env"]))))


def _program(bundle: Path, kind: str) -> str:
    """Return the line of Python that runs a bundle on images."""
    runner, method = ("Encoder", "encode") if kind == "encoder" else ("Classifier", "predict")
    return f"in Python, vinoreward.{runner}({str(bundle)!r}).{method}(images)"


def _has_own_reward(env_id: str) -> bool:
    """Say whether an environment has a learned reward of its own, without importing anything."""
    import vinoreward  # noqa: F401  (registers ours)

    spec = gym.registry.get(env_id)
    point = None if spec is None else spec.entry_point
    return isinstance(point, str) and point.startswith("vinoreward_envs.")
