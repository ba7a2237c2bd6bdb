"""Record golden traces: ``python tests/golden/record.py [PLACE ...]``; without a place, all.

Says what differs from the traces that are there, and refuses to record one that a replay on
another processor could not follow: whose scores come too close to a threshold.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from golden_places import PLACES
from golden_traces import (
    DATA,
    Case,
    Trace,
    differences,
    load,
    margins,
    packed,
    save,
)

SHOWN = 3
"""Differences of a case that are printed."""


def main() -> int:
    """Record; return 1 where a case cannot be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("places", nargs="*", metavar="PLACE", help=", ".join(PLACES))
    failed = False
    for place in parser.parse_args().places or PLACES:
        before = load(place) if (DATA / f"{place}.npz").exists() else {}
        traces: dict[str, Trace] = {}
        for case in PLACES[place]():
            trace = traces[case.name] = packed(case.play())
            failed |= not _reported(place, case, trace, before.get(case.name))
        print(f"{place}: {len(traces)} cases, {sum(map(len, traces.values()))} events")
        if not failed:
            save(place, traces)
    return int(failed)


def _reported(place: str, case: Case, trace: Trace, before: Trace | None) -> bool:
    odds, ood_score = margins(trace, case.thresholds)
    told = [] if before is None else differences(before, trace, case)
    for line in told[:SHOWN]:
        print(f"  {place}/{case.name}: {line}")
    if len(told) > SHOWN:
        print(f"  {place}/{case.name}: {len(told) - SHOWN} more")
    if odds >= case.margin and ood_score >= case.ood_margin:
        return True
    print(
        f"  {place}/{case.name}: {odds:.3f} log-odds from a threshold, "
        f"OOD scores {ood_score:.3f} from 1"
    )
    return False


if __name__ == "__main__":
    sys.exit(main())
