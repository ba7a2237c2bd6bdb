"""What an image pays, replayed: the traces that ``record.py`` recorded, see ``README.md``."""

from __future__ import annotations

import functools
from typing import Any

import golden_hover
import pytest
from golden_hover import PLACES
from golden_traces import Case, differences, load, margins, packed

recorded = functools.cache(load)
ADDED_BY_A_WRAPPER = frozenset({"original_env_rew"})
"""What the learned reward around the hover scene writes into ``info`` beside what was recorded."""
NEEDS = {"sb3": "stable_baselines3", "hover_device": "torch"}


def parameters() -> list[Any]:
    """Each variant in one autoreset mode, and in one place of the hover scene; the rest is full."""
    chosen = {
        f"hover_{variant.only[number % len(variant.only)]}-{name}"
        for number, (name, variant) in enumerate(golden_hover.VARIANTS.items())
    }
    every = []
    for place, cases in PLACES.items():
        for number, case in enumerate(cases()):
            name = f"{place}-{case.name}"
            one = place in ("single", "sb3") or name in chosen
            one |= place == "vector" and number % 3 == number // 3 % 3
            marks = () if one else pytest.mark.full
            every.append(pytest.param(place, case, id=name, marks=marks))
    return every


@pytest.mark.parametrize(("place", "case"), parameters())
def test_a_replay_gives_what_was_recorded(place: str, case: Case) -> None:
    if place in NEEDS:
        pytest.importorskip(NEEDS[place])
    may_have = ADDED_BY_A_WRAPPER if place.startswith("hover") else frozenset()
    assert not differences(recorded(place)[case.name], packed(case.play()), case, may_have)


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
def test_no_score_is_so_close_to_a_threshold_that_a_replay_could_claim_otherwise(
    place: str,
) -> None:
    cases = {case.name: case for case in PLACES[place]()}
    assert cases.keys() == recorded(place).keys()
    for name, trace in recorded(place).items():
        odds, ood_score = margins(trace, cases[name].thresholds)
        assert odds >= cases[name].margin and ood_score >= cases[name].ood_margin
