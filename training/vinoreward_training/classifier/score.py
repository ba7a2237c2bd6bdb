"""``vinoreward score``: a probability, a success and a reward for each image of a dataset."""

from __future__ import annotations

import csv
import io
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
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
from vinoreward.files import open_plain, open_to_read, read_json, write_json, write_text
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
from vinoreward_training.data.tables import MAX_TABLE_BYTES
from vinoreward_training.runs.next_command import bundle_name
from vinoreward_training.runs.report import (
    Section,
    configuration,
    new_figure,
    save_figure,
    write_report,
)
from vinoreward_training.runs.run_folder import RunFolder

TABLE = "scores.csv"
ABOUT = "scores.json"
FORMAT = "vinoreward scores 2"
COLUMNS = ("file", "episode", "frame", "label", "probability", "ood_score", "success", "reward")
LABELS = {-1: "", 0: "failure", 1: "success"}
BATCH_SIZE = 32
IN_MEMORY = 64
"""Images that are read ahead."""
SETTINGS_OF_SCORES = (
    "camera", "label_column", "success_label", "success_reward",
    "step_reward", "backend", "on_ood",
)  # fmt: skip

Key = tuple[str, str, str]
"""File, episode and frame of an image; what is not known is empty."""
Images = npt.NDArray[np.uint8]


def run(config: ScoreConfig) -> int:
    """Score every image that has no score yet; return 0."""
    for name in ("success_reward", "step_reward"):
        value = getattr(config, name)
        if value is not None and not math.isfinite(value):
            raise ConfigError(field=name, value=value, expected="a finite number")
    with Classifier(
        config.bundle,
        backend=config.backend,
        device=config.device,
        precision="fp32",  # INT8 is checked for its decisions, not for the probabilities
        threshold=config.threshold,
        guarded=config.on_ood == "withhold",
    ) as classifier:
        spec = classifier.bundle.spec
        if is_lerobot(config.data):
            source = _of_recordings(config, spec.dataset.get("seed"))
        else:
            source = _of_files(config)
        # A link in somebody's dataset must not have us write elsewhere.
        name = bundle_name(Path(spec.name), "")
        out = inside(config.data, f"scores/{name}") if config.out is None else config.out
        identity = {
            "format": FORMAT,
            "bundle": {"name": spec.name, "sha256": classifier.bundle.sha256},
            "threshold": classifier.threshold,
            "settings": {name: getattr(config, name) for name in SETTINGS_OF_SCORES},
        }
        with RunFolder(out, config, resume=True) as folder:
            if not config.overwrite:
                _check_same(folder, identity)
            known = {} if config.overwrite else _read_table(folder / TABLE)
            write_json(folder / ABOUT, {**identity, "complete": False})
            try:
                scores = _score(config, source, classifier, folder / TABLE, known)
            except KeyboardInterrupt:
                how = "without --overwrite" if config.overwrite else "as it is"
                print(f"\nContinue with the same command, {how}; {TABLE} keeps what was scored.")
                raise
            figures = _publish(config, source, classifier, scores, folder)
            write_json(folder / ABOUT, {**identity, "complete": True, "figures": figures})
    print(f"scores {out / TABLE}, report {out / 'report.html'}")
    return 0


def _check_same(folder: Path, identity: Mapping[str, Any]) -> None:
    """Refuse to go on with scores of another bundle or other settings."""
    try:
        before = read_json(folder / ABOUT, 2**20)
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        before = None
    before = before if isinstance(before, dict) else {}
    if differing := [name for name in identity if before.get(name) != identity[name]]:
        raise ConfigError(
            f"{folder} holds scores with another {', '.join(differing)}. Expected the same to go "
            "on; choose another folder with `out`, or replace them with `overwrite`.",
            field="out",
        )


@dataclass(frozen=True)
class Source:
    """The images of a dataset, in the order of its table, and how to read them."""

    folder: Path
    keys: Sequence[Key]
    labels: Labels
    """``(N,)``, 1 for success, 0 for failure, -1 where there is none."""
    origin: str | None
    """What identifies the episodes, see :func:`origin_of`."""
    recordings: tuple[LeRobotFolder, list[Any]] | None = None

    @property
    def episodes(self) -> Labels:
        """``(N,)`` the number of each image's episode."""
        return np.array([int(key[1]) for key in self.keys], dtype=np.int64)

    def images(self, wanted: Sequence[int]) -> Iterator[tuple[int, Images]]:
        """Yield the index and the image ``(H, W, 3)`` uint8 RGB of each that is wanted."""
        if self.recordings is None:
            yield from self._files(wanted)
            return
        reader, every = self.recordings
        index = {self.keys[each][1:]: each for each in wanted}
        frames = []
        for rows in every:
            number = str(rows.episode.number)
            own = [n for n in range(rows.episode.length) if (number, str(n)) in index]
            frames.append((rows, own))
        for episode, frame, image in reader.images(frames):
            yield index[str(episode.number), str(frame)], image

    def _files(self, wanted: Sequence[int]) -> Iterator[tuple[int, Images]]:
        with ThreadPoolExecutor(max_workers=4) as pool:
            for start in range(0, len(wanted), IN_MEMORY):
                part = wanted[start : start + IN_MEMORY]
                paths = [inside(self.folder, self.keys[each][0]) for each in part]
                try:
                    yield from zip(part, pool.map(read_image, paths), strict=True)
                except InputError as error:
                    raise DatasetError(str(error)) from error


def _of_files(config: ScoreConfig) -> Source:
    """Return the images of a capture or of any image folder."""
    folder = config.data
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
    check_labels(folder, filter(None, names), config.success_label)
    known = config.success_label in names  # else the folders are no labels
    # What lies in no class folder has no label, as in a training.
    labels = np.array(
        [int(name == config.success_label) if known and name else -1 for name in names]
    )
    return Source(folder, keys, labels, origin_of(read_about(folder)) if is_capture else None)


def _of_recordings(config: ScoreConfig, seed: object) -> Source:
    """Return the images of a LeRobot dataset; ``seed`` is that of the bundle's capture."""
    reader = LeRobotFolder(config.data, config.camera)
    every, outcomes = read_outcomes(reader, labels_of(config, reader, needed=False))
    keys = [
        ("", str(rows.episode.number), str(frame))
        for rows in every
        for frame in range(rows.episode.length)
    ]
    shown = np.concatenate(outcomes).astype(np.int64)
    origin = origin_of({"scene": reader.scene, "seed": seed})
    return Source(config.data, keys, shown, origin, (reader, every))


@dataclass(frozen=True)
class Scores:
    """Probability and OOD score of images; NaN where they are not known."""

    probability: Floats
    """``(N,)``."""
    ood_score: Floats
    """``(N,)``, above 1 for out of distribution; NaN without an OOD detector too."""
    threshold: float

    @property
    def claimed(self) -> npt.NDArray[np.bool_]:
        """``(N,)`` probable enough, and not out of distribution."""
        # In the precision in which a wrapper compares them.
        probable = self.probability.astype(np.float32) >= np.float32(self.threshold)
        return np.asarray(probable & ~(self.ood_score > 1.0))

    def __getitem__(self, chosen: Any) -> Scores:
        """Return those of some images."""
        return Scores(self.probability[chosen], self.ood_score[chosen], self.threshold)


def _read_table(path: Path) -> dict[Key, tuple[float, float]]:
    """Return probability and OOD score by image, without a last row that a kill cut off."""
    known: dict[Key, tuple[float, float]] = {}
    try:
        with open_to_read(path, 4 * MAX_TABLE_BYTES) as stream:
            data = stream.read()
        whole = data[: data.rfind(b"\n") + 1].decode("utf-8")
        for row in csv.DictReader(io.StringIO(whole, newline=""), restkey="more"):
            probability, ood_score = float(row["probability"]), float(row["ood_score"] or "nan")
            if "more" in row or not 0 <= probability <= 1 or ood_score < 0:
                raise ValueError(f"{row} is no score")
            known[row["file"], row["episode"], row["frame"]] = probability, ood_score
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, KeyError, csv.Error) as error:
        raise DatasetError(
            f"{path}: {error}. Expected what vinoreward score wrote; score anew with `overwrite`."
        ) from error
    return known


def _score(
    config: ScoreConfig,
    source: Source,
    classifier: Classifier,
    table: Path,
    known: Mapping[Key, tuple[float, float]],
) -> Scores:
    """Score what is not known and write the table; return the scores of all.

    Rows are added as they are made, so that a stopped run goes on.
    """
    from tqdm import tqdm

    keys, nothing = source.keys, (np.nan, np.nan)
    done = np.array([known.get(key, nothing) for key in keys], np.float64).reshape(-1, 2)
    scores = Scores(done[:, 0], done[:, 1], classifier.threshold)
    batch: list[tuple[int, Images]] = []

    def written(indices: Sequence[int]) -> str:
        text = io.StringIO(newline="")
        rows = _rows(config, source, scores, np.asarray(indices, np.int64))
        csv.writer(text, lineterminator="\n").writerows(rows)
        return text.getvalue()

    def write_all() -> None:
        scored = np.flatnonzero(~np.isnan(scores.probability)).tolist()
        write_text(table, ",".join(COLUMNS) + "\n" + written(scored))

    def flush() -> None:
        if not batch:
            return
        try:
            found = classifier.predict(np.stack([image for _, image in batch]))
        except (InputError, ImageMismatchError) as error:
            key = keys[batch[0][0]]
            where = f"{source.folder}, {key[0] or f'episode {key[1]}, frame {key[2]}'}"
            raise DatasetError(f"{shown_name(where)}: {error}") from error
        ood_scores = [np.nan] * len(batch) if found.ood_score is None else found.ood_score
        for (index, _), value, ood in zip(batch, found.probability, ood_scores, strict=True):
            done[index] = float(f"{value:.9g}"), float(f"{ood:.9g}")
        with open_plain(table, "ab") as stream:
            stream.write(written([index for index, _ in batch]).encode("utf-8"))
        bar.update(len(batch))
        batch.clear()

    write_all()
    wanted = np.flatnonzero(np.isnan(scores.probability)).tolist()
    with tqdm(total=len(keys), initial=len(keys) - len(wanted), desc="score", unit="frame") as bar:
        for index, image in source.images(wanted):
            if batch and (len(batch) >= BATCH_SIZE or batch[0][1].shape != image.shape):
                flush()
            batch.append((index, image))
        flush()
    write_all()
    return scores


def _rows(
    config: ScoreConfig, source: Source, scores: Scores, chosen: npt.NDArray[np.int64]
) -> Iterator[list[str]]:
    """Yield the table's row of each chosen image."""
    some = scores[chosen]
    for index, probability, ood_score, success in zip(
        chosen, some.probability, some.ood_score, some.claimed, strict=True
    ):
        reward = config.success_reward if success else config.step_reward
        label = LABELS[int(source.labels[index])]
        ood = "" if np.isnan(ood_score) else f"{ood_score:.9g}"
        numbers = f"{probability:.9g}", ood, str(int(success)), f"{reward:g}"
        yield [*source.keys[index], label, *numbers]


def _publish(
    config: ScoreConfig,
    source: Source,
    classifier: Classifier,
    scores: Scores,
    folder: Path,
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
        figures["ood_score"] = int((scores.ood_score > 1.0).sum())
        print(f"{figures['ood_score']} of them are out of distribution and no success.")
    sections = [Section("Claims", facts=dict(figures))]
    labelled = source.labels >= 0
    spec = classifier.bundle.spec
    labelled[labelled], note = find_new_frames(spec, episodes[labelled], source.origin)
    title = f"Scores of {classifier.bundle.spec.name}"
    with tempfile.TemporaryDirectory() as drawn:
        if labelled.any() and len(np.unique(source.labels[labelled])) == 2:
            values = scores[labelled], source.labels[labelled], episodes[labelled]
            parts, more = _against_labels(*values, note, Path(drawn))
            figures |= more
            sections += parts
        else:
            note = "There are no labels, so nothing says which of the claims are right."
            if labelled.any():
                note = "All labels are the same, so there are no rates to compare."
            sections.append(Section("Against the labels", note))
        print(note)
        sections.append(configuration(config))
        write_report(folder / "report.html", title, sections)
    return figures


def _against_labels(
    scores: Scores, labels: Labels, episodes: Labels, note: str, folder: Path
) -> tuple[list[Section], dict[str, Any]]:
    with needed_for("rates and their report", "train"):  # the scores are written by now
        from vinoreward_training.classifier.bundle import draw_curves

    probabilities, claimed = scores.probability, scores.claimed
    # Finite where the probability rounds to 0 or 1.
    inner = np.clip(probabilities, 1e-9, 1 - 1e-9)
    log_odds = np.log(inner) - np.log1p(-inner)
    frames, by_episode = rates(claimed, labels), episode_rates(claimed, labels, episodes)
    table = reliability(probabilities, labels)
    facts = {
        "area under ROC": roc_area(probabilities, labels),
        "average precision": average_precision(probabilities, labels),
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
    print(
        f"area under ROC {facts['area under ROC']:.4f}, calibration error "
        f"{facts['calibration error']:.4f}"
    )
    images = [
        *draw_curves(folder, log_odds, labels, logit(scores.threshold), "frames with a label"),
        _draw_reliability(folder / "calibration.png", table),
    ]
    counts = [
        {"counted by": "episode", **asdict(by_episode)},
        {"counted by": "frame", **asdict(frames)},
    ]
    return [
        Section("Against the labels", f"{note}\n\n{sentence}", counts, facts=facts),
        Section("Calibration", rows=table),
        Section("Curves", images=images),
    ], figures


def _in_words(found: Rates) -> str:
    return (
        f"recall {found.true_positives} of {found.successes} ({found.recall_low:.1%} to "
        f"{found.recall_high:.1%}), false claims {found.false_positives} of {found.failures} (at "
        f"most {found.fpr_high:.1%})"
    )


def _draw_reliability(path: Path, table: Sequence[Mapping[str, Any]]) -> Path:
    """Draw the share of successes over the probability, with its intervals."""
    figure = new_figure()
    axes = figure.add_subplot()
    at = np.array([row["mean probability"] for row in table])
    share = np.array([row["share of successes"] for row in table])
    below = share - np.array([row["low"] for row in table])
    above = np.array([row["high"] for row in table]) - share
    axes.plot([0, 1], [0, 1], color="#999999", linewidth=1)
    axes.errorbar(at, share, yerr=np.maximum(0, [below, above]), fmt="o", color="#0068b5")
    axes.set(
        xlabel="probability", ylabel="share of successes", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02),
        title="calibration, with 95 % intervals by frame",
    )  # fmt: skip
    axes.grid(alpha=0.3)
    return save_figure(figure, path)
