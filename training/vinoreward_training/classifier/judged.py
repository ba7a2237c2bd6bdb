"""``vinoreward calibrate --judge`` and ``--scores``: a threshold for any scores, with its bound."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vinoreward.bundles.locate import GUARD_FILE
from vinoreward.errors import ConfigError, DatasetError
from vinoreward.files import write_bytes, write_json
from vinoreward.rewards.calibration import rate_supported
from vinoreward.rewards.classifier import logit, sigmoid
from vinoreward.rewards.judge import log_odds_of_scores
from vinoreward_training.classifier.camera_failure import FAMILIES, HELD_OUT
from vinoreward_training.classifier.evaluation import (
    Evaluation,
    Floats,
    Labels,
    Scored,
    default_rate,
    evaluate,
    evaluate_scored,
    reliability,
)
from vinoreward_training.classifier.finetune import USELESS, check_sample_size
from vinoreward_training.classifier.ood import fit_ood
from vinoreward_training.configs import CalibrateConfig
from vinoreward_training.data.dataset import Images, load_dataset, split_by_episode
from vinoreward_training.data.dataset_files import check_labels
from vinoreward_training.data.provenance import split_of
from vinoreward_training.data.tables import Row, read_table
from vinoreward_training.judges import JUDGE_FILE, TWICE, CachedJudge, judge_folder
from vinoreward_training.runs.next_command import command
from vinoreward_training.runs.report import Section, configuration, write_report
from vinoreward_training.runs.run_folder import ensure_dir, plain_numbers
from vinoreward_training.runs.settings import refuse_ignored

LIMITS = (
    "The threshold is for this judge and images like these: another camera, light or place, or "
    "another version of the judge or of what it asks, needs a new calibration."
)


def logits_of(scores: Floats) -> Floats:
    """Return logits (N, 2) of scores from 0 to 1; of an abstention those of the score 0."""
    odds = log_odds_of_scores(np.nan_to_num(scores))
    return np.stack([np.zeros_like(odds), odds], axis=1)


def calibrate_judge(config: CalibrateConfig, name: str) -> int:
    """Calibrate a judge on labelled images and write its folder; return the exit status."""
    from vinoreward_training.classifier.bundle import draw, print_result

    refuse_ignored(config, ("int8",), "a judge, which is no network,")
    if config.data is None:
        raise ConfigError(field="data", value=None, expected="labelled images for a judge")
    folder = judge_folder(name)
    with contextlib.closing(CachedJudge(name, config.max_calls)) as judge:
        dataset = load_dataset(config.data, success_label=config.success_label, skip_broken=True)
        train, validation, test = split_by_episode(dataset)
        choosing = np.sort(np.concatenate([train, validation]))  # a judge was not trained on it
        check_sample_size(config, dataset, choosing)
        dead = 2 * len(FAMILIES) * HELD_OUT
        print(
            f"{name} scores {len(dataset.images)} images, {TWICE} of them twice, and {dead} of a "
            f"failing camera: at most {len(dataset.images) + TWICE + dead} calls"
        )
        scores = judge(dataset.images)
        spread = judge.score_again(dataset.images)
        print(spread)
        abstained = np.isnan(scores)
        if abstained.any():
            print(
                f"it abstains from {abstained.sum()} of {len(scores)} images, "
                f"{(abstained & (dataset.labels == 1)).sum()} of them successes: they earn "
                "nothing, and are in no rate"
            )
        choosing, test = (part[~abstained[part]] for part in (choosing, test))

        def score(images: Images) -> Floats:
            return logits_of(judge(images))

        result = evaluate(score, dataset, (choosing, test), config.target_fpr)
    ood = fit_ood(dataset, (train, validation, test), None)
    guard = ood.files.get(GUARD_FILE)
    if guard is not None:
        write_bytes(folder / GUARD_FILE, guard)
    facts: dict[str, object] = {
        "judge": name,
        "SHA-256 of file and function": judge.sha256,
        "calibrated on": f"{len(choosing) + len(test)} images, dataset {dataset.sha256[:12]}",
        "abstained from": int(abstained.sum()),
        "scored twice": str(spread),
        "guard": str(ood),
    }
    labels = dataset.labels[choosing], dataset.episodes[choosing]
    drawn = draw(ensure_dir(folder / "images"), dataset, test, result)
    _write(config, folder, result, labels, dataset.labels[test], facts, drawn)
    record = {
        "judge": name,
        "sha256": judge.sha256,
        "decision": dataclasses.asdict(result.decision),
        "guard": None if guard is None else hashlib.sha256(guard).hexdigest(),
        "metrics": result.metrics,
    }
    write_json(folder / JUDGE_FILE, plain_numbers(record))
    print_result(result, ood)
    if result.verdict.level == "useless":
        return USELESS
    print(f"next: {command('audit', '--judge', name, '--data', config.data)}")
    return 0


def calibrate_scores(config: CalibrateConfig, table: Path) -> int:
    """Choose the threshold of a table of scores, write a report; return the exit status."""
    refuse_ignored(config, ("data", "int8", "max_calls"), "a table of scores")
    scores, labels, episodes = read_scores(table, config.success_label)
    known = ~np.isnan(scores)
    names, number = np.unique(episodes, return_inverse=True)
    is_test = split_of([str(name).encode() for name in names])[number] == 1
    choosing, test = (
        _part(table, scores, labels, number, known & mask) for mask in (~is_test, is_test)
    )
    if not known.all():
        print(f"{(~known).sum()} of {len(known)} rows have no score: they are in no rate")
    result = evaluate_scored(choosing, test, config.target_fpr, frames=len(labels))
    out = ensure_dir(table.with_name(f"{table.stem}-calibration"))
    facts: dict[str, object] = {
        "scores": f"{table.name}, {known.sum()} scores of {len(names)} episodes",
        "abstained from": int((~known).sum()),
    }
    _write(config, out, result, (choosing.labels, choosing.episodes), test.labels, facts, [])
    record = {"decision": dataclasses.asdict(result.decision), "metrics": result.metrics}
    write_json(out / "calibration.json", plain_numbers(record))
    print(
        f"test: recall {result.test.recall:.2%}, at least {result.test.recall_low:.2%}; false "
        f"positives {result.test.false_positive_rate:.2%}, at most {result.test.fpr_high:.2%}"
    )
    print(f"verdict: {result.verdict}")
    decision = result.decision
    print(
        f"in Python: vinoreward.Judge(function, threshold={decision.threshold:.6g}, "
        f"temperature={decision.temperature:.6g})"
    )
    return USELESS if result.verdict.level == "useless" else 0


def _part(
    table: Path, scores: Floats, labels: Labels, episodes: Labels, mask: npt.NDArray[np.bool_]
) -> Scored:
    if len(np.unique(labels[mask])) < 2:
        raise DatasetError(
            f"a part of {table} would have {mask.sum()} scores of fewer than two classes "
            f"({len(np.unique(episodes))} episodes in all). Expected successes and failures in "
            "both; a hash of each episode's name decides where it goes, 15 % to the test, so some "
            "tens of episodes with either are needed: add some.",
            field="scores",
        )
    return Scored(logits_of(scores[mask]), labels[mask], episodes[mask])


def read_scores(table: Path, success_label: str) -> tuple[Floats, Labels, np.ndarray]:
    """Return (N,) scores (NaN where a cell is empty), labels and names of episodes of a table.

    DatasetError: anything that is wrong, with its line.
    """

    def parse(row: Row) -> tuple[float, str, str]:
        score = float(row["score"] or "nan")
        if not (np.isnan(score) or 0 <= score <= 1):
            raise ValueError(f"the score is {score:g}")
        if not row["label"].strip():
            raise ValueError("there is no label")
        return score, row["label"], row["episode"]

    expected = (
        "the columns score (from 0 to 1; of other numbers a sigmoid makes such), label and episode"
    )
    rows = list(read_table(table, ("score", "label", "episode"), parse, expected))
    if not rows:
        raise DatasetError(f"{table} has no rows. Expected {expected}; add some.", field="scores")
    scores, marks, episodes = zip(*rows, strict=True)
    success = "1" if set(marks) <= {"0", "1"} else success_label
    check_labels(table, set(marks), success)
    labels = np.array([mark == success for mark in marks], dtype=np.int64)
    return np.array(scores, dtype=np.float64), labels, np.array(episodes)


def _write(
    config: CalibrateConfig,
    folder: Path,
    result: Evaluation,
    choosing: tuple[Labels, Labels],
    test: Labels,
    facts: Mapping[str, object],
    drawn: list[Path],
) -> None:
    """Write the report; print the rate that the data support, and the threshold.

    ``choosing`` are labels and episodes of what chose the threshold, ``test`` labels of the rest.
    """
    from vinoreward_training.classifier.bundle import draw_curves, draw_reliability, sections_of

    _, why = default_rate(*choosing, None)
    episodes = len(np.unique(choosing[1][choosing[0] == 0]))
    supported = (
        f"these data can support a false-positive rate of {rate_supported(episodes):.2g} an "
        f"episode, without an error: {why}"
    )
    print(supported)
    decision = result.decision
    print(f"threshold {decision.threshold:.4f}, temperature {decision.temperature:.3f}")
    images = ensure_dir(folder / "images")
    rows = reliability(sigmoid(result.log_odds), test)
    if not drawn:
        drawn = draw_curves(images, result.log_odds, test, logit(decision.threshold), "test scores")
    sections = sections_of(result, {**facts, "rate": supported}, drawn, LIMITS)
    calibration = Section(
        "Calibration",
        "Of the test images, by their calibrated score.",
        rows=rows,
        images=[draw_reliability(images / "reliability.png", rows)],
    )
    sections = [*sections, calibration, configuration(config)]
    path = write_report(folder / "report.html", f"Calibration of {folder.name}", sections)
    print(f"report {path}")
