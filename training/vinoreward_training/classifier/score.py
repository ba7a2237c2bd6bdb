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
    EpisodeRates,
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
from vinoreward_training.data.recordings import labels_of, shown_by
from vinoreward_training.data.tables import MAX_TABLE_BYTES
from vinoreward_training.runs.next_command import bundle_name
from vinoreward_training.runs.report import Section, configuration, new_figure, save_figure
from vinoreward_training.runs.report import write_report as write_html
from vinoreward_training.runs.run_folder import RunFolder

COLUMN = "scores.csv"
ABOUT = "scores.json"
FORMAT = "vinoreward scores 2"
NAMES = ("file", "episode", "frame", "label", "probability", "ood_score", "success", "reward")
LABELS = {-1: "", 0: "failure", 1: "success"}
_KEY = 3
"""Of these columns, the first so many say which image it is."""

Key = tuple[str, str, str]
Images = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Source:
    """The images of a dataset, in the order of its table, and how to read them."""

    folder: Path
    keys: Sequence[Key]
    """File, episode and frame of each; what is not known is empty."""
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
            for start in range(0, len(wanted), 64):  # so few are in memory at once
                part = wanted[start : start + 64]
                paths = [inside(self.folder, self.keys[each][0]) for each in part]
                try:
                    yield from zip(part, pool.map(read_image, paths), strict=True)
                except InputError as error:
                    raise DatasetError(str(error)) from error


def _of_files(config: ScoreConfig) -> Source:
    """Return the images of a capture or of any image folder."""
    folder = config.data
    check_folder(folder, "an image folder")
    if (folder / METADATA).is_file():
        rows = list(read_metadata(folder))
        names = [row["label"] for row in rows]
        keys = [(row["file"], str(int(row["episode"])), "") for row in rows]
    else:
        files = images_below(folder)
        names = [Path(file).parts[0] if "/" in file else "" for file in files]
        keys = [(file, str(number), "") for number, file in enumerate(files)]
    if not keys:
        raise DatasetError(
            f"{folder} holds no images. Expected some to score; give another folder with --data."
        )
    check_labels(folder, filter(None, names), config.success_label)
    known = config.success_label in names  # else the folders are no labels
    # What lies in no class folder has no label, as in a training.
    labels = np.array(
        [int(name == config.success_label) if known and name else -1 for name in names]
    )
    about = read_about(folder)
    origin = origin_of(about) if (folder / METADATA).is_file() else None
    return Source(folder, keys, labels, origin)


def _of_recordings(config: ScoreConfig, seed: object) -> Source:
    """Return the images of a LeRobot dataset; ``seed`` is that of the bundle's capture."""
    reader = LeRobotFolder(config.data, config.camera)
    labels = labels_of(config, reader, needed=False)
    every, outcomes = shown_by(config, reader, labels)
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
    """What network and guard say of images; NaN where they have not been asked."""

    probability: Floats
    """``(N,)``."""
    ood_score: Floats
    """``(N,)`` how strange each is, above 1 for out of distribution; NaN without a guard too."""
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


class _Column:
    """The file of scores: rows are added as they are made, so that a stopped run goes on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[Key, tuple[float, float]] = {}
        """Probability and oddness of each image that has a score."""

    def read(self) -> None:
        """Read the rows that are there, without one that a kill cut off."""
        try:
            with open_to_read(self.path, 4 * MAX_TABLE_BYTES) as stream:
                data = stream.read()
                # A kill may have cut the last row, within a letter too.
                whole = data[: data.rfind(b"\n") + 1].decode("utf-8")
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise self._wrong(str(error)) from error
        try:
            for row in csv.reader(io.StringIO(whole, newline="")):
                if len(row) != len(NAMES):
                    raise ValueError(f"a row has {len(row)} cells")
                if row[_KEY + 1] != NAMES[_KEY + 1]:
                    probability = float(row[_KEY + 1])
                    if not 0 <= probability <= 1:
                        raise ValueError(f"{probability} is no probability")
                    ood_score = float(row[_KEY + 2]) if row[_KEY + 2] else np.nan
                    if ood_score < 0:
                        raise ValueError(f"{ood_score} is below 0")
                    self.known[row[0], row[1], row[2]] = probability, ood_score
        except (csv.Error, ValueError) as error:
            raise self._wrong(str(error)) from error

    def _wrong(self, why: str) -> DatasetError:
        return DatasetError(
            f"{self.path}: {why}. Expected what vinoreward score wrote; score anew with "
            "--overwrite."
        )

    def rewrite(self, rows: Sequence[Sequence[str]]) -> None:
        """Write the whole file, atomically."""
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows([NAMES, *rows])
        write_text(self.path, text.getvalue())

    def add(self, rows: Sequence[Sequence[str]]) -> None:
        """Append rows."""
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(rows)
        with open_plain(self.path, "ab") as stream:
            stream.write(text.getvalue().encode("utf-8"))


def run(config: ScoreConfig) -> int:
    """Score every image that has no score yet; return 0."""
    rewards = config.success_reward, config.step_reward, config.label_above or 0.0
    if not all(map(math.isfinite, rewards)) or config.batch_size < 1:
        raise ConfigError(
            f"found --success-reward {config.success_reward}, --step-reward {config.step_reward}, "
            f"--label-above {config.label_above} and --batch-size {config.batch_size}. Expected "
            "finite numbers, and at least 1 image per inference."
        )
    with Classifier(
        config.bundle,
        backend=config.backend,
        device=config.device,
        precision=config.precision,
        threshold=config.threshold,
        guarded=config.on_ood == "withhold",
    ) as classifier:
        spec = classifier.bundle.spec
        if is_lerobot(config.data):
            source = _of_recordings(config, spec.dataset.get("seed"))
        else:
            source = _of_files(config)
        name = bundle_name(Path(spec.name), "")
        # A link in somebody's dataset must not have us write elsewhere.
        out = inside(config.data, f"scores/{name}") if config.out is None else config.out
        identity = _identity(config, classifier)
        how = "without --overwrite" if config.overwrite else "as it is"
        line = f"\nContinue with the same command, {how}; {COLUMN} keeps what was scored."
        with RunFolder(out, config, resume=True) as folder:
            column = _Column(folder / COLUMN)
            _check_same(config, folder, identity)
            if not config.overwrite:
                column.read()
            write_json(folder / ABOUT, {**identity, "complete": False})
            try:
                scores = _score(config, source, classifier, column)
            except KeyboardInterrupt:
                print(line)
                raise
            figures = _publish(config, source, classifier, scores, folder)
            write_json(folder / ABOUT, {**identity, "complete": True, "figures": figures})
    print(f"scores {out / COLUMN}, report {out / 'report.html'}")
    return 0


def _identity(config: ScoreConfig, classifier: Classifier) -> dict[str, Any]:
    """Return what decides the scores, beside the images."""
    settings = (
        "camera", "label_column", "label_above", "label_frame", "success_label", "success_reward",
        "step_reward", "backend", "precision", "on_ood",
    )  # fmt: skip
    return {
        "format": FORMAT,
        "bundle": {"name": classifier.bundle.spec.name, "sha256": classifier.bundle.sha256},
        "threshold": classifier.threshold,
        "settings": {name: getattr(config, name) for name in settings},
    }


def _check_same(config: ScoreConfig, folder: Path, identity: Mapping[str, Any]) -> None:
    """Refuse to go on with scores that were made otherwise."""
    path = folder / ABOUT
    try:
        before = read_json(path, 2**20)
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        before = None
    differing = [
        name
        for name in ("format", "bundle", "threshold", "settings")
        if not isinstance(before, dict) or before.get(name) != identity[name]
    ]
    if differing and not config.overwrite:
        raise ConfigError(
            f"{folder} holds scores with another {', '.join(differing)}. Expected the same to go "
            "on; choose another folder with --out, or replace them with --overwrite."
        )


def _score(config: ScoreConfig, source: Source, classifier: Classifier, column: _Column) -> Scores:
    """Score what is not in the column; return what is known of all."""
    from tqdm import tqdm

    keys, nothing = source.keys, (np.nan, np.nan)
    done = np.array([column.known.get(key, nothing) for key in keys], np.float64).reshape(-1, 2)
    scores = Scores(done[:, 0], done[:, 1], classifier.threshold)

    def rows(indices: Sequence[int]) -> list[list[str]]:
        chosen = np.asarray(indices, np.int64)
        return list(_rows(config, source, scores, chosen))

    column.rewrite(rows(_there(done)))
    wanted = np.flatnonzero(np.isnan(scores.probability)).tolist()
    batch: list[tuple[int, Images]] = []

    def flush() -> None:
        if not batch:
            return
        try:
            judged = classifier.predict(np.stack([image for _, image in batch]))
        except (InputError, ImageMismatchError) as error:
            key = keys[batch[0][0]]
            where = f"{source.folder}, {key[0] or f'episode {key[1]}, frame {key[2]}'}"
            raise DatasetError(f"{shown_name(where)}: {error}") from error
        ood_score = [np.nan] * len(batch) if judged.ood_score is None else judged.ood_score
        for (index, _), value, strange in zip(batch, judged.probability, ood_score, strict=True):
            done[index] = float(f"{value:.9g}"), float(f"{strange:.9g}")
        column.add(rows([index for index, _ in batch]))
        bar.update(len(batch))
        batch.clear()

    with tqdm(total=len(keys), initial=len(keys) - len(wanted), desc="score", unit="frame") as bar:
        for index, image in source.images(wanted):
            if batch and (len(batch) >= config.batch_size or batch[0][1].shape != image.shape):
                flush()
            batch.append((index, image))
        flush()
    column.rewrite(rows(_there(done)))
    return scores


def _there(done: Floats) -> list[int]:
    return [int(each) for each in np.flatnonzero(~np.isnan(done[:, 0]))]


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
        strange = "" if np.isnan(ood_score) else f"{ood_score:.9g}"
        numbers = f"{probability:.9g}", strange, str(int(success)), f"{reward:g}"
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
        print(
            f"{figures['ood_score']} of them are out of distribution for the bundle's "
            "guard and are no success."
        )
    sections = [Section("Claims", facts=dict(figures))]
    judged = source.labels >= 0
    judged[judged], note = find_new_frames(classifier.bundle.spec, episodes[judged], source.origin)
    with tempfile.TemporaryDirectory() as drawn:
        if not judged.any():
            note = "There are no labels, so nothing says which of the claims are right."
            sections.append(Section("Against the labels", note))
        elif len(np.unique(source.labels[judged])) < 2:
            note = "All labels are the same, so there are no rates to compare."
            sections.append(Section("Against the labels", note))
        else:
            values = scores[judged], source.labels[judged], episodes[judged]
            parts, more = _against_labels(*values, note, Path(drawn))
            figures |= more
            sections += parts
        print(note)
        sections.append(configuration(config))
        write_html(folder / "report.html", f"Scores of {classifier.bundle.spec.name}", sections)
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
    area, precision = roc_area(probabilities, labels), average_precision(probabilities, labels)
    error, loss = calibration_error(table), log_loss(log_odds, labels)
    facts = {
        "area under ROC": area,
        "average precision": precision,
        "calibration error": error,
        "log loss": loss,
    }
    figures = {
        "judged": {"frames": len(labels), "episodes": len(np.unique(episodes)), "note": note},
        "by frame": asdict(frames),
        "by episode": asdict(by_episode),
        **facts,
        "reliability": table,
    }
    print(_sentence(frames, by_episode))
    print(f"area under ROC {area:.4f}, calibration error {error:.4f}")
    images = [
        *draw_curves(folder, log_odds, labels, logit(scores.threshold), "frames with a label"),
        _draw_reliability(folder / "calibration.png", table),
    ]
    return [
        Section("Against the labels", f"{note}\n\n{_sentence(frames, by_episode)}", facts=facts),
        Section("By episode", rows=[asdict(by_episode)]),
        Section("By frame", rows=[asdict(frames)]),
        Section("Calibration", rows=table),
        Section("Curves", images=images),
    ], figures


def _sentence(frames: Rates, episodes: EpisodeRates) -> str:
    return (
        f"by episode: {episodes.claimed} of {episodes.successful} successful ones claimed "
        f"({episodes.recall_low:.1%} to {episodes.recall_high:.1%}), false claims in "
        f"{episodes.falsely_claimed} of {episodes.failing} (at most {episodes.fpr_high:.1%}); "
        f"by frame: recall {frames.recall:.2%} ({frames.recall_low:.2%} to "
        f"{frames.recall_high:.2%}), false positives {frames.false_positive_rate:.2%} (at most "
        f"{frames.fpr_high:.2%}). Intervals are 95 % Clopper-Pearson's."
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
