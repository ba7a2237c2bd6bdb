"""Record golden traces: ``python tests/golden/record.py [PLACE ...]``; without a place, all.

Run the tests first: they say what differs. A trace that a replay on another processor could not
follow is refused: one whose scores come too close to a threshold.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from golden_hover import PLACES
from golden_traces import margins, packed, save


def main() -> None:
    """Record, or end with what cannot be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("places", nargs="*", metavar="PLACE", help=", ".join(PLACES))
    for place in parser.parse_args().places or PLACES:
        cases = PLACES[place]()
        traces = {case.name: packed(case.play()) for case in cases}
        for case in cases:
            odds, ood_score = margins(traces[case.name], case.thresholds)
            if odds < case.margin or ood_score < case.ood_margin:
                sys.exit(
                    f"{place}/{case.name}: {odds:.3f} log-odds, OOD {ood_score:.3f}: too close"
                )
        save(place, traces)
        print(f"{place}: {len(traces)} cases, {sum(map(len, traces.values()))} events")


if __name__ == "__main__":
    main()
