"""``vinoreward mend``: refits a classifier from labels, and keeps it only if it is no worse."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.locate import inside
from vinoreward.bundles.schema import Picture
from vinoreward.errors import ConfigError, DatasetError, needed_for
from vinoreward.files import write_json
from vinoreward.rewards.classifier import Classifier
from vinoreward_training.audit.battery import look
from vinoreward_training.audit.command import LEAST, audit, environment_of, one_each, unseen
from vinoreward_training.audit.report import AuditReport, Measure
from vinoreward_training.classifier.finetune import enough
from vinoreward_training.classifier.guard import of_rooms
from vinoreward_training.configs import AuditConfig, FinetuneConfig, MendConfig
from vinoreward_training.data.dataset import Dataset, load_dataset, split_by_episode
from vinoreward_training.data.dataset_files import Indices
from vinoreward_training.data.dataset_files import inside as within
from vinoreward_training.labelling.labels import LABELS, agreement, contradictions, read_labels
from vinoreward_training.labelling.sources import CLAIMS, labelled_pictures
from vinoreward_training.runs.next_command import OF_AUDIT, after_mending
from vinoreward_training.runs.run_folder import RunFolder
from vinoreward_training.runs.settings import refuse, refuse_ignored

REFUSED = 3
"""Exit status where the old bundle is kept."""
CANDIDATE = "candidate"
"""Folder of the refitted bundle before it is judged, and after it was refused."""
WEIGHTS = "model.safetensors"
CATEGORY = "labelled"
SURE = 0.05
"""Largest chance that a bundle no worse than the old one is refused."""
LOST_RECALL = 0.01
"""Loss of recall on the test part that is no reason to keep the old bundle."""
FEW = 10
"""Fewest labels worth a training."""
MOST_SHARE = 0.4
"""Share of a training step for labels all of which the bundle gets wrong."""
LEAST_SHARE = 0.02
IMAGES = 24000
"""At most so many are trained on where the number of passes is not given, but one pass at least.
A network that was trained on few images loses in one pass what it regains in some."""
_CHECKED = 0.2
"""Share of the labelled pictures that are not trained on, by hash."""


@dataclass(frozen=True)
class Labelled:
    """Pictures that people labelled, as the network takes them."""

    images: npt.NDArray[np.uint8]
    """``(N, H, W, 3)``."""
    labels: Indices
    """``(N,)``, 1 for success."""
    train: npt.NDArray[np.bool_]
    """``(N,)`` those to train on; the others check."""
    sentence: str


def read_all(folders: Sequence[Path], bundle: Bundle) -> Labelled:
    """Read the labelled pictures of some folders, each with its ``labels.jsonl``.

    Raises:
        DatasetError: no labels, or too few.
        ConfigError: a bundle of several pictures.
    """
    picture = bundle.spec.picture
    if picture.views:
        raise ConfigError(
            f"{bundle.spec.name} looks at several pictures. Expected a bundle of one; label a "
            "capture of this kind, and finetune."
        )
    images, labels, said = [], [], []
    for folder in folders:
        given = read_labels(folder / LABELS)
        place = within(folder, CLAIMS) if (folder / CLAIMS).is_dir() else folder
        size = picture.height, picture.width
        found = labelled_pictures(place, given, size, crop=picture.crop)
        images.append(found.images)
        labels.append(found.labels)
        against = len(contradictions(given))
        said.append(
            f"{folder}: {len(found.labels)} labels, {int(found.labels.sum())} of them successes; "
            f"{against} contradict each other and are left out; {agreement(given)}"
        )
    every = np.concatenate(images)
    # The same picture may have been labelled in two folders; its last label counts.
    digests = [hashlib.sha256(image.tobytes()).hexdigest() for image in every]
    last = {digest: index for index, digest in enumerate(digests)}
    kept = np.array(sorted(last.values()), np.int64)
    if len(kept) < FEW:
        raise DatasetError(
            f"{', '.join(map(str, folders))} hold {len(kept)} labelled pictures. Expected at least "
            f"{FEW}; label more: vinoreward label."
        )
    train = np.array([int(digests[index][:8], 16) / 2**32 >= _CHECKED for index in kept])
    return Labelled(every[kept], np.concatenate(labels)[kept], train, "\n".join(said))


def read_data(folder: Path, picture: Picture, success_label: str) -> Dataset:
    """Return the labelled pictures of a folder, cut and resized as a bundle's network takes them.

    Raises:
        DatasetError: the folder is damaged, or its pictures are of another size.
    """
    wanted = picture.height, picture.width
    dataset = load_dataset(
        folder,
        size=wanted if picture.resize != "none" else None,
        crop=picture.crop,
        success_label=success_label,
    )
    if (found := dataset.images.shape[1:3]) != wanted:
        raise DatasetError(
            f"{folder} has pictures of {found[0]}x{found[1]} pixels (height x width). Expected "
            f"{wanted[0]}x{wanted[1]}, as the bundle's network takes them; give the pictures that "
            "it was trained on, or others of that size."
        )
    return dataset


def joined(dataset: Dataset, labelled: Labelled) -> Dataset:
    """Return a dataset with the labelled pictures behind the others, an episode each."""
    count = len(labelled.labels)
    digest = hashlib.sha256(dataset.sha256.encode() + labelled.images.tobytes())
    first = int(dataset.episodes.max()) + 1
    return dataclasses.replace(
        dataset,
        images=np.concatenate([dataset.images, labelled.images]),
        labels=np.concatenate([dataset.labels, labelled.labels]),
        episodes=np.concatenate([dataset.episodes, first + np.arange(count)]),
        categories=np.concatenate([dataset.categories, np.full(count, CATEGORY)]),
        distances=np.concatenate([dataset.distances, np.full(count, np.nan)]),
        files=(*dataset.files, *(f"{CATEGORY}/{index}" for index in range(count))),
        sha256=digest.hexdigest(),
    )


def refit(
    config: MendConfig, bundle: Bundle, dataset: Dataset, labelled: Labelled, folder: Path
) -> Bundle:
    """Train from the bundle's weights on its old data and the labels; return the new bundle."""
    with needed_for("mending", "train"):
        import torch

        from vinoreward.backends.torch_networks import WithPreprocess
        from vinoreward_training.classifier import training
        from vinoreward_training.classifier.bundle import make_bundle
        from vinoreward_training.classifier.networks import build_for, normalization
        from vinoreward_training.runs.fit import prepare_torch

    spec = bundle.spec
    weights = inside(bundle.path, WEIGHTS)
    before = training.read_record(weights)
    train, validation, test = split_by_episode(dataset)
    unseen = training.check_unseen(before, weights, dataset, (train, validation, test))
    both = joined(dataset, labelled)
    random = np.random.default_rng([config.seed, 0x3E4D])
    replayed = np.sort(random.permutation(train)[: config.replay])
    new = len(dataset.labels) + np.flatnonzero(labelled.train)
    chosen = np.concatenate([replayed, new])
    share = share_of_labels(bundle, labelled) if config.share is None else config.share
    shares = np.full(len(chosen), (1 - share) / max(1, len(replayed)))
    shares[len(replayed) :] = share / max(1, len(new))
    chosen_for = spec.decision.chosen_for if spec.decision is not None else {}
    fit_config = FinetuneConfig(
        data=config.data,
        out=folder,
        name=spec.name,
        network=spec.architecture or "",
        weights=weights,
        epochs=config.epochs or passes(len(chosen)),
        learning_rate=config.learning_rate,
        target_fpr=config.target_fpr or float(chosen_for.get("target_fpr") or 0.01),
        # What it was not trained for would cost it more than a few steps can teach.
        shifts=FinetuneConfig.shifts if of_rooms(spec.metrics) else 0.0,
        success_label=config.success_label,
        seed=config.seed,
        threads=config.threads,
        resume=config.resume,
    )
    if config.target_fpr is not None:
        enough(fit_config, dataset, validation)
    prepare_torch(fit_config)
    height, width = dataset.images.shape[1:3]
    net = build_for(fit_config, height, width, [])
    inner = WithPreprocess(net, *normalization(fit_config))
    some = validation[:: max(1, len(validation) // config.replay)]
    fit = training.ClassifierFit(
        training.ChannelsLast(inner), both, chosen, some, fit_config, folder, shares=shares
    )
    fit.show("mend")
    net.to(memory_format=torch.contiguous_format)
    inner.eval()
    record = training.record_of(both, chosen, started=True, before=before)
    parts = (np.concatenate([train, new]), validation, test)
    recall = _recall(bundle, dataset, validation) if config.target_fpr is None else None
    make_bundle(fit_config, both, parts, folder, inner, fit.history, record, unseen, recall)
    return Bundle.load(folder / "bundle")


def passes(images: int) -> int:
    """Return how often to go over so many images."""
    return max(1, IMAGES // images)


def share_of_labels(bundle: Bundle, labelled: Labelled) -> float:
    """Return the share of a training step for labels: the more, the more of them it gets wrong.

    What it gets right teaches little, and a share of its own would teach only how often successes
    are among the labels.
    """
    some = labelled.train
    with contextlib.closing(Classifier(bundle.of_cut_pictures(), precision="fp32")) as classifier:
        right = look(classifier, labelled.images[some]).claims == labelled.labels[some]
    wrong = 1 - float(right.mean()) if len(right) else 0.0
    return max(LEAST_SHARE, MOST_SHARE * wrong)


def _recall(bundle: Bundle, dataset: Dataset, part: Indices) -> float:
    """Return the share of the successes of a part of the data that a bundle claims."""
    cut = bundle.of_cut_pictures()
    with contextlib.closing(Classifier(cut, precision="fp32")) as classifier:
        claims = look(classifier, dataset.images[part[dataset.labels[part] == 1]]).claims
    return float(claims.mean())


@dataclass(frozen=True)
class Judgement:
    """The old and the new bundle side by side."""

    rows: list[dict[str, Any]]
    """Measure, before, after, the chance of that (:func:`surely`), and whether it is worse."""

    @property
    def worse(self) -> list[str]:
        """A sentence for each measure that is worse."""
        return [
            f"{row['measure']}: {row['before']:.3g} before, {row['after']:.3g} after"
            for row in self.rows
            if row["worse"]
        ]


def judged(
    old: Bundle, new: Bundle, audits: tuple[AuditReport, AuditReport], dataset: Dataset,
    labelled: Labelled,
) -> Judgement:  # fmt: skip
    """Compare two bundles on the test part, on the labels kept back, and in their audits.

    A measure is worse where that matters (by more than a point of recall, or beyond the bar of an
    audit) and where chance does not explain it.
    """
    test = split_by_episode(dataset)[2]
    success = dataset.labels[test] == 1
    kept = ~labelled.train
    claims, false_claims, answers, rates = [], [], [], []
    for bundle in (old.of_cut_pictures(), new.of_cut_pictures()):
        with contextlib.closing(Classifier(bundle, precision="fp32")) as classifier:
            paid = look(classifier, dataset.images[test]).paid
            right = np.zeros(0, np.bool_)
            if kept.any():
                right = look(classifier, labelled.images[kept]).paid == labelled.labels[kept]
        wrong = float((~right).mean()) if len(right) else 0.0
        claims.append(paid[success])
        false_claims.append(paid[~success])
        answers.append(right)
        rates.append((float(paid[success].mean()), float(paid[~success].mean()), wrong))
    (recall, false, missed), (recall_new, false_new, missed_new) = rates
    target = float((new.spec.decision.chosen_for if new.spec.decision else {})["target_fpr"])
    lost = chance_of_fewer(claims[0], claims[1]) if recall_new < recall - LOST_RECALL else 1.0
    more = chance_of_fewer(false_claims[1], false_claims[0])
    rows = [
        _row("recall on the test part", recall, recall_new, lost),
        _row(
            "false claims on the test part",
            false,
            false_new,
            more if false_new > max(false, target) else 1.0,
        ),
        _row(
            "labels kept back that it gets wrong",
            missed,
            missed_new,
            chance_of_fewer(answers[0], answers[1]),
        ),
    ]
    before, after = (report.measures for report in audits)
    rows += [
        _row(name, before[name].value, one.value, chance_of_worse(before[name], one))
        for name, one in after.items()
    ]
    for row, worse in zip(rows, surely([row["chance"] for row in rows]), strict=True):
        row["worse"] = worse
    return Judgement(rows)


def surely(chances: Sequence[float | None]) -> list[bool]:
    """Return which of several measures are worse, given the chance of each if nothing changed.

    So many are looked at that one in twenty is worse by chance in nearly every mending. Benjamini
    and Hochberg (1995) keep the chance that any is said to be worse, though none is, at ``SURE``.
    None, where chance has no part, is worse.
    """
    from scipy.stats import false_discovery_control

    tests = [one for one in chances if one is not None]
    corrected = iter(false_discovery_control(tests) if tests else ())
    return [one is None or bool(next(corrected) < SURE) for one in chances]


def chance_of_worse(before: Measure, after: Measure) -> float | None:
    """Return the chance of a measure so much higher than before, and beyond its bar; else 1.

    Of shares: given how many claims both audits have in all, a one-sided binomial test of how many
    the second has. Chance has no part, None, in an area of the same states and in a new hole.
    """
    if after.value <= max(before.value, after.bar):
        return 1.0
    if not after.of or not before.of:
        return None
    from scipy.stats import binomtest

    counts = [round(one.value * one.of) for one in (after, before)]
    share = after.of / (after.of + before.of)
    return float(binomtest(counts[0], sum(counts), share, alternative="greater").pvalue)


def chance_of_fewer(before: npt.NDArray[np.bool_], after: npt.NDArray[np.bool_]) -> float:
    """Return the chance of so many fewer claims, or right answers, (N,) than before.

    A one-sided sign test of the pictures on which the two differ.
    """
    from scipy.stats import binomtest

    lost, gained = int((before & ~after).sum()), int((~before & after).sum())
    if lost + gained == 0:
        return 1.0
    return float(binomtest(lost, lost + gained, 0.5, alternative="greater").pvalue)


def _row(measure: str, before: float, after: float, chance: float | None) -> dict[str, Any]:
    return {"measure": measure, "before": before, "after": after, "chance": chance}


def run(config: MendConfig) -> int:
    """Refit, audit, compare; return 0, or ``REFUSED`` where the old bundle is kept."""
    refuse(
        "mend",
        config,
        {
            "replay": config.replay < 100,
            "share": config.share is not None and not 0 < config.share < 1,
            "epochs": config.epochs < 0,
            "learning_rate": not 0 < config.learning_rate < 1,
            "states": config.states != 0 and config.states < 256,
            "target_fpr": config.target_fpr is not None and not 0 < config.target_fpr < 1,
            "seed": config.seed < 0,
            "threads": config.threads < 0,
        },
    )
    if config.env is None:
        names = ("env_kwargs", *OF_AUDIT, "states")
        refuse_ignored(config, names, "mending without --env")
    old = Bundle.load(config.bundle)
    if old.spec.kind != "classifier" or WEIGHTS not in old.spec.files or not old.spec.architecture:
        raise ConfigError(
            f"{old.spec.name} has no {WEIGHTS} of a named network, from which a training could go "
            "on. Expected a classifier of vinoreward finetune; train one on these pictures."
        )
    labelled = read_all(config.labels, old)
    print(labelled.sentence)
    dataset = read_data(config.data, old.spec.picture, config.success_label)
    one_each(dataset, unseen(old, dataset)[0], LEAST, config.seed)  # or no audit could judge
    with RunFolder(config.out, config, resume=config.resume) as folder:
        work = folder / CANDIDATE
        work.mkdir(exist_ok=True)
        new = refit(config, old, dataset, labelled, work)
        audits = [_audited(config, bundle) for bundle in (old, new)]
        judgement = judged(old, new, (audits[0], audits[1]), dataset, labelled)
        for row in judgement.rows:
            mark = "  worse" if row["worse"] else ""
            print(f"{row['measure']}: {row['before']:.4g} -> {row['after']:.4g}{mark}")
        write_json(
            folder / "mend.json",
            {
                "kept": "old" if judgement.worse else "new",
                "rows": judgement.rows,
                "labels": len(labelled.labels),
                "before": audits[0].as_dict(),
                "after": audits[1].as_dict(),
            },
        )
        if judgement.worse:
            print("kept the old bundle, as the new one is worse:")
            print("\n".join(f"- {one}" for one in judgement.worse))
            print(f"the new one is in {work / 'bundle'}")
            return REFUSED
        saved = folder / "bundle"
        if saved.exists():
            shutil.rmtree(saved)
        (work / "bundle").rename(saved)
        print(f"bundle {saved}; {audits[1].verdict}")
        if old.spec.decision is not None and old.spec.decision.shift_band:
            print(
                "note: near its threshold the old bundle judged by means over shifted pictures, "
                "and this one does not; vinoreward calibrate --average-shifts gives it that again"
            )
        print(f"next: {after_mending(saved, config)}")
        return 0


def _audited(config: MendConfig, bundle: Bundle) -> AuditReport:
    """Audit with pictures, places and episodes that no audit with the usual seed draws."""
    audit_config = AuditConfig(
        bundle=str(bundle.path),
        data=config.data,
        env=config.env,
        env_kwargs=config.env_kwargs,
        **{name: getattr(config, name) for name in OF_AUDIT},
        learn_steps=AuditConfig.learn_steps if config.env is None else 0,
    )
    with contextlib.ExitStack() as closing:
        about = environment_of(audit_config, bundle, closing)
        run_audit = partial(audit, bundle, config.data, **about)
        return run_audit(
            success_label=config.success_label,
            precision="fp32",
            frames=200,
            dead=1100,
            states=config.states,
            seed=config.seed + 0x3E4D,
            threads=config.threads,
            progress=True,
        )
