"""``vinoreward calibrate``: threshold, error rates, OOD detector and INT8 of any bundle."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vinoreward.backends.base import Backend
from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.golden import Golden
from vinoreward.bundles.importers.encoder import other_images
from vinoreward.bundles.locate import GUARD_FILE, INT8_FILE
from vinoreward.bundles.schema import BundleSpec
from vinoreward.errors import InputError, needed_for
from vinoreward.images import ImageSpec, read_image
from vinoreward.rewards.classifier import (
    log_odds,
    logit,
    scores_of,
    threshold_distance,
    translations,
)
from vinoreward_training.classifier.camera_failure import logits_by_family
from vinoreward_training.classifier.evaluation import (
    DeadLogits,
    Evaluation,
    Floats,
    claimed,
    evaluate,
    roc_area,
)
from vinoreward_training.classifier.finetune import check_sample_size, conclude
from vinoreward_training.classifier.ood import OodFit, fit_bundle_ood
from vinoreward_training.configs import CalibrateConfig
from vinoreward_training.data.dataset import (
    Dataset,
    Images,
    load_frames,
    load_labelled,
    same_aspect,
    size_for,
    split_by_episode,
    split_frames,
)
from vinoreward_training.data.dataset_files import Indices, read_about
from vinoreward_training.data.provenance import SPLIT, origin_of
from vinoreward_training.encoder.int8 import encoder_int8
from vinoreward_training.runs.bundles import front_matter, update_bundle
from vinoreward_training.runs.next_command import to_train
from vinoreward_training.runs.report import markdown, own_bundle
from vinoreward_training.runs.settings import refuse_ignored
from vinoreward_training.tasks.recorded import recorded_task

SAMPLE = 100
"""Frames of each class on which other descriptions of the network are tried."""
WELL, CLEARLY = 0.75, 0.05
"""Another description is named if it ranks so many pairs right, so many more than this one, and
halves the wrong ones."""
BATCH = 32
SEED = 0
"""Of the dead-camera frames."""


def run(config: CalibrateConfig) -> int:
    """Calibrate, measure and write the bundle; return 0, or ``USELESS`` after that verdict."""
    with needed_for("calibration", "train"):
        # Here, as it imports torch; and before the data are read.
        from vinoreward_training.classifier.bundle import golden_of, print_result
    bundle = own_bundle(config.bundle)
    if bundle.spec.kind == "encoder":
        return _encoder(config, bundle)
    spec = bundle.spec
    dataset = load_labelled(config.data, spec.image, config.success_label)
    if note := _squeezed(dataset, spec.image):
        print(note)
    choosing, test, unseen = _parts(config, bundle, dataset)
    check_sample_size(config, dataset, choosing)
    print(f"{len(choosing)} frames choose the threshold, {len(test)} test it")
    print(f"frames new to the network: {unseen}")
    with bundle.backend("openvino", precision="fp32") as backend:
        score = partial(_score_all, backend, spec, dataset, (choosing, test))
        result = _evaluate(config, bundle, dataset, (choosing, test), score)
        golden = dataset.images[golden_of(dataset, test, result)]
        outputs = backend.infer(golden)
    decided = dataclasses.replace(spec, decision=result.decision)
    ood = fit_bundle_ood(dataclasses.replace(bundle, spec=decided), dataset)
    _write(config, bundle, dataset, test, result, Golden(golden, outputs), unseen, ood)
    print_result(result, ood)
    if spec.decision.translation_band and not config.average_translations:
        print(
            "note: the bundle no longer scores translation averages; --average-translations keeps "
            "them"
        )
    return conclude(config, dataset, bundle.path, useless=result.verdict.level == "useless")


def _encoder(config: CalibrateConfig, bundle: Bundle) -> int:
    """Add INT8 to an encoder's bundle; return 0."""
    ignored = ("target_fpr", "success_label", "average_translations", "max_flips")
    refuse_ignored(config, ignored, "the bundle of an encoder")
    frames = load_frames(config.data, size=size_for(bundle.spec.image))
    parts = split_frames(frames, seed=int(bundle.spec.dataset.get("split_seed", 0)))
    print(f"INT8: {encoder_int8(bundle, frames, parts, config.int8)}")
    print(f"next: {to_train(bundle.path, bundle.spec)}")
    return 0


@dataclass(frozen=True)
class _Scores:
    """Logits (N, K) of all frames, and of the dead-camera frames of both parts."""

    frames: Floats
    dead: tuple[DeadLogits, DeadLogits]

    @staticmethod
    def mean(several: Sequence[_Scores]) -> _Scores:
        """Return the means."""
        first, second = (
            {family: _mean([each.dead[part][family] for each in several]) for family in dead}
            for part, dead in enumerate(several[0].dead)
        )
        return _Scores(_mean([each.frames for each in several]), (first, second))


def _mean(several: Sequence[Floats]) -> Floats:
    return np.asarray(np.mean(several, axis=0))


def _logits(
    backend: Backend, spec: BundleSpec, images: Images, progress: str = "", *, moved: int = 0
) -> Floats:
    """Return the logits (N, K) of images (N, H, W, 3), or of one of their translations."""
    from tqdm import tqdm

    starts = tqdm(range(0, len(images), BATCH), desc=progress, unit="batch", disable=not progress)
    batches = (images[start : start + BATCH] for start in starts)
    outputs = [backend.infer(translations(batch)[moved] if moved else batch) for batch in batches]
    return scores_of(np.concatenate(outputs), spec)


def _score_all(
    backend: Backend,
    spec: BundleSpec,
    dataset: Dataset,
    parts: tuple[Indices, Indices],
    words: str = "",
    moved: int = 0,
) -> _Scores:
    """Score the frames that choose the threshold, those that test it, and dead-camera frames."""
    score = partial(_logits, backend, spec, moved=moved)
    logits = np.zeros((len(dataset.labels), len(spec.labels)))  # of others never read
    for part, what in zip(parts, ("choose", "test"), strict=True):
        logits[part] = score(dataset.images[part], f"{what}{words}")
    choosing, test = parts
    dead = (
        logits_by_family(score, dataset, choosing, 1, SEED),
        logits_by_family(score, dataset, test, 2, SEED),
    )
    return _Scores(logits, dead)


def _evaluate(
    config: CalibrateConfig,
    bundle: Bundle,
    dataset: Dataset,
    parts: tuple[Indices, Indices],
    score: Callable[..., _Scores],
) -> Evaluation:
    """Choose the threshold and measure; name what the description of the network has wrong."""
    success = bundle.spec.success_index
    own = score()
    causes = tuple(_causes(bundle, dataset, own.frames, parts[0]))

    def evaluated(scores: _Scores) -> Evaluation:
        return evaluate(
            config.target_fpr,
            dataset,
            scores.frames,
            parts,
            scores.dead,
            success=success,
            falling=None,
        )

    try:
        result = None
        if config.average_translations:
            moved = score(", a pixel to the left", 1), score(", a pixel to the right", 2)
            means = _Scores.mean([own, *moved])
            result = _with_translations(evaluated, own, means, success, np.concatenate(parts))
        result = result or evaluated(own)
    except InputError as error:
        why = f" Try {'; '.join(causes)}." if causes else ""
        raise InputError(f"{error}{why}") from error
    verdict = dataclasses.replace(result.verdict, advice=(*causes, *result.verdict.advice))
    metrics = result.metrics | {"verdict": verdict.as_dict()}
    return dataclasses.replace(result, verdict=verdict, metrics=metrics)


def _with_translations(
    evaluated: Callable[[_Scores], Evaluation],
    own: _Scores,
    means: _Scores,
    success: int,
    measured: Indices,
) -> Evaluation | None:
    """Return an evaluation of translation averages with their band; None if they change nothing.

    The band holds every decision that the means change on the ``measured`` frames, so the network's
    own scores, which count beyond it, give the same rates. They also count there for the frames of
    a dead camera. If that would move the threshold, the band holds those frames, too.
    """
    result = evaluated(means)
    decision = result.decision

    def farthest(own: Floats, mean: Floats) -> float:
        """Return how far from the threshold the means change a decision, or 0."""
        heat, threshold = decision.temperature, decision.threshold
        before, after = (log_odds(each, success, heat) for each in (own, mean))
        changed = claimed(before, threshold) != claimed(after, threshold)
        distances = np.abs(before - logit(threshold))[changed]
        return float(np.nextafter(distances.max(), np.inf)) if changed.any() else 0.0  # it is open

    def near(logits: Floats) -> npt.NDArray[np.bool_]:
        odds = log_odds(logits, success, decision.temperature)
        return np.asarray(threshold_distance(odds, logit(decision.threshold)) < band)

    band = farthest(own.frames[measured], means.frames[measured])
    if band == 0:
        print("translation averages change no decision, so the network's own scores stay")
        return None
    pairs = list(zip(own.dead, means.dead, strict=True))
    first, second = (
        {name: np.where(near(each[name])[:, None], mean[name], each[name]) for name in each}
        for each, mean in pairs
    )
    with_own = evaluated(_Scores(means.frames, (first, second)))
    if with_own.decision == decision:
        result = with_own
    else:
        band = max(
            band, *(farthest(each[name], mean[name]) for each, mean in pairs for name in each)
        )
    print(
        f"translation averages count within {band:.3g} log-odds of the threshold: for "
        f"{near(own.frames[measured]).mean():.1%} of {len(measured)} frames"
    )
    decision = dataclasses.replace(decision, translation_band=band)
    return dataclasses.replace(result, decision=decision)


def _parts(
    config: CalibrateConfig, bundle: Bundle, dataset: Dataset
) -> tuple[Indices, Indices, str]:
    """Return the indices that choose the threshold, those that test it, and whether they are new.

    If the training part is new to the network too, it also chooses the threshold.
    """
    from vinoreward_training.classifier import training

    parts = split_by_episode(dataset)
    train, validation, test = parts
    weights = bundle.path / "model.safetensors"
    record = training.read_record(weights) if weights.name in bundle.spec.files else None
    remedy = f"capture with another --seed, and give that as --data instead of {config.data}"
    unseen = training.check_unseen(record, weights, dataset, parts, remedy)
    if record is None:
        known = bool(bundle.spec.dataset.get("sha256"))  # trained by finetune
        unseen = (
            "not known: nothing says what it was trained on. If on these images, the rates here "
            "are too good"
        )
    else:
        known = record.share_of(training.image_keys(dataset.images[train])) > training.TOLERATED
    choosing = validation if known else np.sort(np.concatenate([train, validation]))
    return choosing, test, unseen


def _causes(bundle: Bundle, dataset: Dataset, logits: Floats, part: Indices) -> Iterator[str]:
    """Yield what would make the network separate the frames ``part`` better, in options."""
    spec = bundle.spec
    some = np.concatenate([_sample(part[dataset.labels[part] == label]) for label in (0, 1)])
    images, truth = dataset.images[some], dataset.labels[some]

    def ranked(values: Floats, column: int) -> float:
        return roc_area(log_odds(values, column), truth)

    def after(described: BundleSpec, given: Images) -> float:
        other = dataclasses.replace(bundle, spec=described)
        with other.backend("openvino", precision="fp32", verify=False) as backend:
            return ranked(_logits(backend, spec, given), spec.success_index)

    by_label = [ranked(logits[some], column) for column in range(len(spec.labels))]
    before, best = by_label[spec.success_index], int(np.argmax(by_label))
    tried = {name: after(other, images) for name, other in other_images(spec)}
    if spec.image.in_graph:
        swapped = np.ascontiguousarray(images[..., ::-1])
        tried["red and blue swapped before the export"] = after(spec, swapped)
    name = max(tried, key=lambda each: tried[each])
    for cause, share in (
        (f"`success_label={spec.labels[best]}` (the label is inverted)", by_label[best]),
        (name, tried[name]),
    ):
        if share > max(WELL, before + CLEARLY) and 1 - share < (1 - before) / 2:
            remedy = f"import with {cause}: {share:.0%} of the pairs of a success and a failure"
            text = f"{remedy} are then ranked right, instead of {before:.0%}"
            yield InputError(text).as_options(_IMPORT_OPTIONS)


_IMPORT_OPTIONS = ("success_label", "scale", "mean", "std", "color_order")


def _sample(indices: Indices) -> Indices:
    """Return up to ``SAMPLE`` of the indices, evenly chosen."""
    places = np.linspace(0, len(indices) - 1, min(SAMPLE, len(indices))).astype(np.int64)
    return np.asarray(indices[places])


def _squeezed(dataset: Dataset, image: ImageSpec) -> str | None:
    """Return a note if the images lose their aspect ratio, None otherwise."""
    if not dataset.resized or image.crop is not None:
        return None
    height, width = read_image(dataset.folder / dataset.files[0]).shape[:2]
    if same_aspect((height, width), (image.height, image.width)):
        return None
    return (
        f"note: images of {height} x {width} are squeezed to {image.height} x {image.width} (height"
        " x width). If the network was trained on cut ones, import it with --crop."
    )


def _write(
    config: CalibrateConfig,
    bundle: Bundle,
    dataset: Dataset,
    test: Indices,
    result: Evaluation,
    golden: Golden,
    unseen: str,
    ood: OodFit,
) -> None:
    """Write the bundle with its new decision, metrics, golden frames and card."""
    from vinoreward_training.classifier.bundle import draw, sections_of

    spec, counts = bundle.spec, dataset.counts
    on = {"sha256": dataset.sha256, "counts": counts, "split": SPLIT, "capture": dataset.origin}
    before = dict(spec.dataset)
    alone = origin_of({**before, "scene": spec.image.scene})
    if alone is not None and "calibrated_on" not in before:
        # Its scene and environment become those of these images.
        before["trained_on"] = {"captures": [alone], **before.get("trained_on", {})}
    facts: dict[str, object] = {
        "network": f"{spec.architecture or 'from elsewhere'}, {spec.image.height}x"
        f"{spec.image.width} pixels, {spec.output}, FP32",
        "calibrated on": f"{counts['frames']} frames ({counts['episodes']} episodes in all), "
        f"dataset {dataset.sha256[:12]}",
        "frames new to the network": unseen,
        "guard": str(ood),
    }
    new = dataclasses.replace(
        spec,
        # INT8's gate compared decisions at the old threshold.
        decision=dataclasses.replace(result.decision, int8_band=None),
        quantization=None,
        metrics=spec.metrics | result.metrics | {"guard": ood.metrics},
        # The rates hold for what drew these images.
        image=dataclasses.replace(spec.image, scene=dataset.scene or spec.image.scene),
        dataset=before
        | recorded_task(read_about(config.data))
        | {"calibrated_on": on, "success_label": config.success_label},
    )
    intro = (
        "A success classifier: one camera image in, the probability of success out. Calibrated by"
        " `vinoreward calibrate`; use it with `vinoreward.LearnedReward(env, path)`."
    )
    with tempfile.TemporaryDirectory() as folder:
        drawn = draw(Path(folder), dataset, test, result)
        card = front_matter(new) + markdown(spec.name, intro, sections_of(result, facts, drawn))
        images = {path.name: path for path in drawn}
        changes = {INT8_FILE: None, GUARD_FILE: None, **ood.files}
        update_bundle(bundle, new, changes, golden, card, images)
    print(f"bundle {bundle.path}")
