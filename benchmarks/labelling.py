"""Labels that are lost when the program of the labelling page is killed."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from harness import ROOT, Benchmark, Row, Value
from vinoreward_training.data.dataset_files import save_image

# The client with which the tests of the page label, too.
sys.path.append(str(ROOT / "tests" / "support"))
from labelling_client import MOST_LABELS, labels_lost

ROWS = {"labelling": Row("acknowledged labels lost by kills in the middle of labelling", "≤0")}


def measure(options: Any) -> Iterator[tuple[str, Value]]:
    """Kill the program at random moments while a client labels."""
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for index in range(4 * MOST_LABELS):
            image = random.integers(0, 256, (96, 128, 3), dtype=np.uint8)
            save_image(folder / f"{index:04d}.png", image)
        acknowledged, lost, interrupted = labels_lost(folder, options.kills, options.seed)
    figure = f"{lost} of {acknowledged:,} in {options.kills} kills"
    yield "labelling", Value(figure, lost, {"in the middle of a label": interrupted})


BENCH = Benchmark("Audits and labels", ROWS, measure, kills=50, seed=0)

if __name__ == "__main__":
    sys.exit(BENCH.main())
