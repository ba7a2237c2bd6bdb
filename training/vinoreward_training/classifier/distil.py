"""``vinoreward finetune --labels-from``: a slow judge labels what a classifier learns."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from vinoreward.errors import DatasetError
from vinoreward.rewards.judge import ABSTAINED
from vinoreward_training.classifier.agreement import JudgedLabels
from vinoreward_training.classifier.score import batches, source_of_files
from vinoreward_training.judges import CachedJudge, open_judge


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
    success, known = (np.zeros(len(source.keys), np.bool_) for _ in range(2))
    spread = None
    with contextlib.ExitStack() as closing:
        judge = dataclasses.replace(open_judge(judge_name, max_calls, closing), guard=None)
        function: CachedJudge = judge.function  # type: ignore[assignment]
        bar = tqdm(source.images, f"labels of {judge_name}", len(source.keys), unit="image")
        for part, images in batches(bar):
            said = judge.predict(images)
            success[part] = said.probability >= np.float32(judge.threshold)
            known[part] = said.ood_score != ABSTAINED
            spread = function.score_again(images) if spread is None else spread
    if not known.any():
        raise DatasetError(
            f"{judge_name} abstains from all {len(known)} images of {folder}. Expected scores of "
            "some; give other images, or correct the judge."
        )
    print(f"{judge_name} labels {known.sum()} images, abstains from {(~known).sum()}; {spread}")
    agree = known & (source.labels >= 0)
    facts: dict[str, Any] = {
        "judge": judge_name,
        "judge_sha256": function.sha256,
        "threshold": judge.threshold,
        "labelled": int(known.sum()),
        "abstained": int((~known).sum()),
        "scored_twice": str(spread),
    }
    if agree.any():
        same = int((success == (source.labels == 1))[agree].sum())
        facts["agrees_with_own_labels"] = f"{same} of {agree.sum()}"
        print(f"it agrees with {same} of {agree.sum()} labels that the images have")
    entries = [
        (key[0], int(claim), "success" if claim else "failure", int(key[1]), float("nan"))
        for key, claim, kept in zip(source.keys, success.tolist(), known.tolist(), strict=True)
        if kept
    ]
    return JudgedLabels(judge_name, tuple(entries), facts)
