"""Rows of ``vinoreward bench``: classifiers that look at the arm, honest ones, and mending."""

from __future__ import annotations

import contextlib
import csv
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.locate import find
from vinoreward.errors import InputError
from vinoreward.files import read_json
from vinoreward.rewards.classifier import Classifier
from vinoreward_envs import constants as c
from vinoreward_envs.auditing import HEIGHTS, spaces
from vinoreward_envs.scene import HoverScene
from vinoreward_training.audit.battery import Battery, look
from vinoreward_training.audit.command import FINDINGS, audit, environment_of, write_findings
from vinoreward_training.audit.report import AuditReport
from vinoreward_training.audit.search import GRID_AXES, Searched, search
from vinoreward_training.bench.rows import Row
from vinoreward_training.capture.command import run as capture
from vinoreward_training.capture.hover import fresh_scenes
from vinoreward_training.classifier.finetune import run as finetune
from vinoreward_training.configs import (
    AuditConfig,
    BenchConfig,
    CaptureConfig,
    FinetuneConfig,
    MendConfig,
)
from vinoreward_training.data.dataset_files import METADATA, read_table, save_image
from vinoreward_training.labelling.labels import LABELS, Label, LabelLog, now
from vinoreward_training.labelling.sources import digest_of
from vinoreward_training.mending.command import run as mend

POSES = 1600
"""Images that a classifier learns the arm's pose from, half of each label."""
SHOWN = 200
"""Images that the audit of it gets."""
HONEST = 5
"""Classifiers that look at arm and object."""
LEARNT_FROM = 3000
"""Images of each."""
ROUNDS = 3
"""Mendings of a planted fault, at most."""
MENDED_WITH = 6000
"""Images of the capture with wrong labels."""
MISTAKEN = 600
"""Images of a failure that are called successes."""
SEARCHES = 4
"""Searches of a space that is sampled."""
FRESH = 2000
"""Scenes on which recall is measured."""


def audit_rows(config: BenchConfig) -> list[Row]:
    """Audit a classifier that knows the arm's pose alone, and others that look at the object."""
    folder = config.out / "audit"
    shutil.rmtree(folder, ignore_errors=True)
    poses = _poses(folder / "poses", POSES, config.seed, elsewhere=0.5)
    # It has to unlearn the object.
    bundle = _trained(folder / "pose", poses, config.seed, epochs=5, learning_rate=1e-3)
    shown = _poses(folder / "shown", SHOWN, config.seed + 1, elsewhere=0.0)
    began = time.perf_counter()
    report = _audited(bundle, shown, "PandaHover-v0", config.seed)
    seconds = time.perf_counter() - began
    stay = report.causes.faults() if report.causes is not None else []
    rows = [
        Row(
            "audit",
            f"a classifier of the arm's pose alone: tests of the cause that it fails, audited with "
            f"{SHOWN} images",
            float(len(stay)),
            "",
            target=">= 1",
            note="; ".join(stay[:2]),
        ),
        Row("audit", "... seconds of its audit", seconds, "s", target="<= 300 s"),
    ]
    accused = []
    for number in range(HONEST):
        seed = config.first_seed + number
        data = _captured(folder / f"data{seed}", LEARNT_FROM, seed)
        honest = _trained(folder / f"honest{seed}", data, seed)
        found = _audited(honest, data, "PandaHoverRandom-v0", seed, states=0, learn=0)
        named = [*(found.causes.faults() if found.causes else ()),
                 *(found.replays.faults() if found.replays else ())]  # fmt: skip
        print(f"  honest {seed}: {'; '.join(named) or 'no fault of its causes'}", flush=True)
        accused.append(bool(named))
    rows.append(
        Row(
            "audit",
            f"classifiers that look at arm and object, of {HONEST}, that fail a test of the cause",
            float(sum(accused)),
            "",
            target="<= 0",
        )
    )
    return rows


@dataclass(frozen=True)
class Mistake:
    """Failures that a labeller calls successes."""

    name: str
    category: str
    """Theirs in a capture; the data that a mending replays have none."""
    space: str
    """Where an audit meets them."""
    place: Callable[[HoverScene, np.random.Generator], None]
    """Puts a scene into one of them; InputError where the arm does not reach it."""


def mend_rows(config: BenchConfig) -> list[Row]:
    """Mend classifiers that were trained with failures called successes.

    The findings of an audit and what the environment labels itself can mend them: the old data,
    which are replayed, have none of those failures. They are mended once an audit with other seeds
    finds no fault in that space. A classifier of a capture with such failures, rightly labelled,
    stands beside them.
    """
    folder = config.out / "mend"
    shutil.rmtree(folder, ignore_errors=True)
    data = _captured(folder / "data", MENDED_WITH, config.seed)
    honest = _trained(folder / "honest", data, config.seed)
    return [row for one in MISTAKES for row in _mended(config, folder, data, honest, one)]


def _mended(
    config: BenchConfig, parent: Path, every: Path, honest: Path, mistake: Mistake
) -> list[Row]:
    folder = parent / mistake.category
    data = folder / "data"
    shutil.copytree(every, data)
    _write_rows(data, [row for _, row in read_table(data) if row["category"] != mistake.category])
    wrong = _mistaken(folder / "wrong", data, mistake, config.seed)
    bundle = _trained(folder / "planted", wrong, config.seed)
    recall, area = _recall(bundle, config.seed), _area(bundle, mistake, config.seed)
    rows, passed = [], None
    labelled: list[Path] = []
    said = [
        f"a classifier with true labels: area {_area(honest, mistake, config.seed):.1f} cm2",
        f"before: recall {recall:.1%}, area {area:.0f} cm2",
    ]
    print(f"  {mistake.name}: {'; '.join(said)}", flush=True)
    for number in range(1, ROUNDS + 1):
        before, began = (recall, area), time.perf_counter()
        found = folder / f"found{number}"
        report = _audited(
            bundle, data, "PandaHoverRandom-v0", config.seed + number,
            states=AuditConfig.states, learn=0,
        )  # fmt: skip
        write_findings(found / FINDINGS, report.battery.fooled)
        labels = _label(found / FINDINGS, report)
        labelled.append(found / FINDINGS)
        audited = time.perf_counter() - began
        began, out = time.perf_counter(), folder / f"mended{number}"
        status = mend(
            MendConfig(
                bundle=str(bundle),
                data=data,
                labels=tuple(labelled),  # as the printed command says
                env="PandaHoverRandom-v0",
                seed=config.seed + number,
                out=out,
            )
        )
        seconds = time.perf_counter() - began
        if status == 0:
            bundle = out / "bundle"
            recall = _recall(bundle, config.seed)
            area = _area(bundle, mistake, config.seed)
        after = read_json(out / "mend.json")["after"]
        left = [fault for fault in after["faults"] if repr(mistake.space) in fault]
        said.append(
            f"round {number} ({labels} labels; audit {audited:.0f} s, mend {seconds:.0f} s): "
            f"{'kept' if status == 0 else 'refused'}, recall {recall:.1%}, area {area:.1f} cm2, "
            f"{len(after['faults'])} faults ({len(left)} there), {len(after['misses'])} misses"
        )
        print(f"  {said[-1]}", flush=True)
        if number == 1:
            rows = [
                Row("mend", f"{mistake.name}: area of false claims after one round, of that before",
                    area / before[1], "x", target="<= 0.5 x"),
                Row("mend", "... recall lost on fresh scenes", 100 * (before[0] - recall),
                    "points", target="<= 1 points"),
                Row("mend", "... labels", float(labels), "", target="<= 100"),
                Row("mend", "... seconds to mend", seconds, "s", target="<= 300 s"),
            ]  # fmt: skip
        if status == 0 and not left:
            passed = number
            break
    rows.append(
        Row(
            "mend",
            "... rounds until an audit finds no fault there",
            None if passed is None else float(passed),
            "",
            target=f"<= {ROUNDS}",
            met=passed is not None,
            note="; ".join(said),
        )
    )
    return rows


def _captured(folder: Path, frames: int, seed: int) -> Path:
    capture(CaptureConfig(frames=frames, seed=seed, out=folder))
    return folder


def _trained(
    folder: Path, data: Path, seed: int, *, epochs: int = 2, learning_rate: float = 3e-4
) -> Path:
    """Train the shipped network on other images."""
    finetune(
        FinetuneConfig(
            data=data,
            out=folder,
            name=folder.name,
            weights=find("panda-hover-classifier") / "model.safetensors",
            epochs=epochs,
            learning_rate=learning_rate,
            target_fpr=0.03,
            seed=seed,
        )
    )
    return folder / "bundle"


def _poses(folder: Path, count: int, seed: int, *, elsewhere: float) -> Path:
    """Write images of a gripper above the fixed task's place, successes, and of it elsewhere.

    In a share of them, whatever their label, the object is ``elsewhere``. It is in all of them: a
    guard fitted to images that have none would find every other one out of distribution, and pay
    for nothing.
    """
    random, place = np.random.default_rng([seed, 0x705E]), (c.FIXED_OBJECT[0], c.FIXED_OBJECT[1])
    with contextlib.closing(HoverScene()) as scene:
        for number in range(count):
            success = number % 2 == 0
            while True:
                xy = random.uniform(c.WORKSPACE_LOW, c.WORKSPACE_HIGH)
                if (math.dist(xy, place) <= c.SUCCESS_DISTANCE) is success:
                    break
            x, y = random.uniform(c.WORKSPACE_LOW, c.WORKSPACE_HIGH).tolist()
            scene.place_object((x, y) if random.uniform() < elsewhere else place)
            scene.home()
            scene.move_gripper((float(xy[0]), float(xy[1])))
            name = f"{'success' if success else 'failure'}/{number:05d}.png"
            save_image(folder / name, scene.render())
    return folder


def _raise(scene: HoverScene, random: np.random.Generator) -> None:
    x, y = random.uniform(c.WORKSPACE_LOW, c.WORKSPACE_HIGH).tolist()
    scene.place_object((x, y))
    scene.home()
    scene.move_gripper((x, y), random.uniform(*HEIGHTS))


def _no_object(scene: HoverScene, random: np.random.Generator) -> None:
    x, y = random.uniform(c.WORKSPACE_LOW, c.WORKSPACE_HIGH).tolist()
    scene.place_object(None)
    scene.home()
    scene.move_gripper((x, y))


MISTAKES = (
    Mistake("images without the object", "absent", "object removed", _no_object),
    Mistake("raised hands", "height", "gripper at another height", _raise),
)


def _mistaken(folder: Path, data: Path, mistake: Mistake, seed: int) -> Path:
    """Copy a capture and add failures that are called successes."""
    shutil.copytree(data, folder)
    rows = [row for _, row in read_table(data)]
    random, first = np.random.default_rng([seed, 0x8A15]), max(int(row["episode"]) for row in rows)
    count = MISTAKEN
    with contextlib.closing(HoverScene()) as scene:
        while count:
            try:
                mistake.place(scene, random)
            except InputError:  # out of the arm's reach
                continue
            row = dict.fromkeys(rows[0], "")
            row |= {"file": f"success/mistake{count:05d}.png", "label": "success"}
            row |= {"category": "success", "episode": str(first + count), "seed": str(seed)}
            row["distance"] = "0"
            save_image(folder / row["file"], scene.render())
            rows.append(row)
            count -= 1
    _write_rows(folder, rows)
    return folder


def _write_rows(folder: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """Say anew which images belong to a capture."""
    with (folder / METADATA).open("w", newline="") as stream:
        table = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def _audited(
    bundle: Path, data: Path, env: str, seed: int, *, states: int = 2048, learn: int = 2000
) -> AuditReport:
    about = AuditConfig(bundle=str(bundle), data=data, env=env, learn_steps=learn)
    with contextlib.ExitStack() as closing:
        given = environment_of(about, Bundle.load(bundle), closing)
        return audit(bundle, data, **given, frames=100, states=states, seed=seed)


def _label(folder: Path, report: AuditReport) -> int:
    """Label an audit's findings with the truth: none is a success."""
    with LabelLog(folder / LABELS) as log:
        for number, one in enumerate(report.battery.fooled):
            name = f"{number:02d}.png"
            log.add(Label(name, digest_of(one.image), "failure", "truth", now(), 1.0))
    return len(report.battery.fooled)


def _recall(bundle: Path, seed: int) -> float:
    """Return the share of fresh successes that is claimed."""
    images, labels, _ = fresh_scenes(FRESH, seed)
    with contextlib.closing(Classifier(bundle, precision="fp32")) as classifier:
        return float(look(classifier, images[labels == 1]).paid.mean())


def _area(bundle: Path, mistake: Mistake, seed: int) -> float:
    """Return the area (cm²) of false claims in the space of a mistake.

    In the plane of the worst; the mean of ``SEARCHES``, which find different ones, with seeds that
    neither audit nor mending has.
    """
    areas = []
    with contextlib.ExitStack() as stack:
        classifier = stack.enter_context(contextlib.closing(Classifier(bundle, precision="fp32")))
        scene = stack.enter_context(contextlib.closing(HoverScene()))
        (space,) = [one for one in spaces(scene) if one.name == mistake.space]
        for number in range(SEARCHES if len(space.axes) > GRID_AXES else 1):
            found, drawn = Searched(space.name, space.axes), seed + 0xA2EA + 1009 * number
            for _ in search(classifier, space, scene.render, found, Battery(), seed=drawn):
                pass
            areas.append(1e4 * found.plane)
    return float(np.mean(areas))
