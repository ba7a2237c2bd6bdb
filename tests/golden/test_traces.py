"""What an image pays, replayed: the traces that ``tests/golden/record.py`` recorded."""

from __future__ import annotations

import functools

import golden_hover
import pytest
from golden_names import ADDED_BY_A_WRAPPER
from golden_places import PLACES
from golden_traces import Case, Trace, differences, load, margins, packed

recorded = functools.cache(load)
CASES = [
    pytest.param(place, case, id=f"{place}-{case.name}")
    for place, cases in PLACES.items()
    for case in cases()
]


@pytest.mark.parametrize(("place", "case"), CASES)
def test_a_replay_gives_what_was_recorded(place: str, case: Case) -> None:
    expected: Trace = recorded(place)[case.name]
    may_have = ADDED_BY_A_WRAPPER if place.startswith("hover") else frozenset()
    assert not differences(expected, packed(case.play()), case, may_have)


@pytest.mark.parametrize(
    "case", golden_hover.cases("device", device="cuda"), ids=lambda case: case.name
)
def test_a_gpu_gives_what_was_recorded(case: Case) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    expected = recorded("hover_device")[case.name]
    assert not differences(expected, packed(case.play()), case, ADDED_BY_A_WRAPPER)


@pytest.mark.parametrize("place", PLACES)
def test_every_trace_is_replayed(place: str) -> None:
    assert {case.name for case in PLACES[place]()} == set(recorded(place))


@pytest.mark.parametrize(("place", "case"), CASES)
def test_no_score_is_so_close_to_a_threshold_that_a_replay_could_claim_otherwise(
    place: str, case: Case
) -> None:
    odds, odd = margins(recorded(place)[case.name], case.thresholds)
    assert odds >= case.margin and odd >= case.ood_margin
