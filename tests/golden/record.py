"""Record golden traces: ``python tests/golden/record.py [PLACE ...]``; without a place, all.

Says what differs from the traces that are there, and refuses to record one that a replay on
another processor could not follow: whose scores come too close to a threshold.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
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
    paths_of,
    present,
    save,
)

SHOWN = 3
"""Differences of a case that are printed."""


def main() -> int:
    """Record; return 1 where a case cannot be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("places", nargs="*", metavar="PLACE", help=", ".join(PLACES))
    parser.add_argument("--dry-run", action="store_true", help="compare only, write nothing")
    chosen = parser.parse_args()
    failed = False
    for place in chosen.places or PLACES:
        before = load(place) if (DATA / f"{place}.npz").exists() else {}
        traces: dict[str, Trace] = {}
        began = time.perf_counter()
        for case in PLACES[place]():
            trace = traces[case.name] = packed(case.play())
            failed |= not _reported(place, case, trace, before.get(case.name))
        steps = sum(map(len, traces.values()))
        print(f"{place}: {len(traces)} cases, {steps} events, {time.perf_counter() - began:.1f} s")
        if not (failed or chosen.dry_run):
            path = save(place, traces)
            print(f"  {path.stat().st_size / 1000:.0f} kB, {_summary(traces)}")
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


def _summary(traces: dict[str, Trace]) -> str:
    """Return how many steps and claims there are, episodes that ended, and images withheld."""
    what = {
        "steps": {"reward", "rewards"},
        "claims": {"is_success"},
        "ends": {"dones", "terminated", "truncated", "terminations", "truncations"},
        "out of distribution": {"reward_ood"},
    }
    count = dict.fromkeys(what, 0)
    # A wrapper writes a step's claim into both places, the hover scene into one of them.
    twice = {"infos.is_success", "infos.reward_ood"} if "sparse-SAME_STEP" in traces else set()
    for trace in traces.values():
        for path in paths_of(trace):
            last = path.rpartition(".")[2]
            if "final_info" in path and path.replace("final_info.", "") in twice:
                continue
            for name in (k for k, v in what.items() if last in v):
                values = trace[path][present(trace, path)]
                count[name] += values.size if name == "steps" else int((values > 0.999).sum())
    return ", ".join(f"{number} {name}" for name, number in count.items())


if __name__ == "__main__":
    sys.exit(main())
