"""``vinoreward score``: a probability and a decision for each image of a dataset."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.errors import (
    ConfigError,
    DatasetError,
    ImageMismatchError,
    InputError,
    needed_for,
)
from vinoreward.files import write_json
from vinoreward.images import read_image, shown_name
from vinoreward.rewards.classifier import Classifier, logit
from vinoreward_training.classifier.evaluation import (
    Floats,
    Labels,
    Rates,
    average_precision,
    calibration_error,
    episode_rates,
    log_loss,
    rates,
    reliability,
    roc_area,
)
from vinoreward_training.configs import ScoreConfig
from vinoreward_training.data.dataset import check_folder
from vinoreward_training.data.dataset_files import (
    METADATA,
    check_labels,
    images_below,
    inside,
    read_about,
    read_metadata,
)
from vinoreward_training.data.lerobot import LeRobotFolder, is_lerobot
from vinoreward_training.data.provenance import find_new_frames, origin_of
from vinoreward_training.data.recordings import labels_of, read_outcomes
from vinoreward_training.data.tables import write_table
from vinoreward_training.runs.next_command import bundle_name
from vinoreward_training.runs.report import Section, configuration, write_report
from vinoreward_training.runs.run_folder import ensure_dir

TABLE = "scores.csv"
ABOUT = "scores.json"
COLUMNS = ("file", "episode", "frame", "label", "probability", "ood_score", "success")
LABELS = {-1: "", 0: "failure", 1: "success"}
BATCH_SIZE = 32
BATCH_BYTES = 64 * 2**20
"""Of the images of one inference."""

Key = tuple[str, str, str]
"""File, episode and frame of an image; what is not known is empty."""
Images = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Source:
    """The images of a dataset."""

    folder: Path
    keys: Sequence[Key]
    labels: Labels
    """``(N,)``, 1 for success, 0 for failure, -1 where there is none."""
    origin: str | None
    """What identifies the episodes, see :func:`origin_of`."""
    images: Iterable[tuple[int, Images]]
    """The number of each and the image ``(H, W, 3)`` uint8 RGB, read when it is asked for."""

    @property
    def episodes(self) -> Labels:
        """``(N,)`` the number of each image's episode."""
        return np.array([int(key[1]) for key in self.keys], dtype=np.int64)


@dataclass(frozen=True)
class Scores:
    """Probability, OOD score and decision of N images."""

    probability: Floats
    """``(N,)``."""
    ood_score: Floats
    """``(N,)``, above 1 for out of distribution; NaN without an OOD detector."""
    claimed: npt.NDArray[np.bool_]
    """``(N,)`` probable enough, and not out of distribution."""


def run(config: ScoreConfig) -> int:
    """Score every image, write table and report; return 0."""
    with Classifier(
        config.bundle,
        precision="fp32",  # INT8 is checked for its decisions, not for the probabilities
        threshold=config.threshold,
    ) as classifier:
        spec = classifier.bundle.spec
        # A link in somebody's dataset must not have us write elsewhere.
        name = bundle_name(Path(spec.name), "")
        out = inside(config.data, f"scores/{name}") if config.out is None else config.out
        if (out / TABLE).exists() and not config.overwrite:
            raise ConfigError(
                field="out",
                value=str(out),
                expected="a folder without scores",
                remedy="choose another, or add `overwrite` to replace them",
            )
        if is_lerobot(config.data):
            source = _of_recordings(config, spec.dataset.get("seed"))
        else:
            source = source_of_files(config.data, config.success_label)
        scores = score(source, classifier)
        rows = [
            {
                **dict(zip(COLUMNS, (*key, LABELS[label]), strict=False)),
                "probability": f"{probability:.9g}",
                "ood_score": "" if np.isnan(ood_score) else f"{ood_score:.9g}",
                "success": int(success),
            }
            for key, label, probability, ood_score, success in zip(
                source.keys, source.labels.tolist(), scores.probability, scores.ood_score,
                scores.claimed, strict=True,
            )
        ]  # fmt: skip
        write_table(ensure_dir(out) / TABLE, COLUMNS, rows)
        about = {
            "bundle": {"name": spec.name, "sha256": classifier.bundle.sha256},
            "threshold": classifier.threshold,
            "figures": _publish(config, source, classifier, scores, out),
        }
        write_json(out / ABOUT, about)
    print(f"scores {out / TABLE}, report {out / 'report.html'}")
    return 0


def source_of_files(folder: Path, success_label: str) -> Source:
    """Return the images of a capture or of any image folder."""
    check_folder(folder, "an image folder")
    is_capture = (folder / METADATA).is_file()
    if is_capture:
        rows = list(read_metadata(folder))
        names = [row["label"] for row in rows]
        keys = [(row["file"], str(int(row["episode"])), "") for row in rows]
    else:
        files = images_below(folder)
        names = [Path(file).parts[0] if "/" in file else "" for file in files]
        keys = [(file, str(number), "") for number, file in enumerate(files)]
    if not keys:
        raise DatasetError(
            f"{folder} holds no images. Expected some to score; give another folder with `data`.",
            field="data",
        )
    check_labels(folder, filter(None, names), success_label)
    known = success_label in names  # else the folders are no labels
    # What lies in no class folder has no label, as in a training.
    labels = np.array([int(name == success_label) if known and name else -1 for name in names])
    paths = [inside(folder, key[0]) for key in keys]
    origin = origin_of(read_about(folder)) if is_capture else None
    return Source(folder, keys, labels, origin, enumerate(_read(paths)))


def _read(paths: Sequence[Path]) -> Iterator[Images]:
    """Read image files in a few threads, a batch ahead."""
    with ThreadPoolExecutor(max_workers=4) as pool:
        for start in range(0, len(paths), BATCH_SIZE):
            try:
                yield from pool.map(read_image, paths[start : start + BATCH_SIZE])
            except InputError as error:
                raise DatasetError(str(error)) from error


def _of_recordings(config: ScoreConfig, seed: object) -> Source:
    """Return the images of a LeRobot dataset; ``seed`` is that of the bundle's capture."""
    reader = LeRobotFolder(config.data, config.camera)
    every, outcomes = read_outcomes(reader, labels_of(config, reader, needed=False))
    frames = [(rows, list(range(rows.episode.length))) for rows in every]
    keys = [("", str(rows.episode.number), str(each)) for rows, own in frames for each in own]
    labels = np.concatenate(outcomes).astype(np.int64)
    origin = origin_of({"scene": reader.scene, "seed": seed})
    numbers = {key: number for number, key in enumerate(keys)}  # images come in the files' order
    images = (
        (numbers["", str(episode.number), str(frame)], image)
        for episode, frame, image in reader.images(frames)
    )
    return Source(config.data, keys, labels, origin, images)


def score(source: Source, classifier: Classifier) -> Scores:
    """Score all images of a source, under a progress bar.

    DatasetError: an image that cannot be read, or of another size than the classifier takes.
    """
    from tqdm import tqdm

    probability, ood_score = (np.full(len(source.keys), np.nan) for _ in range(2))
    for part, images in batches(tqdm(source.images, "score", len(source.keys), unit="frame")):
        try:
            found = classifier.predict(images)
        except (InputError, ImageMismatchError) as error:
            file, episode, frame = source.keys[part[0]]
            where = f"{source.folder}, {file or f'episode {episode}, frame {frame}'}"
            raise DatasetError(f"{shown_name(where)}: {error}") from error
        probability[part] = found.probability
        if found.ood_score is not None:
            ood_score[part] = found.ood_score
    # In the precision in which a wrapper compares them.
    probable = probability.astype(np.float32) >= np.float32(classifier.threshold)
    return Scores(probability, ood_score, probable & ~(ood_score > 1.0))


def batches(images: Iterable[tuple[int, Images]]) -> Iterator[tuple[list[int], Images]]:
    """Yield numbers and images (N, H, W, 3) of one size, few enough at a time."""
    numbers, batch = list[int](), list[Images]()
    for number, image in images:
        full = len(batch) >= BATCH_SIZE or image.nbytes * (len(batch) + 1) > BATCH_BYTES
        if batch and (full or batch[0].shape != image.shape):
            yield numbers, np.stack(batch)
            numbers, batch = [], []
        numbers.append(number)
        batch.append(image)
    if batch:
        yield numbers, np.stack(batch)


def _publish(
    config: ScoreConfig, source: Source, classifier: Classifier, scores: Scores, out: Path
) -> dict[str, Any]:
    """Print and report what the scores show; return the figures."""
    claimed, episodes = scores.claimed, source.episodes
    figures: dict[str, Any] = {
        "frames": len(claimed),
        "claimed": int(claimed.sum()),
        "episodes": len(np.unique(episodes)),
        "claimed episodes": len(np.unique(episodes[claimed])),
    }
    print(
        f"{figures['claimed']} of {figures['frames']} images are claimed as successes, in "
        f"{figures['claimed episodes']} of {figures['episodes']} episodes."
    )
    if classifier.guard is not None:
        figures["out of distribution"] = int((scores.ood_score > 1.0).sum())
        print(f"{figures['out of distribution']} images are out of distribution: no success.")
    sections = [Section("Claims", facts=dict(figures))]
    labelled = source.labels >= 0
    spec = classifier.bundle.spec
    labelled[labelled], note = find_new_frames(spec, episodes[labelled], source.origin)
    with tempfile.TemporaryDirectory() as figures_folder:
        if len(np.unique(source.labels[labelled])) == 2:
            chosen = Scores(*(getattr(scores, name)[labelled] for name in vars(scores)))
            values = source.labels[labelled], episodes[labelled], classifier.threshold
            parts, more = _against_labels(chosen, *values, note, Path(figures_folder))
            figures |= more
            sections += parts
        else:
            note = "There are no labels of both kinds, so nothing says which claims are right."
            sections.append(Section("Against the labels", note))
        print(note)
        sections.append(configuration(config))
        write_report(out / "report.html", f"Scores of {spec.name}", sections)
    return figures


def _against_labels(
    scores: Scores, labels: Labels, episodes: Labels, threshold: float, note: str, folder: Path
) -> tuple[list[Section], dict[str, Any]]:
    """Return the report's sections on the labels, and the figures in them."""
    with needed_for("rates and their report", "train"):  # the scores are written by now
        from vinoreward_training.classifier.bundle import draw_curves

    # Finite where the probability rounds to 0 or 1.
    inner = np.clip(scores.probability, 1e-9, 1 - 1e-9)
    log_odds = np.log(inner) - np.log1p(-inner)
    frames = rates(scores.claimed, labels)
    by_episode = episode_rates(scores.claimed, labels, episodes)
    table = reliability(scores.probability, labels)
    facts = {
        "area under ROC": roc_area(scores.probability, labels),
        "average precision": average_precision(scores.probability, labels),
        "calibration error": calibration_error(table),
        "log loss": log_loss(log_odds, labels),
    }
    figures = {
        "labelled": {"frames": len(labels), "episodes": len(np.unique(episodes)), "note": note},
        "by frame": asdict(frames),
        "by episode": asdict(by_episode),
        **facts,
        "reliability": table,
    }
    sentence = (
        f"by episode: {_in_words(by_episode)}; by frame: {_in_words(frames)}. Intervals are 95 % "
        "Clopper-Pearson's."
    )
    print(sentence)
    counts = [
        {"counted by": "episode", **asdict(by_episode)},
        {"counted by": "frame", **asdict(frames)},
    ]
    curves = [*draw_curves(folder, log_odds, labels, logit(threshold), "frames with a label")]
    return [
        Section("Against the labels", f"{note}\n\n{sentence}", counts, facts=facts),
        Section("Calibration", rows=table),
        Section("Curves", images=curves),
    ], figures


def _in_words(found: Rates) -> str:
    return (
        f"recall {found.true_positives} of {found.successes} ({found.recall_low:.1%} to "
        f"{found.recall_high:.1%}), false claims {found.false_positives} of {found.failures} (at "
        f"most {found.fpr_high:.1%})"
    )
