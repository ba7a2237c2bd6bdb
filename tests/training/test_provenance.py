"""What a bundle says that it has seen, and which episodes are new to it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tiny_network as tiny

from vinoreward_training.data.provenance import MOST_DATASETS, find_new_frames, origin_of, split_of

EPISODES = np.arange(400) // 2
SIM, REAL, OTHER = ({"env": f"{name}-v0", "seed": 0} for name in ("Sim", "Real", "Other"))
ORIGINS = {str(origin_of(about)): number for number, about in enumerate((SIM, REAL, OTHER))}
HASHES = [digit * 64 for digit in "012"]
NEW, UNKNOWN = "other episodes", "Nothing says"


def trained_on(*captures: int, datasets: int, **more: Any) -> dict[str, Any]:
    names = [list(ORIGINS)[number] for number in captures]
    return {"trained_on": {"captures": names, "datasets": HASHES[:datasets], **more}}


CALIBRATED = {"calibrated_on": {"sha256": HASHES[1], "capture": list(ORIGINS)[1]}}
"""On the second capture."""


@pytest.mark.parametrize(
    ("says", "said"),
    [
        ({}, (UNKNOWN, UNKNOWN, UNKNOWN)),
        ({**SIM, "sha256": HASHES[0]}, ("trained", UNKNOWN, UNKNOWN)),
        ({**SIM, **trained_on(0, datasets=1)}, ("trained", NEW, NEW)),
        ({**REAL, **trained_on(0, 1, datasets=2)}, ("trained", "trained", NEW)),
        # Calibration takes the place of a training's environment, not of its record.
        ({**REAL, **trained_on(0, datasets=1), **CALIBRATED}, ("trained", "calibrated", NEW)),
        # It began with weights without a record, or on images that no capture is named of.
        ({**SIM, **trained_on(0, datasets=1, complete=False)}, ("trained", UNKNOWN, UNKNOWN)),
        ({**REAL, **trained_on(1, datasets=2)}, ("trained", "trained", UNKNOWN)),
        # A stranger's file.
        ({"trained_on": 3, "calibrated_on": [None]}, (UNKNOWN, UNKNOWN, UNKNOWN)),
        ({"trained_on": {"captures": "Sim-v0 seed 0", "datasets": [[]]}}, (UNKNOWN,) * 3),
    ],
)
def test_a_bundle_s_records_say_what_is_new_to_it(
    says: dict[str, Any], said: tuple[str, ...]
) -> None:
    """Where they name a capture, its test part alone is new; where they are not whole, nothing is
    called new."""
    spec = dataclasses.replace(tiny.SPEC, dataset=says)
    for origin, number in ORIGINS.items():
        new, note = find_new_frames(spec, EPISODES, origin, HASHES[number])
        assert said[number] in note
        assert new.all() == (said[number] in (NEW, UNKNOWN))
        if not new.all():
            kept = np.unique(EPISODES[new])
            assert np.array_equal(new, np.isin(EPISODES, kept)), "whole episodes"
            assert 15 < len(kept) < 45 and f"only the {len(kept)} that" in note  # 15 % of 200
        assert UNKNOWN in find_new_frames(tiny.SPEC, EPISODES, origin)[1]


def test_of_images_without_a_capture_a_hash_tells_that_they_were_seen() -> None:
    """Their content says which ones a training kept for the test."""
    contents = [f"content {number}".encode() for number in range(200)]
    for says, said in (
        ({"sha256": HASHES[0]}, "was trained on episodes of these"),
        (CALIBRATED, UNKNOWN),
        ({"calibrated_on": {"sha256": HASHES[0]}}, "was calibrated on episodes of these"),
        ({**SIM, **trained_on(0, datasets=0)}, UNKNOWN),
    ):
        spec = dataclasses.replace(tiny.SPEC, dataset=says)
        new, note = find_new_frames(spec, EPISODES, None, HASHES[0], contents)
        assert said in note
        expected = np.ones(200, np.bool_) if said == UNKNOWN else split_of(contents) == 1
        assert np.array_equal(new, expected[EPISODES])


def test_of_a_long_record_the_last_count() -> None:
    names = [f"Sim-v0 seed {seed}" for seed in range(MOST_DATASETS + 1)]
    spec = dataclasses.replace(tiny.SPEC, dataset={"trained_on": {"captures": names}})
    assert "trained on episodes of these" in find_new_frames(spec, EPISODES, names[-1])[1]
    assert "Nothing says" in find_new_frames(spec, EPISODES, names[0])[1]
