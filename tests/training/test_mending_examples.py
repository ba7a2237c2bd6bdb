"""Examples that an environment labels itself, for vinoreward mend."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vinoreward.errors import ConfigError, RunFolderError
from vinoreward.rewards.interventions import Axis, SearchSpace
from vinoreward_training.mending.examples import (
    AGAIN,
    FILE,
    HARD,
    MOST,
    OTHERS,
    Examples,
    Source,
    draw,
)
from vinoreward_training.mending.refit import passes, shares_of

HOLE = (0.7, 0.3)
RADIUS = 0.04


class Table:
    """A hand on a table whose picture is its place. Success is at the left edge."""

    def __init__(self) -> None:
        self.at = np.zeros(2)
        self.looked = 0

    def place(self, state: np.ndarray) -> bool | None:
        self.at = state
        return True if state[0] < 0.1 else None if state[0] < 0.15 else False

    def picture(self) -> np.ndarray:
        self.looked += 1
        high, low = np.divmod(np.round(self.at * 65535).astype(np.int64), 256)
        return np.stack([high, low], axis=-1).astype(np.uint8).reshape(1, 4, 1).repeat(3, axis=2)

    @property
    def space(self) -> SearchSpace:
        return SearchSpace("hand", (Axis("x", 0.0, 1.0, "m"), Axis("y", 0.0, 1.0, "m")), self.place)


def places(images: np.ndarray) -> np.ndarray:
    """Read the places (N, 2) of pictures."""
    numbers = images[:, 0, :, 0].astype(np.float64).reshape(-1, 2, 2)
    return (numbers[..., 0] * 256 + numbers[..., 1]) / 65535


def fooled(images: np.ndarray) -> np.ndarray:
    """A network that is right, but for a hole that it is nearly sure is none until it is close."""
    at = places(images)
    apart = np.hypot(*(at - HOLE).T)
    return np.where(at[:, 0] < 0.12, 6.0, np.where(apart < RADIUS, 5.0, -4.5 - 4 * apart))


def right(images: np.ndarray) -> np.ndarray:
    return np.where(places(images)[:, 0] < 0.12, 6.0, -6.0)


def drawn(log_odds=fooled, before=None, *, seed=0, part=0, space=None) -> Examples:
    table, found = Table(), []
    steps = list(draw([space or table.space], table.picture, log_odds, before, found,
                      seed=seed, part=part))  # fmt: skip
    assert steps and len(found) == 1
    return found[0]


def test_most_examples_are_where_the_network_is_fooled() -> None:
    found = drawn()
    at = places(found.images)
    in_hole = np.hypot(*(at - HOLE).T) < RADIUS
    assert 200 < in_hole.sum() <= MOST, "of a space of which the hole is half a hundredth"
    assert np.array_equal(found.labels, (at[:, 0] < 0.1).astype(np.int64)), "the truth, not a claim"
    assert not ((at[:, 0] > 0.101) & (at[:, 0] < 0.149)).any(), "what is left out is not shown"
    assert found.labels.sum() > 10 and (found.labels[in_hole] == 0).all()
    others = ~in_hole & (found.labels == 0)
    assert 50 < others.sum() <= OTHERS
    remembered = np.hypot(*(found.hard[0] - HOLE).T)
    assert len(remembered) > 200 and (remembered < RADIUS + 1e-4).all()
    assert "failures claimed: hand " in found.sentence and "hand 0" not in found.sentence


def test_the_same_seed_draws_the_same_examples() -> None:
    one, same, other, later = drawn(), drawn(), drawn(seed=1), drawn(part=1)
    assert np.array_equal(one.images, same.images) and np.array_equal(one.labels, same.labels)
    for different in (other, later):
        assert one.images.shape != different.images.shape or (one.images != different.images).any()


def test_of_earlier_examples_those_stay_that_are_still_hard() -> None:
    before = drawn()
    hard = before.labels == 0
    hard &= fooled(before.images) > HARD
    kept = drawn(before=before, part=1)
    fresh = drawn(part=1, before=Examples(before.images[:0], before.labels[:0], before.hard, ""))
    again = len(kept.labels) - len(fresh.labels)
    easy = len(before.labels) - hard.sum()
    assert hard.sum() <= again <= hard.sum() + 2 * AGAIN * easy
    mended = drawn(right, before, part=1)
    assert len(mended.labels) < len(fresh.labels), "nothing is hard any more"
    assert mended.sentence == "failures claimed: hand 0"
    # It looks near the places that were hard, and keeps them in mind.
    assert len(mended.hard[0]) == len(before.hard[0])


def test_a_space_that_leaves_all_states_out_gives_none() -> None:
    axes = (Axis("x", 0.0, 1.0), Axis("y", 0.0, 1.0))
    found = drawn(space=SearchSpace("nothing", axes, lambda state: None))
    assert found.images.shape == (0, 1, 4, 3) and found.labels.shape == (0,)


def test_a_set_state_that_fails_is_told() -> None:
    def place(state: np.ndarray) -> bool:
        raise ValueError("no such place")

    with pytest.raises(ConfigError, match=r"search space 'broken' fails: .*no such place"):
        drawn(space=SearchSpace("broken", (Axis("x", 0.0, 1.0),), place))


def test_a_resumed_training_gets_the_examples_of_the_first(tmp_path: Path) -> None:
    """Those of a part are written once drawn, as the checkpoint is of a training with them."""

    def source(table: Table, *, resume: bool) -> Source:
        return Source([table.space], table.picture, seed=3, resume=resume)

    first = source(Table(), resume=False)
    (tmp_path / "part1").mkdir()
    one = first.examples(fooled, tmp_path / "part1", 0)
    two = first.examples(fooled, tmp_path, 1)
    (tmp_path / FILE).unlink()  # stopped while it drew the second part
    table = Table()
    resumed = source(table, resume=True)
    again = resumed.examples(right, tmp_path / "part1", 0)
    assert table.looked == 0 and np.array_equal(again.images, one.images)
    assert again.labels.dtype == np.int64 and again.sentence == one.sentence
    assert np.array_equal(resumed.examples(fooled, tmp_path, 1).images, two.images)
    anew = source(table, resume=False).examples(fooled, tmp_path / "part1", 0)
    assert table.looked > 1000 and np.array_equal(anew.images, one.images)


@pytest.mark.parametrize("damage", ["cut", "other", "pickle", "shape"])
def test_damaged_examples_are_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / FILE
    drawn().save(path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-500])
    elif damage == "other":
        path.write_bytes(b"no archive")
    elif damage == "pickle":
        with path.open("wb") as stream:
            np.savez(stream, images=np.array([{}], dtype=object))
    elif damage == "shape":
        with path.open("wb") as stream:
            np.savez(stream, images=np.zeros((3, 1, 4, 3), np.uint8), labels=np.zeros(2, np.int64),
                     hard0=np.zeros((0, 2)), sentence=np.array(""))  # fmt: skip
    with pytest.raises(RunFolderError, match="Expected the examples that this mending drew"):
        Examples.load(path, 1)


def test_examples_get_a_share_of_their_own() -> None:
    kinds = ((np.arange(10), 0.6), (np.arange(10, 14), 0.4), (np.zeros(0, np.int64), 0.0))
    shares = shares_of(kinds)
    assert shares.shape == (14,) and shares.sum() == pytest.approx(1.0)
    assert shares[:10].sum() == pytest.approx(0.6) and np.ptp(shares[10:]) == 0
    assert shares_of(((np.arange(10), 0.5), (np.zeros(0, np.int64), 0.5))).sum() == 1.0


def test_parts_together_train_on_as_many_as_one_training() -> None:
    assert [passes(count, 3) for count in (100_000, 8_001, 4_000, 1_000)] == [1, 1, 2, 8]
