"""``vinoreward finetune --labels-from``: a slow judge labels what a classifier learns."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np

from vinoreward.errors import DatasetError
from vinoreward_training.classifier.agreement import JudgedLabels
from vinoreward_training.classifier.score import batches, source_of_files
from vinoreward_training.judges import Labeller


def label_by_judge(
    folder: Path, judge_name: str, max_calls: int | None, success_label: str
) -> JudgedLabels:
    """Return a judge's labels of a capture or of any folder of images, with a progress bar.

    Raises:
        ConfigError: no such judge, or its budget is spent: the next run goes on.
        OutputError: the judge fails.
        DatasetError: it abstains from every image.
    """
    from tqdm import tqdm

    source = source_of_files(folder, success_label)
    labels = np.full(len(source.keys), -1)
    spread = None
    with contextlib.ExitStack() as closing:
        judge = Labeller(judge_name, max_calls, closing)
        bar = tqdm(source.images, f"labels of {judge_name}", len(source.keys), unit="image")
        for part, images in batches(bar):
            labels[part] = judge(images)
            spread = judge.function.score_again(images) if spread is None else spread
    if not judge.labelled:
        raise DatasetError(
            f"{judge_name} abstains from all {judge.abstained} images of {folder}. Expected scores "
            "of some; give other images, or correct the judge."
        )
    print(f"{judge}; {spread}")
    agree = (labels >= 0) & (source.labels >= 0)
    facts = {
        **judge.facts,
        "labelled": judge.labelled,
        "abstained": judge.abstained,
        "scored_twice": str(spread),
    }
    if agree.any():
        same = int((labels == source.labels)[agree].sum())
        facts["agrees_with_own_labels"] = f"{same} of {agree.sum()}"
        print(f"it agrees with {same} of {agree.sum()} labels that the images have")
    entries = [
        (key[0], label, "success" if label else "failure", int(key[1]), float("nan"))
        for key, label in zip(source.keys, labels.tolist(), strict=True)
        if label >= 0
    ]
    return JudgedLabels(judge_name, tuple(entries), facts)
