"""Labels a run's claims as a person would by ``vinoreward label``, but by the simulator's truth.

``python examples/label_by_truth.py runs/maze-policy --limit 100`` takes the images in the order
of the page and writes the same ``labels.jsonl``. On a robot nobody knows the truth: use the page.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from vinoreward.errors import VinorewardError
from vinoreward_training.labelling.labels import LABELS, Label, LabelLog, now, standing
from vinoreward_training.labelling.order import most_useful_first, recorded
from vinoreward_training.labelling.sources import digest_of, of_run

BY = "truth"
"""Who labelled, as the log says."""


def label_by_truth(run: Path, limit: int) -> tuple[int, int]:
    """Label at most so many claims; return how many got a label, and how many are no successes."""
    source = of_run(run)
    true = source.numbers["true"]
    with LabelLog(run / LABELS) as log:
        before = standing(log.entries)
        done = {label.image for label in before if label.by == BY}
        order = most_useful_first(source, recorded(source), before, BY, seed=0)
        order = [index for index in order if source.names[index] not in done]
        chosen = [index for index in order if not math.isnan(true[index])][:limit]
        for index in chosen:
            digest = digest_of(source.read(index))
            answer = "success" if true[index] else "failure"
            log.add(Label(source.names[index], digest, answer, BY, now(), 0.0))
    return len(chosen), sum(not true[index] for index in chosen)


def main() -> None:
    """Label a run's claims."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a run of vinoreward train")
    parser.add_argument("--limit", type=int, default=100, help="labels at most")
    options = parser.parse_args()
    try:
        labelled, failures = label_by_truth(options.run, options.limit)
    except VinorewardError as error:
        parser.error(str(error))
    written = options.run / LABELS
    print(f"{labelled} claims labelled, {failures} of them are no successes: {written}")


if __name__ == "__main__":
    main()
