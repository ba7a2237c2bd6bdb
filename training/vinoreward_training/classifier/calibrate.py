"""``vinoreward calibrate``: threshold, error rates, OOD detector and INT8 of any classifier."""

from __future__ import annotations

import dataclasses
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from vinoreward.backends.base import Backend
from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.golden import Golden
from vinoreward.bundles.locate import GUARD_FILE, INT8_FILE
from vinoreward.bundles.schema import BundleSpec
from vinoreward.errors import ConfigError, needed_for
from vinoreward.rewards.classifier import scores_of
from vinoreward_training.classifier.evaluation import Evaluation, Floats, evaluate
from vinoreward_training.classifier.finetune import check_sample_size, conclude
from vinoreward_training.classifier.ood import OodFit, fit_bundle_ood
from vinoreward_training.configs import CalibrateConfig
from vinoreward_training.data.dataset import (
    Dataset,
    Images,
    load_frames,
    load_labelled,
    size_for,
    split_by_episode,
    split_frames,
)
from vinoreward_training.data.dataset_files import Indices, read_about
from vinoreward_training.data.provenance import SPLIT, origin_of
from vinoreward_training.quantize.int8 import encoder_int8
from vinoreward_training.runs.bundles import front_matter, update_bundle
from vinoreward_training.runs.next_command import to_train
from vinoreward_training.runs.report import markdown, own_bundle
from vinoreward_training.runs.settings import refuse_ignored
from vinoreward_training.tasks.recorded import recorded_task

BATCH = 32


def run(config: CalibrateConfig) -> int:
    """Calibrate, measure and write the bundle; return 0, or ``USELESS`` after that verdict."""
    with needed_for("calibration", "train"):
        # Here, as it imports torch; and before the data are read.
        from vinoreward_training.classifier.judged import calibrate_judge, calibrate_scores
    named = [name for name in ("bundle", "judge", "scores") if getattr(config, name) is not None]
    if len(named) != 1:
        raise ConfigError(
            f"found {' and '.join(f'`{name}`' for name in named) or 'nothing to calibrate'}. "
            "Expected one of `bundle`, `judge` and `scores`; name what to calibrate.",
            field=(*named, "bundle")[0],
        )
    if config.judge is not None:
        return calibrate_judge(config, config.judge)
    if config.scores is not None:
        return calibrate_scores(config, config.scores)
    refuse_ignored(config, ("max_calls",), "a bundle")
    if config.bundle is None or config.data is None:
        raise ConfigError(field="data", value=None, expected="labelled images for a bundle")
    return _bundle(config, own_bundle(config.bundle), config.data)


def _bundle(config: CalibrateConfig, bundle: Bundle, data: Path) -> int:
    """Calibrate a bundle; return the exit status."""
    from vinoreward_training.classifier.bundle import golden_of, print_result

    if bundle.spec.kind == "encoder":
        return _encoder(config, bundle, data)
    spec = bundle.spec
    dataset = load_labelled(data, spec.image, config.success_label)
    choosing, test, unseen = _parts(config, bundle, dataset)
    check_sample_size(config, dataset, choosing)
    print(f"{len(choosing)} frames choose the threshold, {len(test)} test it")
    print(f"frames new to the network: {unseen}")
    with bundle.backend("openvino", precision="fp32") as backend:
        score = partial(_logits, backend, spec)
        parts = choosing, test
        result = evaluate(score, dataset, parts, config.target_fpr, success=spec.success_index)
        golden = dataset.images[test[golden_of(dataset.labels[test], result)]]
        outputs = backend.infer(golden)
    decided = dataclasses.replace(spec, decision=result.decision)
    ood = fit_bundle_ood(dataclasses.replace(bundle, spec=decided), dataset)
    _write(config, bundle, dataset, test, result, Golden(golden, outputs), unseen, ood)
    print_result(result, ood)
    return conclude(config, dataset, bundle.path, result.verdict)


def _encoder(config: CalibrateConfig, bundle: Bundle, data: Path) -> int:
    """Add INT8 to an encoder's bundle; return 0."""
    refuse_ignored(config, ("target_fpr", "success_label"), "the bundle of an encoder")
    frames = load_frames(data, size=size_for(bundle.spec.image))
    parts = split_frames(frames, seed=int(bundle.spec.dataset.get("split_seed", 0)))
    print(f"INT8: {encoder_int8(bundle, frames, parts, config.int8)}")
    print(f"next: {to_train(bundle.path, bundle.spec)}")
    return 0


def _logits(backend: Backend, spec: BundleSpec, images: Images) -> Floats:
    """Return the logits (N, K) of images (N, H, W, 3); shows its progress if they are many."""
    from tqdm import tqdm

    few = len(images) < 100 * BATCH
    starts = tqdm(range(0, len(images), BATCH), unit="batch", disable=True if few else None)
    outputs = [backend.infer(images[start : start + BATCH]) for start in starts]
    return np.asarray(scores_of(np.concatenate(outputs), spec))


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
        | recorded_task(read_about(dataset.folder))
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
